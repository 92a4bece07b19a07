"""What workers count per minute: rows are added and pruned by workers, and read as sums by whoever asks."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, Literal, NamedTuple, TypeAlias

from pqrun.errors import OptionError
from pqrun.job.statistics import BUCKETS, Histogram, MinuteCounts, StatisticsRow
from pqrun.store.enqueueing import Runs
from pqrun.store.rows import Row

__all__ = ["STEPS_MAX", "Minute", "StatisticsBy", "add_minutes", "prune_minutes", "read_statistics"]

PRUNE_ROWS = 5_000
"""Rows that one statement deletes: some milliseconds."""

STEPS_MAX: Final = 20_000
"""Steps of time in one question: two weeks by the minute."""

StatisticsBy: TypeAlias = Literal["queue", "task", "all"]
"""What one row of statistics is of."""


class Minute(NamedTuple):
    """What one worker has counted of one queue and task in the minute that begins at ``minute``, in seconds of the epoch."""

    minute: float
    worker: int
    queue: str
    job_type: str
    counts: MinuteCounts


async def add_minutes(session: Runs, minutes: Sequence[Minute]) -> float:
    """Add rows, in one statement, those that are there already left as they are; return the database's clock, in epoch seconds."""
    rows = await session.run(
        "add_statistics",
        [one.minute for one in minutes],
        [one.worker for one in minutes],
        [one.queue for one in minutes],
        [one.job_type for one in minutes],
        [_literal(one.counts.numbers) for one in minutes],
        [_literal(_trimmed(one.counts.run_counts)) for one in minutes],
        [_literal(_trimmed(one.counts.wait_counts)) for one in minutes],
    )
    return float(rows[0]["clock"])


async def prune_minutes(session: Runs, *, age_seconds: float) -> bool:
    """Delete a piece of what is older; return whether there may be more."""
    rows = await session.run("prune_statistics", age_seconds, PRUNE_ROWS)
    return bool(rows[0]["deleted"] >= PRUNE_ROWS)


def _literal(numbers: Sequence[int]) -> str:
    return "{" + ",".join(map(str, numbers)) + "}"


def _trimmed(counts: Sequence[int]) -> Sequence[int]:
    """Without the zeros at the end: most tasks are of one kind, fast or slow, and most rows short."""
    end = len(counts)
    while end and not counts[end - 1]:
        end -= 1
    return counts[:end]


async def read_statistics(
    session: Runs,
    since: datetime,
    until: datetime,
    *,
    step: timedelta,
    by: StatisticsBy,
    queue: str | None = None,
    job_type: str | None = None,
) -> list[StatisticsRow]:
    """Return what all workers counted; see ``PgJobStore.statistics``."""
    rows = await session.run("read_statistics", *_read_arguments(since, until, step, by, queue, job_type))
    return [_statistics_row(row) for row in rows]


def _read_arguments(
    since: datetime,
    until: datetime,
    step: timedelta,
    by: StatisticsBy,
    queue: str | None,
    job_type: str | None,
) -> tuple[object, ...]:
    """Check a question and return the arguments of read_statistics.sql; raises OptionError, naming the option."""
    _check_instant("since", since)
    _check_instant("until", until)
    if step < timedelta(minutes=1) or step % timedelta(minutes=1):
        raise OptionError("step: expected a timedelta of whole minutes, from one on; got another value")
    if (until - since) / step > STEPS_MAX:
        raise OptionError(f"step: expected at most {STEPS_MAX} steps between since and until; got more")
    if by not in ("queue", "task", "all"):
        raise OptionError(f"by: expected 'queue', 'task' or 'all'; got {by!r:.80}")
    return since, until, step.total_seconds(), by, queue, job_type


def _check_instant(option: str, value: object) -> None:
    if not isinstance(value, datetime) or value.utcoffset() is None:
        came = "one without (a naive datetime)" if isinstance(value, datetime) else type(value).__name__
        raise OptionError(f"{option}: expected a datetime with a time zone; got {came}")


def _statistics_row(row: Row) -> StatisticsRow:
    """Read a row of read_statistics.sql."""
    numbers = {name: row[name] for name in _NUMBERS}
    run = Histogram(_padded(row["run_counts"]), row["run_ms"] / 1000)
    wait = Histogram(_padded(row["wait_counts"]), row["wait_ms"] / 1000)
    return StatisticsRow(at=row["at"], key=row["key"], run=run, wait=wait, **numbers)


_NUMBERS: Final = ("started", "arrived", "done", "failed", "retrying", "snoozed", "cancelled", "lost", "released")


def _padded(counts: Sequence[int | None]) -> tuple[int, ...]:
    padded = [count or 0 for count in counts[:BUCKETS]]
    return (*padded, *[0] * (BUCKETS - len(padded)))
