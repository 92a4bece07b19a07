"""The registry of worker processes: register, beat, observe, bury."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pqrun.store.enqueueing import Runs

__all__ = ["Beat", "Beats", "beat", "bury", "deregister", "hold_lock", "probe_locks", "register"]

BEAT_TIMEOUT_SECONDS = 1.5
"""A beat that takes longer is a gap for the observer too, and starts its observation anew."""


class Beat(NamedTuple):
    """Another worker's row as it was read."""

    worker: int
    beat: int
    worker_id: str
    has_lock: bool


class Beats(NamedTuple):
    """The answer to a beat: whether our row still counts, and everybody else's."""

    is_registered: bool
    others: list[Beat]


async def register(
    session: Runs,
    worker_id: str,
    hostname: str,
    pid: int,
    *,
    queues: Sequence[str] | None = None,
    job_types: Sequence[str] = (),
    schedules: Sequence[str] = (),
) -> int:
    """Add a row for this process, with what it serves (queues None: all) and declares; return its id, which claims carry."""
    rows = await session.run("register", worker_id, hostname, pid, queues, job_types, schedules, timeout=5.0)
    return int(rows[0]["id"])


async def hold_lock(session: Runs, worker: int) -> bool:
    """Take the session lock that tells others at once when this connection dies; return whether it was free."""
    rows = await session.run("hold_lock", worker, timeout=5.0)
    return bool(rows and rows[0]["has_lock"])


async def beat(session: Runs, worker: int) -> Beats:
    """Advance our counter and read all others."""
    rows = await session.run("beat", worker, timeout=BEAT_TIMEOUT_SECONDS)
    others = [Beat(r["id"], r["beat"], r["worker_id"], r["has_lock"]) for r in rows if not r["is_self"]]
    return Beats(len(others) < len(rows), others)


async def probe_locks(session: Runs, workers: Sequence[int]) -> frozenset[int]:
    """Return those workers whose session lock is free."""
    rows = await session.run("probe_lock", list(workers), timeout=5.0)
    return frozenset(row["id"] for row in rows)


async def bury(session: Runs, dead: Iterable[Beat]) -> list[tuple[int, str]]:
    """Take workers for dead whose beat is still the one observed; return (id, worker_id) of those."""
    dead = list(dead)
    rows = await session.run("bury", [d.worker for d in dead], [d.beat for d in dead], timeout=5.0)
    return [(row["id"], row["worker_id"]) for row in rows]


async def deregister(session: Runs, worker: int) -> None:
    """Leave: what could not be given back is recovered as a dead worker's jobs are."""
    await session.run("deregister", worker, timeout=5.0)
