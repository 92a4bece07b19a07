"""Charts as SVG, drawn on the server: pure functions from numbers to markup, with the same numbers as a table below.

No style and no script is inline: the policy of the pages allows neither. What a part means is its class, which the style sheet paints, in
light, in dark and in forced colours. The drawing is stretched to the room that there is; words stand beside it, in HTML.
"""

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from markupsafe import Markup, escape

__all__ = ["Series", "histogram", "lines", "sparkline", "stacked_bars"]

WIDTH: Final = 600
HEIGHT: Final = 120
SPARK_WIDTH: Final = 120
SPARK_HEIGHT: Final = 28
GAP: Final = 0.18
"""The share of a step that is left free between two bars."""


class Series(NamedTuple):
    """Numbers of one kind, one per step."""

    name: str
    """As people read it."""
    kind: str
    """The class that paints it: ``done``, ``failed``, ``retried``, ``in``, ``out``, ``p50``, ``p95``, ``plain``."""
    values: Sequence[float | None]
    """None: nothing is known of the step."""


def stacked_bars(chart: str, title: str, times: Sequence[datetime], series: Sequence[Series]) -> Markup:
    """Return counts over time, one upon another. ``chart``: an id of its own on the page; ``series`` from the bottom up."""
    top = _ceiling(max((sum(one.values[n] or 0 for one in series) for n in range(len(times))), default=0))
    width = WIDTH / max(len(times), 1)
    bars = []
    for number, at in enumerate(times):
        below = 0.0
        for one in series:
            value = one.values[number] or 0
            if value:
                words = f"{_clock(at)}: {_count(value)} {one.name}"
                place = number * width + width * GAP / 2, HEIGHT * (1 - (below + value) / top)
                bars.append(_bar(one.kind, *place, width * (1 - GAP), HEIGHT * value / top, words))
            below += value
    totals = ", ".join(f"{_count(sum(value or 0 for value in one.values))} {one.name}" for one in series)
    svg = _drawing(chart, title, f"{_span(times)}: {totals}.", Markup("").join(bars))
    return _figure(chart, title, svg, series, times, _count(top), _count)


def lines(
    chart: str, title: str, times: Sequence[datetime], series: Sequence[Series], words: Callable[[float], str]
) -> Markup:
    """Return values over time as lines, broken where nothing is known. ``words`` says a value with its unit."""
    highest = max((value for one in series for value in one.values if value is not None), default=0.0)
    top = highest or 1.0
    width = WIDTH / max(len(times), 1)
    drawn = []
    for one in series:
        points = [
            None if value is None else ((number + 0.5) * width, HEIGHT * (1 - value / top))
            for number, value in enumerate(one.values)
        ]
        drawn.append(_path(one.kind, points, width * 0.3))
    most = ", ".join(
        f"{one.name} at most {words(max((value for value in one.values if value is not None), default=0.0))}"
        for one in series
    )
    svg = _drawing(chart, title, f"{_span(times)}: {most}.", Markup("").join(drawn))
    return _figure(chart, title, svg, series, times, words(top) if highest else "", words)


def sparkline(title: str, series: Sequence[Series]) -> Markup:
    """Return a small drawing for a row of a table: lines with one scale. Its numbers belong into a table of the page."""
    top = max((value or 0 for one in series for value in one.values), default=0) or 1
    drawn = []
    for one in series:
        step = SPARK_WIDTH / max(len(one.values), 1)
        points = [
            None if value is None else ((number + 0.5) * step, (SPARK_HEIGHT - 2) * (1 - value / top) + 1)
            for number, value in enumerate(one.values)
        ]
        drawn.append(_path(one.kind, points, step * 0.3))
    totals = ", ".join(f"{_count(sum(value or 0 for value in one.values))} {one.name}" for one in series)
    return Markup(
        '<svg class="spark" viewBox="0 0 {} {}" width="{}" height="{}" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>'
    ).format(SPARK_WIDTH, SPARK_HEIGHT, SPARK_WIDTH, SPARK_HEIGHT, f"{title}: {totals}", Markup("").join(drawn))


def histogram(chart: str, title: str, heads: tuple[str, str], labels: Sequence[str], counts: Sequence[int]) -> Markup:
    """Return how many there were in each bucket, from the first that has one to the last. ``heads``: of the table's two columns."""
    used = [number for number, value in enumerate(counts) if value]
    first, last = (used[0], used[-1]) if used else (0, 0)
    shown = range(first, last + 1) if used else range(0)
    top = _ceiling(max((counts[number] for number in shown), default=0))
    width = WIDTH / max(len(shown), 1)
    bars = [
        _bar(
            "plain",
            place * width + width * GAP / 2,
            HEIGHT * (1 - counts[number] / top),
            width * (1 - GAP),
            HEIGHT * counts[number] / top,
            f"{labels[number]}: {_count(counts[number])}",
        )
        for place, number in enumerate(shown)
        if counts[number]
    ]
    words = f"{_count(sum(counts))} in all" + (f", from {labels[first]} to {labels[last]}" if used else "")
    svg = _drawing(chart, title, f"{words}.", Markup("").join(bars))
    axis = Markup("").join(
        Markup("<span>{}</span>").format(labels[number]) for number in ([first, last] if last > first else [first])
    )
    rows = [(escape(labels[number]), [_count(counts[number])]) for number in shown]
    plot = _plot(svg, _count(top) if used else "", axis if used else Markup("<span>None.</span>"))
    return _whole(chart, title, plot, Markup(""), heads, rows)


def _drawing(chart: str, title: str, description: str, inside: Markup) -> Markup:
    return Markup(
        '<svg viewBox="0 0 {w} {h}" preserveAspectRatio="none" role="img" aria-labelledby="{id}-t {id}-d" focusable="false">'
        '<title id="{id}-t">{title}</title><desc id="{id}-d">{description}</desc>'
        '<path class="grid" d="M0 0.5H{w}M0 {half}H{w}M0 {floor}H{w}" vector-effect="non-scaling-stroke"/>{inside}</svg>'
    ).format(
        w=WIDTH,
        h=HEIGHT,
        half=HEIGHT / 2,
        floor=HEIGHT - 0.5,
        id=chart,
        title=title,
        description=description,
        inside=inside,
    )


def _bar(kind: str, x: float, y: float, width: float, height: float, words: str) -> Markup:
    return Markup('<rect class="bar {}" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>').format(
        f"of-{kind}", *(f"{value:.2f}" for value in (x, y, width, height)), words
    )


def _path(kind: str, points: Sequence[tuple[float, float] | None], dash: float) -> Markup:
    """A line through what is known; a point that stands alone is a short dash, as a line of one point is not seen."""
    parts: list[str] = []
    for number, point in enumerate(points):
        if point is None:
            continue
        x, y = point
        is_begun = number > 0 and points[number - 1] is not None
        goes_on = number + 1 < len(points) and points[number + 1] is not None
        if is_begun:
            parts.append(f"L{x:.2f} {y:.2f}")
        elif goes_on:
            parts.append(f"M{x:.2f} {y:.2f}")
        else:
            parts.append(f"M{x - dash:.2f} {y:.2f}H{x + dash:.2f}")
    return Markup('<path class="line {}" d="{}" vector-effect="non-scaling-stroke"/>').format(
        f"of-{kind}", "".join(parts)
    )


def _figure(
    chart: str,
    title: str,
    svg: Markup,
    series: Sequence[Series],
    times: Sequence[datetime],
    top: str,
    words: Callable[[float], str],
) -> Markup:
    legend = Markup("").join(
        Markup('<li><span class="swatch {}" aria-hidden="true"></span>{}</li>').format(f"of-{one.kind}", one.name)
        for one in series
    )
    marked = [times[0], times[len(times) // 2], times[-1]] if times else []
    is_day = bool(times) and times[-1] - times[0] < timedelta(days=1)
    axis = Markup("").join(_moment(at, is_short=is_day) for at in marked)
    rows = [
        (
            _moment(at, is_short=False),
            ["\N{EN DASH}" if one.values[n] is None else words(one.values[n] or 0) for one in series],
        )
        for n, at in enumerate(times)
        if any(one.values[n] for one in series)
    ]
    heads = ("From", *(one.name for one in series))
    return _whole(chart, title, _plot(svg, top, axis), Markup('<ul class="legend">{}</ul>').format(legend), heads, rows)


def _plot(svg: Markup, top: str, axis: Markup) -> Markup:
    return Markup(
        '<div class="plot"><span class="top-of" aria-hidden="true">{}</span>{}<div class="axis" aria-hidden="true">{}</div></div>'
    ).format(top, svg, axis)


def _whole(
    chart: str,
    title: str,
    plot: Markup,
    legend: Markup,
    heads: Sequence[str],
    rows: Sequence[tuple[Markup, Sequence[str]]],
) -> Markup:
    head = Markup("").join(
        Markup('<th scope="col"{}>{}</th>').format(Markup(' class="num"') if number else "", text)
        for number, text in enumerate(heads)
    )
    body = Markup("").join(
        Markup('<tr><th scope="row">{}</th>{}</tr>').format(
            first, Markup("").join(Markup('<td class="num">{}</td>').format(value) for value in rest)
        )
        for first, rest in rows
    )
    table = Markup(
        '<div class="scroll" tabindex="0" role="group" aria-label="{}">'
        '<table><caption class="unseen">{}</caption><thead><tr>{}</tr></thead>'
        "<tbody>{}</tbody></table></div>"
    ).format(f"{title}, as a table", title, head, body)
    twin = table if rows else Markup('<p class="quiet">Nothing was counted.</p>')
    return Markup(
        '<figure class="chart" id="{}"><figcaption>{}</figcaption>{}{}<details class="fold"><summary>As a table<span class="unseen">: {}'
        "</span></summary>{}</details></figure>"
    ).format(chart, title, legend, plot, title, twin)


def _ceiling(highest: float) -> float:
    """The next round number, so that the scale can be read."""
    if highest <= 1:
        return 1
    power = 10 ** math.floor(math.log10(highest))
    return float(next(factor * power for factor in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if factor * power >= highest))


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _clock(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def _span(times: Sequence[datetime]) -> str:
    return f"From {_clock(times[0])} to {_clock(times[-1])}" if times else "No time"


def _moment(at: datetime, *, is_short: bool) -> Markup:
    """A time that scripts turn into local time, as ``rendering.at`` does."""
    stamp = at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    text = at.astimezone(UTC).strftime("%H:%M:%S" if is_short else "%Y-%m-%d %H:%M:%S")
    return Markup('<time datetime="{}" data-style="{}">{} UTC</time>').format(
        stamp, "time" if is_short else "full", text
    )
