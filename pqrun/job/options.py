"""The options of a job, each checked before anything is written: what passes here fits its column.

Every function returns the value in the form in which it is stored, or raises ``OptionError``, which names the option,
what was expected and what came.
"""

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final, NoReturn

import msgspec

from pqrun.errors import ArgumentsError, OptionError
from pqrun.job.storable import one_line, unstorable_reason

__all__ = [
    "DEFAULT_MAX_ATTEMPTS",
    "DEFAULT_PRIORITY",
    "DEFAULT_QUEUE",
    "HEADERS_MAX_BYTES",
    "JobOptions",
    "check_delay",
    "check_headers",
    "check_job_id",
    "check_job_type",
    "check_max_attempts",
    "check_name",
    "check_payload_version",
    "check_priority",
    "check_queue",
    "check_run_after",
    "check_timeout",
    "is_beyond_job_ids",
]

DEFAULT_QUEUE: Final = "default"
DEFAULT_PRIORITY: Final = 0
DEFAULT_MAX_ATTEMPTS: Final = 5

HEADERS_MAX_BYTES: Final = 16_384
"""They travel with every claim of the job. ``pqrun.enqueue`` knows the number too."""

_BIGINT: Final = range(-(2**63), 2**63)
_MAX_NAME_LENGTH: Final = 200
_SMALLINT: Final = range(-32_768, 32_768)
_MAX_ATTEMPTS: Final = range(1, 2**31)
_VERSION: Final = range(1, 2**31)
_MAX_TIMEOUT: Final = timedelta(days=3_650)
_MAX_DELAY: Final = timedelta(days=365_250)
# A day short of datetime.max, which the driver would store as 'infinity': every time zone can show what is below.
_LAST_RUN_AFTER: Final = datetime(9999, 12, 30, tzinfo=UTC)
# What is older is due at once all the same; datetime.min would be stored as '-infinity'.
_FIRST_RUN_AFTER: Final = datetime(1970, 1, 1, tzinfo=UTC)


class JobOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a task that are stored with each of its jobs; make it with ``checked``."""

    queue: str = DEFAULT_QUEUE
    priority: int = DEFAULT_PRIORITY
    """A smallint; higher first."""
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    """How many starts may count."""
    timeout_seconds: float | None = None
    """None: no limit."""

    @classmethod
    def checked(
        cls,
        *,
        queue: object = DEFAULT_QUEUE,
        priority: object = DEFAULT_PRIORITY,
        max_attempts: object = DEFAULT_MAX_ATTEMPTS,
        timeout: object = None,
    ) -> "JobOptions":
        """Check all four as users write them (``timeout`` in seconds or as a timedelta); raises ``OptionError``."""
        return cls(
            queue=check_queue(queue),
            priority=check_priority(priority),
            max_attempts=check_max_attempts(max_attempts),
            timeout_seconds=check_timeout(timeout),
        )


def check_job_id(value: object) -> int:
    """Check the id of a job: an int that a bigint holds; raises ``ArgumentsError``."""
    if isinstance(value, int) and not isinstance(value, bool) and value in _BIGINT:
        return value
    came = "one that no bigint holds" if isinstance(value, int) else type(value).__name__
    raise ArgumentsError(f"the id of a job is an int; got {came}")


def is_beyond_job_ids(value: object) -> bool:
    """Whether this is an int that no job can have as its id: it need not be looked for."""
    return isinstance(value, int) and value not in _BIGINT


def check_job_type(name: object) -> str:
    """Check the name of a task: text of 1 to 200 characters that PostgreSQL can store."""
    return _checked_name("job_type", name)


def check_queue(value: object) -> str:
    """Check the name of a queue: text of 1 to 200 characters that PostgreSQL can store."""
    return _checked_name("queue", value)


def check_name(value: object) -> str:
    """Check the name of an app or a schedule: text of 1 to 200 characters that PostgreSQL can store."""
    return _checked_name("name", value)


def check_priority(value: object) -> int:
    """Check a priority: a whole number that fits a smallint."""
    return _checked_int("priority", value, _SMALLINT)


def check_max_attempts(value: object) -> int:
    """Check how many starts may count: a whole number from 1 that fits an integer."""
    return _checked_int("max_attempts", value, _MAX_ATTEMPTS)


def check_payload_version(value: object, option: str = "payload_version") -> int:
    """Check the version of a payload: a whole number from 1 that fits an integer; ``option`` is what the message calls it."""
    return _checked_int(option, value, _VERSION)


def check_headers(value: object) -> str | None:
    """Check what is to travel beside a payload, a mapping of text to text, 16 KB as JSON at most, and return its JSON; None where empty."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        _refuse("headers", "a dict of text to text, or None for none", _type_of(value))
    for name, text in value.items():
        if not isinstance(name, str) or not isinstance(text, str):
            _refuse("headers", "a dict of text to text", f"one of {type(name).__name__} to {type(text).__name__}")
        reason = unstorable_reason(name) or unstorable_reason(text)
        if reason is not None:
            _refuse("headers", "text that PostgreSQL can store", f"one with {reason}")
    if not value:
        return None
    encoded = msgspec.json.encode(dict(value))
    if len(encoded) > HEADERS_MAX_BYTES:
        _refuse("headers", f"at most {HEADERS_MAX_BYTES} bytes as JSON", f"{len(encoded)}")
    return encoded.decode()


def check_timeout(value: object) -> float | None:
    """Check a timeout, in seconds or as a timedelta: above 0, ten years at most; None means no limit."""
    if value is None:
        return None
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = _as_float(value)
    else:
        _refuse("timeout", "seconds, a timedelta, or None for no limit", _type_of(value))
    if not 0 < seconds <= _MAX_TIMEOUT.total_seconds():  # false for NaN too
        _refuse("timeout", f"more than 0 and at most {_MAX_TIMEOUT.days} days, or None for no limit", _shown(value))
    return seconds


def check_run_after(value: object) -> tuple[datetime | None, float | None]:
    """Check when a job is due and return ``(instant in UTC, None)`` or ``(None, seconds from now)``.

    An instant before 1970 becomes 1970-01-01: it is due at once either way. None is due now: ``(None, None)``.
    """
    if value is None:
        return None, None
    if isinstance(value, timedelta):
        return None, check_delay(value, "run_after")
    if not isinstance(value, datetime):
        _refuse("run_after", "a datetime with a time zone, or a timedelta from now", _type_of(value))
    if value.utcoffset() is None:
        _refuse(
            "run_after",
            "a datetime with a time zone, such as datetime.now(UTC) + timedelta(hours=1)",
            "one without (a naive datetime)",
        )
    return _checked_instant(value), None


def check_delay(value: object, option: str) -> float:
    """Check a timedelta from now, from 0 to 365,250 days, and return its seconds; ``option`` is what the message calls it."""
    expected = f"a timedelta from 0 to {_MAX_DELAY.days} days"
    if not isinstance(value, timedelta):
        _refuse(option, expected, _type_of(value))
    if not timedelta(0) <= value <= _MAX_DELAY:
        _refuse(option, expected, _shown(value))
    return value.total_seconds()


def _checked_instant(value: datetime) -> datetime:
    try:
        instant = value.astimezone(UTC)
    except OverflowError:
        # An offset that leads out of Python's years: before the first of them, or after the last.
        instant = _FIRST_RUN_AFTER if value.year == 1 else _LAST_RUN_AFTER + timedelta(days=1)
    if instant > _LAST_RUN_AFTER:
        _refuse("run_after", f"an instant up to {_LAST_RUN_AFTER.date()}", "a later one")
    return max(instant, _FIRST_RUN_AFTER)


def _checked_name(option: str, value: object) -> str:
    if not isinstance(value, str):
        _refuse(option, "text", _type_of(value))
    if not 0 < len(value) <= _MAX_NAME_LENGTH:
        _refuse(option, f"text of 1 to {_MAX_NAME_LENGTH} characters", f"one of {len(value)}")
    reason = unstorable_reason(value)
    if reason is not None:
        _refuse(option, "text that PostgreSQL can store", f"one with {reason}")
    return str(value)


def _checked_int(option: str, value: object, allowed: range) -> int:
    expected = f"a whole number from {allowed.start} to {allowed.stop - 1}"
    if not isinstance(value, int) or isinstance(value, bool):
        _refuse(option, expected, _type_of(value))
    if value not in allowed:
        _refuse(option, expected, _shown(value))
    return int(value)


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _type_of(value: object) -> str:
    return f"{_shown(value)} ({type(value).__name__})" if isinstance(value, str | int | float) else type(value).__name__


def _shown(value: object) -> str:
    """Show the value of an option; the least and greatest numbers would fill pages."""
    if isinstance(value, int) and abs(value) >= 10**20:
        return "a number of more than 20 digits"
    text = one_line(str(value) if isinstance(value, timedelta) else repr(value))
    return text if len(text) <= 80 else f"{text[:80]}…"


def _refuse(option: str, expected: str, came: str) -> NoReturn:
    raise OptionError(f"{option}: expected {expected}; got {came}")
