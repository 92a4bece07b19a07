"""Charts as SVG, written by hand: the same figures give the same bytes, on any machine and without a drawing library.

Text is measured by rule of thumb, which is all that bars and lines need. The background is white, whatever the page around it is.
"""

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

__all__ = ["Bar", "Curve", "bars", "lines"]

WIDTH = 760
_FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
_INK, _FAINT, _GRID = "#1f2328", "#59636e", "#e4e7eb"
_COLOURS = ("#0b6bcb", "#d1600a", "#2a8a4a", "#8250b4", "#b3261e", "#6b7280")
_TEXT_WIDTH = 6.6
"""Of one character of 12 px, on average."""


class Bar(NamedTuple):
    """One bar; bars of one kind have one colour, in the order in which the kinds first come."""

    label: str
    value: float
    kind: str


class Curve(NamedTuple):
    """Points of one line, in order of x."""

    label: str
    points: Sequence[tuple[float, float]]


def bars(title: str, unit: str, shown: Sequence[Bar]) -> str:
    """Horizontal bars, largest first, with their figures beside them; raises ValueError where there is nothing to show."""
    if not shown:
        raise ValueError(f"{title}: no bars")
    ordered = sorted(shown, key=lambda bar: -bar.value)
    colours = _colours([bar.kind for bar in shown])
    left = 16 + _TEXT_WIDTH * max(len(bar.label) for bar in ordered)
    room = WIDTH - left - 90
    top, step = 78, 24
    largest = max(ordered[0].value, 1e-12)
    parts = [_text(16, 28, title, size=16, weight=600), *_legend(colours, 52)]
    for number, bar in enumerate(ordered):
        y = top + number * step
        width = max(room * bar.value / largest, 1.0)
        parts += [
            _text(left - 8, y + 12, bar.label, anchor="end"),
            f'<rect x="{left:.1f}" y="{y}" width="{width:.1f}" height="16" rx="2" fill="{colours[bar.kind]}"/>',
            _text(left + width + 6, y + 12, _figure(bar.value), colour=_FAINT),
        ]
    parts.append(_text(left, top + len(ordered) * step + 14, unit, colour=_FAINT))
    return _page(parts, top + len(ordered) * step + 28, title)


def lines(title: str, x_label: str, y_label: str, curves: Sequence[Curve], *, y_least: float = 0.0) -> str:
    """Lines over two linear axes that begin at zero (or at ``y_least``); raises ValueError where there is nothing to show."""
    points = [point for curve in curves for point in curve.points]
    if not points:
        raise ValueError(f"{title}: no points")
    x_ticks = _ticks(0.0, max(x for x, _ in points))
    y_ticks = _ticks(y_least, max(y for _, y in points))
    left, top, right, height = 76, 88, WIDTH - 24, 260
    bottom = top + height

    def across(x: float) -> float:
        return left + (right - left) * x / x_ticks[-1]

    def up(y: float) -> float:
        return bottom - height * (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])

    colours = _colours([curve.label for curve in curves])
    parts = [_text(16, 28, title, size=16, weight=600), *_legend(colours, 52)]
    for tick in y_ticks:
        parts.append(f'<path d="M{left} {up(tick):.1f}H{right}" stroke="{_GRID}"/>')
        parts.append(_text(left - 8, up(tick) + 4, _figure(tick), anchor="end", colour=_FAINT))
    parts += [_text(across(tick), bottom + 18, _figure(tick), anchor="middle", colour=_FAINT) for tick in x_ticks]
    for curve in curves:
        path = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in curve.points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colours[curve.label]}" stroke-width="2"/>')
        if len(curve.points) <= 12:
            parts += [
                f'<circle cx="{across(x):.1f}" cy="{up(y):.1f}" r="3.5" fill="{colours[curve.label]}"/>'
                for x, y in curve.points
            ]
    parts.append(_text((left + right) / 2, bottom + 40, x_label, anchor="middle", colour=_FAINT))
    parts.append(_text(16, top - 14, y_label, colour=_FAINT))
    return _page(parts, bottom + 54, title)


def _colours(names: Sequence[str]) -> dict[str, str]:
    unique = list(dict.fromkeys(names))
    return {name: _COLOURS[number % len(_COLOURS)] for number, name in enumerate(unique)}


def _legend(colours: dict[str, str], y: float) -> list[str]:
    if len(colours) < 2:
        return []
    parts, x = [], 16.0
    for name, colour in colours.items():
        parts.append(f'<rect x="{x:.1f}" y="{y - 10:.1f}" width="12" height="12" rx="2" fill="{colour}"/>')
        parts.append(_text(x + 18, y, name, colour=_FAINT))
        x += 34 + _TEXT_WIDTH * len(name)
    return parts


def _ticks(least: float, most: float) -> list[float]:
    """Round figures, five or so, from at most ``least`` to at least ``most``."""
    span = max(most - least, 1e-9)
    power = 10.0 ** math.floor(math.log10(span / 5))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor * 5 >= span * (1 - 1e-9))
    first = math.floor(least / step + 1e-9)
    last = math.ceil(most / step - 1e-9)
    return [number * step for number in range(first, max(last, first + 1) + 1)]


def _figure(value: float) -> str:
    if value >= 1_000 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _text(
    x: float, y: float, text: str, *, size: int = 12, weight: int = 400, anchor: str = "start", colour: str = _INK
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" fill="{colour}">'
        f"{escape(text)}</text>"
    )


def _page(parts: Sequence[str], height: float, title: str) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" height="{height:.0f}" '
        f'role="img" font-family="{_FONT}">'
    )
    ground = f'<rect width="{WIDTH}" height="{height:.0f}" fill="#fff"/>'
    return "\n".join([head, f"<title>{escape(title)}</title>", ground, *parts, "</svg>", ""])
