"""The registry of worker processes: register, beat, observe, bury."""

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from pqrun.job.pause import NO_PAUSES, Pauses
from pqrun.job.serving import Serving
from pqrun.store.enqueueing import Runs

__all__ = [
    "Beat",
    "Beats",
    "beat",
    "bury",
    "deregister",
    "hold_lock",
    "probe_locks",
    "register",
    "serve",
    "tell_stacks",
]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

EVERYTHING: Final = Serving(None, 1, shared=1)

BEAT_TIMEOUT_SECONDS = 1.5
"""A beat that takes longer is a gap for the observer too, and starts its observation anew."""


class Beat(NamedTuple):
    """Another worker's row as it was read."""

    worker: int
    beat: int
    worker_id: str
    has_lock: bool


class Beats(NamedTuple):
    """The answer to a beat: whether our row still counts, everybody else's, and what is decided for workers from outside.

    ``pauses`` and ``wanted`` (JSON text, None: nothing) say something only where our row still counts.
    """

    is_registered: bool
    others: list[Beat]
    pauses: Pauses = NO_PAUSES
    wanted: str | None = None


async def register(
    session: Runs,
    worker_id: str,
    hostname: str,
    pid: int,
    *,
    serving: Serving = EVERYTHING,
    job_types: Sequence[str] = (),
    schedules: Sequence[str] = (),
    version: str | None = None,
) -> int:
    """Add a row for this process, with what it serves and declares, and its version of pqrun; return its id, which claims carry."""
    served = serving.concurrency, json.dumps(serving.slots), serving.fetching
    rows = await session.run(
        "register", worker_id, hostname, pid, serving.queues, job_types, schedules, *served, version, timeout=5.0
    )
    return int(rows[0]["id"])


async def serve(session: Runs, worker: int, serving: Serving) -> None:
    """Say what this worker serves from now on."""
    served = serving.queues, serving.concurrency, json.dumps(serving.slots), serving.fetching
    await session.run("serve", worker, *served, timeout=5.0)


async def tell_stacks(session: Runs, worker: int, text: str) -> None:
    """Write where the handlers of this worker are."""
    await session.run("tell_stacks", worker, text, timeout=5.0)


async def hold_lock(session: Runs, worker: int) -> bool:
    """Take the session lock that tells others at once when this connection dies; return whether it was free."""
    rows = await session.run("hold_lock", worker, timeout=5.0)
    return bool(rows and rows[0]["has_lock"])


async def beat(session: Runs, worker: int) -> Beats:
    """Advance our counter and read all others."""
    rows = await session.run("beat", worker, timeout=BEAT_TIMEOUT_SECONDS)
    others = [Beat(r["id"], r["beat"], r["worker_id"], r["has_lock"]) for r in rows if not r["is_self"]]
    own = next((r for r in rows if r["is_self"]), None)
    if own is None:
        return Beats(False, others)
    return Beats(True, others, _pauses(own["pauses"]), own["wanted"])


def _pauses(text: str | None) -> Pauses:
    if text is None:
        return NO_PAUSES
    # As the times of a claim are read, to the microsecond: the two are compared.
    return Pauses.of(
        (kind, name, _EPOCH + timedelta(microseconds=round(at * 1e6))) for kind, name, at in json.loads(text)
    )


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
