"""How far a handler has come: the report that it makes, and the one that is read."""

from datetime import datetime, timedelta
from typing import Final

import msgspec

from pqrun.errors import OptionError
from pqrun.job.storable import unstorable_reason

__all__ = ["MESSAGE_MAX", "Progress", "Report", "check_every", "check_report"]

MESSAGE_MAX: Final = 500
"""Characters of a message that are kept."""

EVERY_LEAST_SECONDS: Final = 0.05
"""The shortest pause between two looks: reports are written once a second."""


class Progress(msgspec.Struct, frozen=True):
    """The last report of a job, as it is stored."""

    value: float
    """From 0 to 1."""
    message: str | None
    """What the handler said with it, at most 500 characters."""
    attempt: int
    """The start that reported, from 1: an earlier one than the present, until that reports itself."""
    reported_at: datetime
    """When it was written, by the database's clock: up to a second after it was made."""


class Report(msgspec.Struct, frozen=True, gc=False):
    """A report on its way into the database."""

    value: float
    message: str | None


def check_report(value: object, message: object = None) -> Report:
    """Return the report, its message cut to MESSAGE_MAX characters; raises OptionError that names ``value`` or ``message``."""
    # Not: NaN compares with nothing. The exact types first: this is called as often as a handler likes.
    if not (
        (type(value) is float or (isinstance(value, int | float) and not isinstance(value, bool))) and 0 <= value <= 1
    ):
        raise OptionError(f"value: expected a number from 0 to 1; got {value!r}")
    if message is None:
        return Report(float(value), None)
    if not isinstance(message, str):
        raise OptionError(f"message: expected text or None; got {type(message).__name__}")
    if len(message) > MESSAGE_MAX:
        message = f"{message[: MESSAGE_MAX - 1]}…"
    if (reason := unstorable_reason(message)) is not None:
        raise OptionError(f"message: {reason} cannot be stored in PostgreSQL; leave it out, or escape it")
    return Report(float(value), message)


def check_every(every: object) -> float:
    """Return the seconds between two looks; raises OptionError that names ``every``."""
    seconds = every.total_seconds() if isinstance(every, timedelta) else every
    if (
        isinstance(seconds, bool)
        or not isinstance(seconds, int | float)
        or not EVERY_LEAST_SECONDS <= seconds < float("inf")
    ):
        raise OptionError(f"every: expected seconds or a timedelta, {EVERY_LEAST_SECONDS:g} s or more; got {every!r}")
    return float(seconds)
