"""What becomes of a claimed job: decided here, in one place, as a value; written by one statement (``store/sql/settle.sql``).

``decide_*`` look at what happened and at the job's counts; they have no clock and do no I/O. A cancel request is not their
business: the settle statement itself turns every outcome of a claim with ``cancel_requested_at`` into CANCELLED, because only the
database sees a request that arrives a moment before the write.
"""

from enum import StrEnum
from typing import TypeAlias

import msgspec

from pqrun.job.failure import Failure, FailureKind
from pqrun.job.record import Claim

__all__ = [
    "CANCELLED_BY_REQUEST",
    "RELEASES_MAX",
    "SNOOZES_MAX",
    "CancelOutcome",
    "Cancelled",
    "Counts",
    "Done",
    "Failed",
    "Outcome",
    "Recovered",
    "Released",
    "Retrying",
    "Snoozed",
    "decide_after_failure",
    "decide_lost",
    "decide_release",
    "decide_snooze",
]

RELEASES_MAX = 10
"""A job given back after its start so many times counts each further start: else a job that never ends would be immortal."""

SNOOZES_MAX = 1_000
"""A job that its handler has put off so many times fails when it is put off again: else one that waits in vain would be immortal."""

CANCELLED_BY_REQUEST = "cancelled by request"


class CancelOutcome(StrEnum):
    """What ``cancel()`` came to."""

    CANCELLED = "CANCELLED"
    """It had not started; it never will."""
    REQUESTED = "REQUESTED"
    """It is running: its worker was told, and whatever the handler does, it ends CANCELLED."""
    ALREADY_FINISHED = "ALREADY_FINISHED"
    """It had ended before; nothing was changed."""
    NOT_FOUND = "NOT_FOUND"
    """There is no such job."""


class Counts(msgspec.Struct, frozen=True):
    """The counts of a claimed job that decisions rest on; ``attempts`` includes the present start."""

    attempts: int
    max_attempts: int
    lost: int = 0
    releases: int = 0
    snoozes: int = 0


class Done(msgspec.Struct, frozen=True, tag=True):
    """RUNNING → DONE: the handler returned."""

    claim: Claim
    duration_ms: int
    result: str | None
    """JSON text of an object, or None."""


class Retrying(msgspec.Struct, frozen=True, tag=True):
    """RUNNING → SCHEDULED: failed with attempts left; due ``delay_seconds`` after the write, by the database's clock."""

    claim: Claim
    duration_ms: int | None
    error: str
    delay_seconds: float
    failure: Failure = Failure()


class Failed(msgspec.Struct, frozen=True, tag=True):
    """RUNNING → FAILED: no attempt left, or another attempt cannot help."""

    claim: Claim
    duration_ms: int | None
    error: str
    failure: Failure = Failure()

    @property
    def is_lost(self) -> bool:
        """Whether it ended because its worker is gone: that loss counts as those before it, which it survived."""
        return self.failure.kind is FailureKind.LOST


class Released(msgspec.Struct, frozen=True, tag=True):
    """RUNNING → READY, due at once and in its old place: never started, or interrupted by a shutdown."""

    claim: Claim
    started: bool
    """Whether the handler had begun: only such releases are counted against RELEASES_MAX."""
    counted: bool
    """Whether the attempt stays counted."""


class Snoozed(msgspec.Struct, frozen=True, tag=True):
    """RUNNING → SCHEDULED, the attempt not counted: not now, or not for this worker; due ``delay_seconds`` after the write."""

    claim: Claim
    error: str | None
    """None: it did not fail, and ``last_error`` stays as it is."""
    delay_seconds: float
    is_chosen: bool = False
    """Whether its handler chose it: only such are counted against SNOOZES_MAX."""
    reason: str | None = None
    """The handler's, for those who listen; not stored."""


class Recovered(msgspec.Struct, frozen=True, tag=True):
    """RUNNING → READY, due at once and in its old place: its worker is gone; the attempt stays counted."""

    claim: Claim
    error: str


class Cancelled(msgspec.Struct, frozen=True, tag=True):
    """RUNNING → CANCELLED: the handler was stopped because a cancel was asked for."""

    claim: Claim
    duration_ms: int | None
    error: str = CANCELLED_BY_REQUEST


Outcome: TypeAlias = Done | Retrying | Failed | Released | Snoozed | Recovered | Cancelled
"""The closed union of what can become of a claimed job."""


def decide_after_failure(
    claim: Claim, counts: Counts, *, error: str, failure: Failure, delay_seconds: float, duration_ms: int | None
) -> Retrying | Failed:
    """An ordinary failure: try again while attempts are left."""
    if counts.attempts < counts.max_attempts:
        return Retrying(claim, duration_ms, error, delay_seconds, failure)
    return Failed(claim, duration_ms, error, failure)


def decide_lost(claim: Claim, counts: Counts, *, worker: str) -> Recovered | Failed:
    """The worker that held the claim is gone: the attempt counts, because the job itself may have killed it."""
    lost = counts.lost + 1
    times = "once" if lost == 1 else f"{lost} times"
    error = f"lost its worker {times} (last: {worker}) at attempt {counts.attempts} of {counts.max_attempts}"
    if counts.attempts < counts.max_attempts:
        return Recovered(claim, error)
    return Failed(claim, None, error, Failure(FailureKind.LOST))


def decide_release(claim: Claim, counts: Counts, *, started: bool) -> Released | Failed:
    """A claim given back on purpose costs no attempt, until a job has been given back RELEASES_MAX times after its start."""
    counted = started and counts.releases >= RELEASES_MAX
    if counted and counts.attempts >= counts.max_attempts:
        error = f"released at shutdown {counts.releases + 1} times, and no attempt left"
        return Failed(claim, None, error, Failure(FailureKind.RELEASED))
    return Released(claim, started=started, counted=counted)


def decide_snooze(claim: Claim, counts: Counts, *, delay_seconds: float, reason: str | None) -> Snoozed | None:
    """Put off by its own handler, at no cost; None where that was done SNOOZES_MAX times before: then it is a failure."""
    if counts.snoozes >= SNOOZES_MAX:
        return None
    return Snoozed(claim, None, delay_seconds, is_chosen=True, reason=reason)
