"""``JobFilter``: which jobs are meant, as one checked value; ``store/sql/page_jobs.sql`` says the same in SQL."""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NoReturn

from pqrun.errors import ArgumentsError, OptionError, PayloadError
from pqrun.job.dedupe import stored_key
from pqrun.job.options import check_job_id, check_job_type, check_priority, check_queue
from pqrun.job.record import JsonValue
from pqrun.job.state import Status
from pqrun.job.storable import check_text, dump_object

__all__ = ["JobFilter", "checked_time"]

TIMES: Final = ("created_after", "created_before", "finished_after", "finished_before", "due_after", "due_before")
_ATTEMPTS: Final = range(2**31)


@dataclass(frozen=True, kw_only=True, slots=True)
class JobFilter:
    """Which jobs are meant: those for which everything holds that is given; without anything, all.

    Checked when it is made; raises OptionError, which names the field. ``repr`` shows neither ``payload`` nor ``error_contains``.
    Instants are aware datetimes, or a timedelta for so long ago by the database's clock; ``…_after`` includes its instant,
    ``…_before`` does not.
    """

    statuses: Collection[Status] | None = None
    """In one of these states."""
    job_types: Collection[str] | None = None
    job_type_patterns: Collection[str] | None = None
    """Names of tasks in which ``*`` stands for any text; beside ``job_types`` it is enough that one of the two holds."""
    queues: Collection[str] | None = None
    ids: Collection[int] | None = None
    """Of these, those that match; to hear of each id whether it was there, select the ids themselves."""
    priorities: Collection[int] | None = None
    dedupe_keys: Collection[str] | None = None
    """Finished keys, as ``store.enqueue`` takes them."""
    workers: Collection[str] | None = None
    """``locked_by``: the names of the workers that run it, or ran it, where it is DONE. Others have none."""
    attempts_min: int | None = None
    """Has started at least so often."""
    attempts_max: int | None = None
    """Has started at most so often."""
    error_contains: str | None = field(default=None, repr=False)
    """A part of ``last_error``, in upper or lower case."""
    payload: Mapping[str, JsonValue] | None = field(default=None, repr=False)
    """The payload has these keys with these values; of an object or array in it, at least what is given here."""
    created_after: datetime | timedelta | None = None
    created_before: datetime | timedelta | None = None
    finished_after: datetime | timedelta | None = None
    finished_before: datetime | timedelta | None = None
    due_after: datetime | timedelta | None = None
    """``run_after``: when it may start, or might have."""
    due_before: datetime | timedelta | None = None

    def __post_init__(self) -> None:
        self._check("statuses", Status, "members of Status")
        self._check("job_types", check_job_type, "names of tasks")
        self._check("job_type_patterns", _check_pattern, "names of tasks with *")
        self._check("queues", check_queue, "names of queues")
        self._check("ids", check_job_id, "ids of jobs")
        self._check("priorities", check_priority, "whole numbers")
        self._check("dedupe_keys", stored_key, "keys")
        self._check("workers", _check_worker, "names of workers")
        for name in ("attempts_min", "attempts_max"):
            _check_attempts(name, getattr(self, name))
        if self.error_contains is not None:
            _check_error(self.error_contains)
        if self.payload is not None:
            _check_payload(self.payload)
        for name in TIMES:
            object.__setattr__(self, name, checked_time(name, getattr(self, name)))

    @property
    def is_empty(self) -> bool:
        """Whether it means all jobs."""
        return all(getattr(self, one.name) is None for one in fields(self))

    @property
    def payload_json(self) -> str | None:
        """What the payload must contain, as JSON text."""
        return None if self.payload is None else dump_object(self.payload, "payload")

    def time(self, name: str, now: datetime) -> datetime | None:
        """Return one of the instants, where ``now`` is what the database's clock shows."""
        value = getattr(self, name)
        if not isinstance(value, timedelta):
            return value if value is None else _as_instant(name, value)
        try:
            return now - value
        except OverflowError:
            return datetime(1, 1, 2, tzinfo=UTC)

    def _check(self, name: str, check: Callable[[Any], Any], expected: str) -> None:
        value: object = getattr(self, name)
        if value is None:
            return
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Collection):
            _refuse(name, f"a collection of {expected}", type(value).__name__)
        if not value:
            _refuse(name, f"{expected}, at least one, or None for any", "none")
        try:
            # In a fixed order, each once.
            object.__setattr__(self, name, tuple(sorted({check(item) for item in value})))
        except (ArgumentsError, OptionError) as error:
            reason = str(error).partition(": ")[2] if isinstance(error, OptionError) else str(error)
        except (TypeError, ValueError):
            reason = f"expected {expected}; got something else"
        else:
            return
        raise OptionError(f"{name}: {reason}")


def _check_pattern(name: object) -> str:
    pattern = check_job_type(name)
    if "*" not in pattern:
        raise ValueError
    return pattern


def _check_worker(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise TypeError
    return check_text(name, "workers")


def _check_attempts(name: str, value: object) -> None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value in _ATTEMPTS):
        return
    _refuse(name, "a whole number from 0, or None for any", type(value).__name__)


def _check_error(text: object) -> None:
    if not isinstance(text, str) or not text:
        _refuse("error_contains", "text of at least one character", type(text).__name__)
    try:
        check_text(text, "error_contains")
    except PayloadError:
        reason = "one that PostgreSQL cannot store"
    else:
        return
    _refuse("error_contains", "text", reason)


def _check_payload(payload: object) -> None:
    if not isinstance(payload, Mapping) or not payload:
        _refuse("payload", "a mapping with at least one key", type(payload).__name__)
    try:
        json.loads(dump_object(payload, "payload"))
    except PayloadError as error:
        reason = str(error)
    else:
        return
    raise OptionError(f"payload: {reason}")


def checked_time(name: str, value: object) -> datetime | timedelta | None:
    """Return an aware datetime, or a timedelta of so long ago, as it is, and None for none; raises OptionError, naming the option."""
    if value is None or isinstance(value, timedelta):
        if value is not None and value < timedelta(0):
            _refuse(name, "a timedelta of 0 or more: so long ago", str(value))
        return value
    if not isinstance(value, datetime):
        _refuse(name, "a datetime with a time zone, or a timedelta: so long ago", type(value).__name__)
    if value.utcoffset() is None:
        _refuse(name, "a datetime with a time zone, such as datetime.now(UTC)", "one without (a naive datetime)")
    return _as_instant(name, value)


def _as_instant(name: str, value: datetime) -> datetime:
    """In UTC, within what the driver does not take for infinite."""
    try:
        instant = value.astimezone(UTC)
    except OverflowError:
        _refuse(name, "an instant of the years 1 to 9999", "another")
    return min(max(instant, datetime(1, 1, 2, tzinfo=UTC)), datetime(9999, 12, 30, tzinfo=UTC))


def _refuse(name: str, expected: str, came: str) -> NoReturn:
    raise OptionError(f"{name}: expected {expected}; got {came}")
