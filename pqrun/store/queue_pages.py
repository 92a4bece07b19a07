"""What the page of one queue reads: how old its waiting jobs are, and what runs of it. See ``pqrun.store.pages``."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from pqrun.store.enqueueing import Runs

__all__ = ["AGES_LOOKED", "RunningIn", "list_running_in", "see_ages"]

AGES_LOOKED: Final = 20_000
"""READY jobs whose age is looked at: some 10 ms."""

RUNNING_LOOKED: Final = 10_000
RUNNING_SHOWN: Final = 100


class RunningIn(NamedTuple):
    """A job of a queue that a worker runs."""

    id: int
    job_type: str
    queue: str
    attempts: int
    max_attempts: int
    locked_at: datetime
    timeout_seconds: float | None
    cancel_requested_at: datetime | None
    worker: int | None
    """The number of the worker in the registry; None for a row that somebody wrote by hand."""
    locked_by: str


async def see_ages(session: Runs, queue: str, bounds: Sequence[float]) -> list[int]:
    """Count the first 20,000 READY jobs of a queue by how long they have been due: up to each bound, in seconds, and above the last."""
    counts = [0] * (len(bounds) + 1)
    for row in await session.run("see_ages", queue, list(bounds), AGES_LOOKED):
        counts[row["bucket"]] = row["jobs"]
    return counts


async def list_running_in(session: Runs, queue: str) -> list[RunningIn]:
    """Return what workers run of a queue, the longest first, at most 100, of 10,000 running jobs that are looked at."""
    rows = await session.run("list_running_in", queue, RUNNING_LOOKED, RUNNING_SHOWN)
    return [RunningIn(*(row[name] for name in RunningIn._fields)) for row in rows]
