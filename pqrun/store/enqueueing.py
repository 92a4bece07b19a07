"""Insert or find: validated jobs become rows, or the ids of the active jobs that hold their keys.

The insert skips what meets an active key; a second statement, with a new snapshot, finds those; a key that became free in between is
inserted in the next round. So an id that is returned has committed, or is the caller's own, and no existing row is ever locked.
"""

from collections.abc import Sequence
from typing import Protocol

from asyncpg import Record

from pqrun.job.record import Enqueued, NewJob

__all__ = ["BATCH_ROWS", "Runs", "insert_or_find"]

BATCH_ROWS = 5_000
"""Rows per statement: few round trips, yet no message of unbounded size."""


class Runs(Protocol):
    """Something that runs named statements: a session."""

    async def run(self, name: str, *arguments: object, timeout: float | None = None) -> list[Record]:
        """Run the statement and return its rows."""
        ...


def _columns(jobs: Sequence[NewJob]) -> tuple[list[object], ...]:
    return (
        [j.job_type for j in jobs],
        [j.payload for j in jobs],
        [j.queue for j in jobs],
        [j.priority for j in jobs],
        [j.max_attempts for j in jobs],
        [j.timeout_seconds for j in jobs],
        [j.dedupe_key for j in jobs],
        [j.run_after for j in jobs],
        [j.delay_seconds for j in jobs],
        [None if j.backoff_seconds is None else "{" + ",".join(map(repr, j.backoff_seconds)) + "}" for j in jobs],
    )


async def insert_or_find(session: Runs, jobs: Sequence[NewJob], *, notify: bool = True) -> list[Enqueued]:
    """Return one Enqueued per job, in order; of equal keys in the batch one is created, and all get its id."""
    found: list[Enqueued | None] = [None] * len(jobs)
    for start in range(0, len(jobs), BATCH_ROWS):
        pending = list(range(start, min(start + BATCH_ROWS, len(jobs))))
        while pending:
            for row in await session.run("enqueue", *_columns([jobs[i] for i in pending]), notify):
                found[pending[row["position"] - 1]] = Enqueued(row["id"], created=True)
            pending = [i for i in pending if found[i] is None]
            if not pending:
                break
            keys = [jobs[i].job_type for i in pending], [jobs[i].dedupe_key for i in pending]
            for row in await session.run("find_active", *keys):
                found[pending[row["position"] - 1]] = Enqueued(row["id"], created=False)
            pending = [i for i in pending if found[i] is None]
    return [enqueued for enqueued in found if enqueued is not None]
