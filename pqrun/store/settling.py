"""Outcomes become writes: one statement for all of them, fenced by claim. And the question which claims still hold."""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple, assert_never

from asyncpg import Record

from pqrun.job.outcome import Cancelled, Done, Failed, Outcome, Recovered, Released, Retrying
from pqrun.job.record import Claim
from pqrun.job.state import Status
from pqrun.store.enqueueing import Runs

__all__ = ["Renewal", "Settled", "find_claim", "renew", "settle"]


class Settled(NamedTuple):
    """A write that held: the state that was written (CANCELLED where a cancel had been asked for), and when a retry is due."""

    claim: Claim
    status: Status
    due_in_seconds: float | None


class Renewal(NamedTuple):
    """Claims that still hold, and those of them that were asked to cancel."""

    held: frozenset[Claim]
    cancelled: frozenset[Claim]


class _Row(NamedTuple):
    job_id: int
    claim_id: int
    status: str
    result: str | None = None
    error: str | None = None
    duration_ms: int | None = None
    delay_seconds: float | None = None
    attempts: int = 0
    lost: int = 0
    releases: int = 0


def _row(outcome: Outcome) -> _Row:
    claim = outcome.claim
    match outcome:
        case Done():
            return _Row(*_ids(claim), Status.DONE, outcome.result, None, outcome.duration_ms)
        case Retrying():
            return _Row(*_ids(claim), Status.SCHEDULED, None, outcome.error, None, outcome.delay_seconds)
        case Failed():
            return _Row(*_ids(claim), Status.FAILED, None, outcome.error, outcome.duration_ms)
        case Released():
            attempts = 0 if outcome.counted else -1
            return _Row(*_ids(claim), Status.READY, attempts=attempts, releases=int(outcome.started))
        case Recovered():
            return _Row(*_ids(claim), Status.READY, None, outcome.error, lost=1)
        case Cancelled():
            return _Row(*_ids(claim), Status.CANCELLED, None, outcome.error, outcome.duration_ms)
        case _:
            assert_never(outcome)


def _job_id(row: _Row) -> int:
    return row.job_id


def _ids(claim: Claim) -> tuple[int, int]:
    return claim.job_id, claim.claim_id


async def settle(session: Runs, outcomes: Iterable[Outcome], *, awaited: Collection[int] = ()) -> list[Settled]:
    """Write the outcomes in one statement and return those that held; the others' claims were lost before."""
    rows = sorted(map(_row, outcomes), key=_job_id)
    if not rows:
        return []
    columns = [list(column) for column in zip(*rows, strict=True)]
    written: list[Record] = await session.run("settle", *columns, list(awaited))
    return [Settled(Claim(r["id"], r["claim_id"]), Status(r["status"]), r["due_in_seconds"]) for r in written]


async def renew(session: Runs, claims: Sequence[Claim]) -> Renewal:
    """Ask which claims still hold; writes nothing."""
    rows = await session.run("renew", [c.job_id for c in claims], [c.claim_id for c in claims], timeout=5.0)
    return Renewal(
        frozenset(Claim(row["id"], row["claim_id"]) for row in rows),
        frozenset(Claim(row["id"], row["claim_id"]) for row in rows if row["is_cancelled"]),
    )


async def find_claim(session: Runs, claim: Claim) -> Status | None:
    """Return the state that this very claim finished its job with, if it did."""
    rows = await session.run("find_claim", claim.job_id, claim.claim_id)
    return Status(rows[0]["status"]) if rows else None
