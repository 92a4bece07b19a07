"""Times and durations as people write them: ``90s``, ``15m``, ``2h``, ``7d``, ``1w``, an instant with its zone, or a date."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

__all__ = ["TIME_EXPECTED", "brief", "duration", "duration_text", "time_ago", "time_text"]

TIME_EXPECTED: Final = (
    "90s, 15m, 2h, 7d or 1w ago, a date (its start in UTC), or an instant with its zone such as 2026-01-31T12:00:00Z"
)
"""What ``time_ago`` reads, for messages."""

_DURATION: Final = re.compile(r"(\d{1,15})(?:\.(\d{1,6}))?(s|m|h|d|w)", re.ASCII)
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_UNITS: Final = {
    "w": timedelta(weeks=1),
    "d": timedelta(days=1),
    "h": timedelta(hours=1),
    "m": timedelta(minutes=1),
    "s": timedelta(seconds=1),
}


def duration(text: str) -> timedelta | None:
    """Return how long ``90s``, ``1.5h`` or ``7d`` is, exactly; None for what is no duration, or too long for a timedelta."""
    found = _DURATION.fullmatch(text)
    if found is None:
        return None
    unit, fraction = _UNITS[found[3]], found[2] or ""
    try:
        return int(found[1]) * unit + int(fraction or 0) * unit // int("1" + "0" * len(fraction))
    except OverflowError:
        return None


def duration_text(value: timedelta) -> str:
    """Return what ``duration`` reads as this, in the largest unit that divides it; it must not be negative."""
    for letter, unit in _UNITS.items():
        if value and not value % unit:
            return f"{value // unit}{letter}"
    seconds, rest = divmod(value, timedelta(seconds=1))
    fraction = f".{rest.microseconds:06}".rstrip("0") if rest else ""
    return f"{seconds}{fraction}s"


def time_ago(text: str) -> datetime | timedelta | None:
    """Return so long ago, or the instant; None for what is neither. An instant needs its zone; a date alone is its start in UTC."""
    ago = duration(text)
    if ago is not None:
        return ago
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        return None
    if _DATE.fullmatch(text):
        return instant.replace(tzinfo=UTC)
    return None if instant.utcoffset() is None else instant


def time_text(value: datetime | timedelta) -> str:
    """Return what ``time_ago`` reads as this."""
    if isinstance(value, timedelta):
        return duration_text(value)
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z")


def brief(seconds: float) -> str:
    """Return a span for people, in its two largest units: ``0.25s``, ``12s``, ``4m 10s``, ``3h 20m``, ``5d 2h``."""
    if seconds < 10:
        return f"{seconds:.2g}s" if seconds >= 0.01 else "0s"
    whole = int(seconds)
    days, hours, minutes = whole // 86_400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days}d {hours}h"
    if hours:
        return f"{hours}h {minutes}m"
    return f"{minutes}m {whole % 60}s" if minutes else f"{whole}s"
