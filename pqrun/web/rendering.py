"""The templates and what they say of times, durations and numbers. Everything is escaped; nothing is marked safe but what is made here."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from pqrun.job.state import Status
from pqrun.job.storable import one_line

__all__ = ["JOB_COLUMNS", "environment"]

ICONS: Final[Mapping[str, str]] = {
    "SCHEDULED": "◷",
    "READY": "○",
    "RUNNING": "▶",
    "DONE": "✓",
    "FAILED": "✕",
    "CANCELLED": "⊘",
    "COUNTING": "…",
    "COUNTED": "?",
    "STOPPED": "■",
    "alive": "●",
    "silent": "◌",
    "dead": "✕",
    "draining": "■",
    "claims nothing": "‖",
    "active": "▶",
    "paused": "‖",
    "orphaned": "⊘",
    "ok": "✓",
    "warning": "!",
    "problem": "✕",
}

JOB_COLUMNS: Final[Mapping[str, str]] = {
    "state": "State",
    "task": "Task",
    "queue": "Queue",
    "priority": "Priority",
    "attempts": "Attempts",
    "age": "Age",
    "due": "Due",
    "ended": "Ended",
    "took": "Took",
    "worker": "Worker",
    "key": "Dedupe key",
    "what": "What happened",
}
"""What a list may show of each job, by the name in the URL."""

NOTHING: Final = "\N{EN DASH}"

_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))


def environment(functions: Mapping[str, object]) -> Environment:
    """Return the templates, compiled when they are first used. ``functions``: what else they may use, by name."""
    made = Environment(
        loader=PackageLoader("pqrun.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= {
        "at": at,
        "ago": ago,
        "span": span,
        "ms": milliseconds,
        "percent": percent,
        "count": count,
        "size": size,
        "badge": badge,
        "line": one_line,
        "json_text": json_text,
        "hours": hours,
    }
    made.globals["job_columns"] = JOB_COLUMNS
    made.globals |= functions
    return made


def at(moment: datetime | None, style: str = "full") -> Markup:
    """Return a time as an element that scripts turn into local time, or back; ``style``: full, or time alone."""
    if moment is None:
        return escape(NOTHING)
    instant = moment.astimezone(UTC)
    form = "%Y-%m-%d %H:%M:%S" if style == "full" else "%H:%M:%S"
    stamp = instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return Markup('<time datetime="{}" data-style="{}">{} UTC</time>').format(stamp, style, instant.strftime(form))


def ago(moment: datetime | None, now: datetime) -> Markup:
    """Return how long ago, or in how long, with the time itself as a title and for scripts."""
    if moment is None:
        return escape(NOTHING)
    seconds = (now - moment).total_seconds()
    text = f"{span(abs(seconds))} ago" if seconds >= 1 else f"in {span(-seconds)}" if seconds <= -1 else "now"
    instant = moment.astimezone(UTC)
    stamp = instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    title = instant.strftime("%Y-%m-%d %H:%M:%S UTC")
    return Markup('<time datetime="{}" data-style="ago" title="{}">{}</time>').format(stamp, title, text)


def span(value: timedelta | float | None) -> str:
    """Return a duration in its two largest units: ``3 h 5 min``, ``12 s``, ``340 ms``."""
    if value is None:
        return NOTHING
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    whole = int(seconds)
    for place, (size_of, unit) in enumerate(_UNITS):
        if whole >= size_of:
            rest = whole % size_of
            below, name = _UNITS[place + 1] if place + 1 < len(_UNITS) else (1, "s")
            part = rest // below
            return f"{whole // size_of} {unit}" + (f" {part} {name}" if part else "")
    return f"{whole} s"


def milliseconds(value: float | None) -> str:
    """Return a duration that is given in milliseconds."""
    return span(None if value is None else value / 1000)


def percent(share: float | None) -> str:
    """Return a share as a whole percentage; one that is not whole never reads as 100 or 0."""
    if share is None:
        return NOTHING
    rounded = round(share * 100)
    if rounded == 100 and share < 1:
        return "> 99 %"
    return "< 1 %" if rounded == 0 and share > 0 else f"{rounded} %"


def count(value: float) -> str:
    """Return a number with commas."""
    return f"{value:,}"


def size(value: float) -> str:
    """Return bytes in the unit that fits."""
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if value >= 10 or unit == "B" else f"{value:.1f} {unit}"


def badge(state: Status | str) -> Markup:
    """Return a state as text with a sign, told apart without colour."""
    name = str(state)
    return Markup('<span class="badge {}"><span aria-hidden="true">{}</span> {}</span>').format(
        f"is-{name.lower().replace(' ', '-')}", ICONS.get(name, "•"), name.lower()
    )


BARS: Final = "▁▂▃▄▅▆▇█"


def hours(counts: Sequence[int | None]) -> Markup:
    """Return numbers by hour as bars, the present hour last, with the same in words; None: unknown."""
    known = [number for number in counts if number is not None]
    most = max(known, default=0)
    bars = "".join(
        "·" if number is None else BARS[-(-number * (len(BARS) - 1) // most)] if number else BARS[0]
        for number in counts
    )
    since = "" if len(known) == len(counts) else f" in the last {len(known)} hours"
    words = f"{sum(known):,}{since}" + (f", {most:,} in one hour at most" if most < sum(known) else "")
    return Markup('<span class="hours" aria-hidden="true">{}</span> <small class="quiet">{}</small>').format(
        bars, words
    )


def json_text(value: object) -> str:
    """Return a value as JSON in one line."""
    return json.dumps(value, ensure_ascii=False, default=str)
