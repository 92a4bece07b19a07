"""The registry for operators: which workers live, and what is wanted of them."""

from collections.abc import Sequence

import msgspec

from pqrun.job.worker import WorkerState
from pqrun.store.enqueueing import Runs
from pqrun.store.rows import Row

__all__ = ["find", "want"]


async def find(session: Runs) -> list[WorkerState]:
    """Read all living workers, the oldest first."""
    return [_state(row) for row in await session.run("find_workers")]


async def want(session: Runs, workers: Sequence[int], wanted: str) -> list[int]:
    """Write what is wanted of these workers; return those that still live."""
    return [row["id"] for row in await session.run("want", list(workers), wanted)]


def _state(row: Row) -> WorkerState:
    queues = row["queues"]
    return WorkerState(
        id=row["id"],
        worker_id=row["worker_id"],
        hostname=row["hostname"],
        pid=row["pid"],
        queues=None if queues is None else tuple(queues),
        concurrency=row["concurrency"],
        slots=msgspec.json.decode(row["slots"], type=dict[str, int]),
        job_types=tuple(row["job_types"]),
        running=row["running"],
        wanted=msgspec.json.decode(row["wanted"] or "{}", type=dict[str, object]),
        started_at=row["started_at"],
        beat_at=row["beat_at"],
    )
