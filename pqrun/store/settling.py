"""Outcomes become writes: one statement for all of them, fenced by claim. And the question which claims still hold."""

from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple, TypeVar, assert_never

from pqrun.job.failure import ATTEMPTS_KEPT, Failure, FailureKind, bounded_message
from pqrun.job.outcome import Cancelled, Done, Failed, Outcome, Recovered, Released, Retrying, Snoozed
from pqrun.job.record import Claim
from pqrun.job.state import Status
from pqrun.store.enqueueing import Runs
from pqrun.store.rows import Row

__all__ = ["Renewal", "Settled", "find_claim", "renew", "settle"]


T = TypeVar("T")

_STATUS_OF_END: Final[dict[type, Status]] = {Done: Status.DONE, Failed: Status.FAILED, Cancelled: Status.CANCELLED}
"""The outcomes that end a job, and what is written unless a cancel was asked for."""


_UNSTARTED: Final = "unstarted"
"""In place of a kind: no handler began, so there is no attempt to keep, not even of a job that was cancelled."""

_NO_FAILURE: Final = Failure()


class Settled(NamedTuple):
    """A write that held: the state that was written (CANCELLED where a cancel had been asked for), and when a retry is due."""

    claim: Claim
    status: Status
    due_in_seconds: float | None


class Renewal(NamedTuple):
    """Claims that still hold, and those of them that were asked to cancel."""

    held: frozenset[Claim]
    cancelled: frozenset[Claim]


class _Columns:
    """The arrays of settle.sql, filled outcome by outcome; those that stay at their default travel empty."""

    def __init__(self) -> None:
        self.statuses: list[str] = []
        self.results: list[str | None] = []
        self.errors: list[str | None] = []
        self.durations: list[int | None] = []
        self.delays: list[float | None] = []
        self.attempts: list[int] = []
        self.lost: list[int] = []
        self.releases: list[int] = []
        self.snoozes: list[int] = []
        self.kinds: list[str | None] = []
        self.exception_types: list[str | None] = []
        self.messages: list[str | None] = []
        self.frames: list[str | None] = []

    def add(
        self,
        status: Status,
        *,
        result: str | None = None,
        error: str | None = None,
        duration_ms: int | None = None,
        delay_seconds: float | None = None,
        attempts: int = 0,
        lost: int = 0,
        releases: int = 0,
        snoozes: int = 0,
        kind: str | None = None,
        failure: Failure = _NO_FAILURE,
    ) -> None:
        """Add one row. ``kind``: of the attempt that is kept; None: it is kept only if a cancel was asked for."""
        self.statuses.append(status)
        self.results.append(result)
        self.errors.append(error)
        self.durations.append(duration_ms)
        self.delays.append(delay_seconds)
        self.attempts.append(attempts)
        self.lost.append(lost)
        self.releases.append(releases)
        self.snoozes.append(snoozes)
        self.kinds.append(kind)
        self.exception_types.append(failure.exception_type)
        message = error if failure.message is None and error is not None else failure.message
        self.messages.append(None if message is None else bounded_message(message))
        self.frames.append(failure.frame)

    def add_outcome(self, outcome: Outcome) -> None:
        """Add what is written of one outcome."""
        match outcome:
            case Done():
                self.add(Status.DONE, result=outcome.result, duration_ms=outcome.duration_ms)
            case Retrying():
                self._add_failure(Status.SCHEDULED, outcome, delay_seconds=outcome.delay_seconds)
            case Snoozed():
                self.add(
                    Status.SCHEDULED,
                    error=outcome.error,
                    delay_seconds=outcome.delay_seconds,
                    attempts=-1,
                    snoozes=int(outcome.is_chosen),
                    kind=None if outcome.is_chosen else _UNSTARTED,
                )
            case Failed():
                self._add_failure(Status.FAILED, outcome, lost=int(outcome.is_lost))
            case Released():
                self.add(
                    Status.READY,
                    attempts=0 if outcome.counted else -1,
                    releases=int(outcome.started),
                    kind=FailureKind.RELEASED if outcome.started else _UNSTARTED,
                )
            case Recovered():
                self.add(Status.READY, error=outcome.error, lost=1, kind=FailureKind.LOST)
            case Cancelled():
                self.add(
                    Status.CANCELLED, error=outcome.error, duration_ms=outcome.duration_ms, kind=FailureKind.CANCELLED
                )
            case _:
                assert_never(outcome)

    def _add_failure(
        self, status: Status, outcome: Retrying | Failed, *, delay_seconds: float | None = None, lost: int = 0
    ) -> None:
        self.add(
            status,
            error=outcome.error,
            duration_ms=outcome.duration_ms,
            delay_seconds=delay_seconds,
            lost=lost,
            kind=outcome.failure.kind,
            failure=outcome.failure,
        )

    def arguments(self) -> tuple[object, ...]:
        """Return them as settle.sql takes them, from the status on."""
        return (
            _literal(self.statuses),
            _unless_all(self.results, None),
            _unless_all(self.errors, None),
            _literal("NULL" if ms is None else str(ms) for ms in self.durations),
            _unless_all(self.delays, None),
            _unless_all(self.attempts, 0),
            _unless_all(self.lost, 0),
            _unless_all(self.releases, 0),
            _unless_all(self.snoozes, 0),
        )

    def kept(self) -> tuple[object, ...]:
        """Return what is kept of the attempts, as settle.sql takes it."""
        return (
            _unless_all(self.kinds, None),
            _unless_all(self.exception_types, None),
            _unless_all(self.messages, None),
            _unless_all(self.frames, None),
        )


def _literal(items: Iterable[str]) -> str:
    """Return an array literal of items that need no quotes: numbers and states."""
    return "{" + ",".join(items) + "}"


def _unless_all(column: list[T], default: T) -> list[T]:
    return column if column.count(default) < len(column) else []


def _job_id(outcome: Outcome) -> int:
    return outcome.claim.job_id


async def settle(session: Runs, outcomes: Iterable[Outcome], *, awaited: Collection[int] = ()) -> list[Settled]:
    """Write the outcomes and return those that held; the others' claims were lost before.

    In one statement; where a job of a batch that was DONE had been asked to cancel, or lost, in two, the second for those alone.
    """
    batch = sorted(outcomes, key=_job_id)
    done = [outcome for outcome in batch if type(outcome) is Done]
    if len(done) < len(batch):
        return await _settle(session, batch, list(awaited))
    return await _settle_done(session, done, list(awaited)) if done else []


async def _settle(session: Runs, batch: Sequence[Outcome], awaited: list[int]) -> list[Settled]:
    columns = _Columns()
    for outcome in batch:
        columns.add_outcome(outcome)
    arguments = *_claims(batch), *columns.arguments(), awaited, *columns.kept(), ATTEMPTS_KEPT
    return _settled(batch, await session.run("settle", *arguments))


async def _settle_done(session: Runs, batch: Sequence[Done], awaited: list[int]) -> list[Settled]:
    """The same for a batch that holds nothing else: the rule, and worth a statement of its own."""
    results = _unless_all([outcome.result for outcome in batch], None)
    durations = _literal([str(outcome.duration_ms) for outcome in batch])
    total, *listed = await session.run("settle_done", *_claims(batch), results, durations, awaited)
    if total["ended"] == len(batch):
        return [Settled(outcome.claim, Status.DONE, None) for outcome in batch]
    ended = {(row["id"], row["claim_id"] or 0) for row in listed}
    done = {end.claim: end for end in batch if (end.claim.job_id, end.claim.claim_id or 0) in ended}
    left = [outcome for outcome in batch if outcome.claim not in done]
    others = await _settle(session, left, awaited) if left else []
    return [*(Settled(claim, Status.DONE, None) for claim in done), *others]


def _claims(batch: Sequence[Outcome]) -> tuple[str, str]:
    ids = _literal([str(outcome.claim.job_id) for outcome in batch])
    return ids, _literal([str(outcome.claim.claim_id or "NULL") for outcome in batch])  # NULL: marked RUNNING by hand


def _settled(batch: Sequence[Outcome], rows: Sequence[Row]) -> list[Settled]:
    """Read the answer: what is not listed ended as it should, if as many ended as there were to end."""
    ended = sum(row["ended"] or 0 for row in rows)
    if len(rows) == 1 and ended == len(batch):
        return [Settled(outcome.claim, _STATUS_OF_END[type(outcome)], None) for outcome in batch]
    listed = [
        Settled(Claim(row["id"], row["claim_id"]), Status(row["status"]), row["due_in_seconds"])
        for row in rows
        if row["id"] is not None
    ]
    ends = [outcome for outcome in batch if type(outcome) in _STATUS_OF_END]
    if ended < len(ends):
        return listed
    others = {settled.claim for settled in listed}
    as_asked = [Settled(end.claim, _STATUS_OF_END[type(end)], None) for end in ends if end.claim not in others]
    return as_asked + listed


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
