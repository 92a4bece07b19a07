"""Recovery and retention: what the reaper and the pruner do, in pieces, each in one transaction with the settle that ends it."""

from collections.abc import Callable
from typing import NamedTuple

from asyncpg import Record

from pqrun.job.outcome import Counts, Failed, Outcome, Recovered, Retrying, decide_lost
from pqrun.job.record import Claim
from pqrun.store.enqueueing import Runs
from pqrun.store.link import Link
from pqrun.store.settling import Settled, settle

__all__ = [
    "GRAVE_SECONDS",
    "Overdue",
    "Pruned",
    "Reaped",
    "find_unserved",
    "forget_workers",
    "prune",
    "prune_audit",
    "reap_lost",
    "reap_orphans",
    "reap_overdue",
]

REAP_ROWS = 500
"""Rows that one recovery writes."""

PIECE_SECONDS = 10.0
"""A recovery that takes longer is given up: its connection may be dead, and dead workers' jobs wait for it."""

PRUNE_ROWS = 1_000
"""Rows that one statement of retention deletes: some milliseconds, and no long transaction."""

GRAVE_SECONDS = 60.0
"""How long a dead worker's row is kept after its last job was recovered."""


UNSERVED_ROWS = 200
"""READY rows of each lane looked at when asking what nobody serves."""

UNSERVED_LANES = 500
"""Lanes looked at then."""


class Reaped(NamedTuple):
    """A job taken back: what was decided, what was written, and whose it was."""

    job_type: str
    worker_id: str
    outcome: Recovered | Failed | Retrying
    settled: Settled
    queue: str


class Overdue(NamedTuple):
    """A running job far beyond its timeout, on its way to a decision."""

    claim: Claim
    counts: Counts
    timeout_seconds: float
    backoff_seconds: tuple[float, ...] | None
    job_type: str


class Pruned(NamedTuple):
    """A piece of retention: whether it was this worker's turn, and how many rows went."""

    is_mine: bool
    deleted: int


def _claim(row: Record) -> Claim:
    return Claim(row["id"], row["claim_id"])


def _counts(row: Record) -> Counts:
    return Counts(row["attempts"], row["max_attempts"], row["lost"], row["releases"])


def _decide_lost(row: Record) -> Recovered | Failed:
    return decide_lost(_claim(row), _counts(row), worker=row["worker_id"])


async def _reap(
    link: Link, find: str, arguments: tuple[object, ...], decide: Callable[[Record], Recovered | Failed | Retrying]
) -> list[Reaped]:
    async with link.transaction() as session:
        rows = await session.run(find, *arguments, timeout=PIECE_SECONDS)
        decided = {row["id"]: (row, decide(row)) for row in rows}
        if not decided:
            return []
        outcomes: list[Outcome] = [outcome for _, outcome in decided.values()]
        written = await settle(session, outcomes)
    return [
        Reaped(
            decided[s.claim.job_id][0]["job_type"],
            decided[s.claim.job_id][0]["worker_id"],
            decided[s.claim.job_id][1],
            s,
            decided[s.claim.job_id][0]["queue"],
        )
        for s in written
    ]


async def reap_lost(link: Link) -> list[Reaped]:
    """Take back up to REAP_ROWS jobs of dead workers."""
    return await _reap(link, "find_lost", (REAP_ROWS,), _decide_lost)


async def reap_orphans(link: Link, *, stale_seconds: float, margin_seconds: float) -> list[Reaped]:
    """Take back RUNNING rows that belong to no registered worker, once they are old enough."""
    return await _reap(link, "find_orphans", (stale_seconds, margin_seconds, REAP_ROWS), _decide_lost)


async def reap_overdue(
    link: Link, *, margin_seconds: float, decide: Callable[[Overdue], Retrying | Failed]
) -> list[Reaped]:
    """Time out jobs whose living worker cannot: ``decide`` gives the same outcome that the worker would have."""

    def decide_row(row: Record) -> Retrying | Failed:
        backoff = row["backoff_seconds"]
        delays = None if backoff is None else tuple(backoff)
        return decide(Overdue(_claim(row), _counts(row), row["timeout_seconds"], delays, row["job_type"]))

    return await _reap(link, "find_overdue", (margin_seconds, REAP_ROWS), decide_row)


async def forget_workers(link: Link) -> list[int]:
    """Remove rows of dead workers that hold nothing any more."""
    return [row["id"] for row in await link.run("forget_workers", GRAVE_SECONDS)]


async def prune(link: Link, *, age_seconds: float) -> Pruned:
    """Delete one piece of finished jobs older than ``age_seconds``."""
    rows = await link.run("prune", age_seconds, PRUNE_ROWS)
    return Pruned(rows[0]["is_mine"], rows[0]["deleted"])


async def prune_audit(link: Link, *, age_seconds: float) -> Pruned:
    """Delete one piece of the audit log and of ended operations older than ``age_seconds``."""
    rows = await link.run("prune_audit", age_seconds, PRUNE_ROWS)
    return Pruned(rows[0]["is_mine"], rows[0]["deleted"])


async def find_unserved(session: Runs) -> list[tuple[str, str]]:
    """Return (queue, job_type) pairs among the first waiting rows that no living worker serves."""
    return [
        (row["queue"], row["job_type"]) for row in await session.run("find_unserved", UNSERVED_ROWS, UNSERVED_LANES)
    ]
