"""The workers: who they are, what runs longest in them, what is wanted of them from outside, and what they answer.

What is wanted is written into the registry, where each finds it with its next beat.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec

from pqrun.job.explaining import BEAT_SECONDS
from pqrun.job.registered import RegisteredWorker
from pqrun.store.enqueueing import Runs
from pqrun.store.rows import Row

__all__ = ["LongRunning", "Told", "find_longest", "find_stacks", "list_workers", "want"]

WORKERS_MOST: Final = 1_000
RUNNING_LOOKED_AT: Final = 10_000
JSON_COLUMNS: Final = ("slots", "wanted")  # which cross as text


class LongRunning(msgspec.Struct, frozen=True, kw_only=True):
    """A job that runs, without its payload."""

    id: int
    job_type: str
    queue: str
    attempts: int
    max_attempts: int
    locked_by: str | None
    timeout_seconds: float | None
    running_seconds: float
    """Since it was claimed."""


class Told(NamedTuple):
    """A worker that something was written for, and when, by the database's clock."""

    worker: int
    asked_at: datetime


async def list_workers(session: Runs) -> list[RegisteredWorker]:
    """Return the registered workers, living ones first, at most 1,000."""
    rows = await session.run("list_workers", BEAT_SECONDS, WORKERS_MOST)
    return [
        RegisteredWorker(**{name: _value(row, name) for name in RegisteredWorker.__struct_fields__}) for row in rows
    ]


def _value(row: Row, name: str) -> Any:  # noqa: ANN401  # a column of any type
    return msgspec.json.decode(row[name] or "{}") if name in JSON_COLUMNS else row[name]


async def find_longest(session: Runs, limit: int) -> tuple[datetime, list[LongRunning]]:
    """Return the database's clock, and the jobs that have run longest, the longest first."""
    rows = await session.run("find_longest", RUNNING_LOOKED_AT, limit)
    names = LongRunning.__struct_fields__
    return rows[0]["now"], [LongRunning(**{name: row[name] for name in names}) for row in rows if row["id"] is not None]


async def want(session: Runs, workers: Sequence[int], wanted: str) -> list[Told]:
    """Write what is wanted of these workers; return those that still live."""
    return [Told(row["id"], row["asked_at"]) for row in await session.run("want", list(workers), wanted)]


async def find_stacks(session: Runs, workers: Sequence[int], since: datetime) -> dict[int, tuple[datetime, str]]:
    """Return the answers that came since then: when, and the stacks."""
    rows = await session.run("find_stacks", list(workers), since)
    return {row["id"]: (row["stacks_at"], row["stacks"]) for row in rows}
