"""What a worker does to the store: claims, ends, recovery. As ``operations``, and apart only for length."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from pqrun.errors import ClaimLost, CompletionRefused
from pqrun.job import outcome as outcomes
from pqrun.job.failure import Failure, FailureKind
from pqrun.job.outcome import Counts, Outcome
from pqrun.job.progress import Report
from pqrun.job.record import Claim, Job
from pqrun.job.state import Status
from pqrun.store.claiming import ClaimBatch, Promotion
from pqrun.store.maintaining import Overdue, Reaped
from pqrun.store.settling import Settled
from tests.faults.arena import Arena
from tests.faults.journal import Held, Journal
from tests.faults.model import Model, ModelJob
from tests.faults.operations import DELAY, LANES, MARGIN, STALE, TYPES, Operation

__all__ = [
    "ClaimJobs",
    "ClaimSuspect",
    "Complete",
    "FindForgotten",
    "Promote",
    "Reap",
    "Reaper",
    "Say",
    "Settle",
    "What",
]


def _check_claimed(model: Model, job: Job, worker: int) -> None:
    assert job.claim_id is not None
    known = model.claim(Claim(job.id, job.claim_id), worker)
    counts = (job.attempts, job.max_attempts, job.lost, job.releases, job.snoozes)
    assert counts == (known.attempts, known.spec.max_attempts, known.lost, known.releases, known.snoozes)
    assert (job.payload, job.locked_by) == ({"n": known.spec.number}, known.locked_by)


def _may_claim(model: Model, worker: int) -> bool:
    return worker in model.workers and not model.workers[worker].is_dead


@dataclass(frozen=True)
class ClaimJobs(Operation[ClaimBatch]):
    """Claim from the start of all lanes. ``is_alone``: nobody else claims meanwhile; else what the other has locked is passed."""

    slot: int
    worker: int
    types: tuple[str, ...] = TYPES
    proven: tuple[str, ...] = TYPES
    limit: int = 10
    free: int = 10
    is_alone: bool = True

    async def run(self, arena: Arena) -> ClaimBatch:
        lanes = [(lane, 0) for lane in LANES]
        work = arena.slots[self.slot].work
        return await work.claim(lanes, self.types, self.proven, [], limit=self.limit, look=1000, free=self.free)

    def apply(self, model: Model, answer: ClaimBatch) -> None:
        expected: list[int] = []
        if _may_claim(model, self.worker):
            expected = model.claimable(LANES, self.types, self.proven, self.limit, self.free)
        got = [job.id for job in answer.jobs]
        if self.is_alone:
            assert got == expected, f"claimed {got}, expected {expected}"
        assert len(got) <= len(expected), f"claimed {got}, expected no more than {expected}"
        for job in answer.jobs:
            _check_claimed(model, job, self.worker)

    def record(self, journal: Journal, answer: ClaimBatch) -> None:
        for job in answer.jobs:
            journal.claimed(job, self.slot)


@dataclass(frozen=True)
class ClaimSuspect(Operation[Job | None]):
    """Claim a job that lost its worker before."""

    slot: int
    worker: int

    async def run(self, arena: Arena) -> Job | None:
        return await arena.slots[self.slot].work.claim_suspect(None, TYPES, [])

    def apply(self, model: Model, answer: Job | None) -> None:
        waiting = [j for p in (5, 0) for j in _suspects(model, p)] if _may_claim(model, self.worker) else []
        expected = next((j.id for j in waiting if not model.is_locked(j.id)), None)
        assert (answer and answer.id) == expected, f"claimed the suspect {answer}, expected {expected}"
        if answer is not None:
            _check_claimed(model, answer, self.worker)

    def record(self, journal: Journal, answer: Job | None) -> None:
        if answer is not None:
            journal.claimed(answer, self.slot)


@dataclass(frozen=True)
class FindForgotten(Operation[list[Job]]):
    """A worker looks for claims of its own that it does not know of: nothing is claimed anew, so nothing is written down."""

    slot: int
    worker: int
    known: tuple[Claim, ...]

    async def run(self, arena: Arena) -> list[Job]:
        return await arena.slots[self.slot].work.find_forgotten(self.known)

    def apply(self, model: Model, answer: list[Job]) -> None:
        of_worker = [j for j in model.jobs.values() if j.status is Status.RUNNING and j.worker == self.worker]
        known = {claim.claim_id for claim in self.known}
        expected = {j.id: j for j in of_worker if j.claim_id not in known}
        got = [job.id for job in answer]
        assert sorted(got) == sorted(expected), f"forgotten {got}, expected {sorted(expected)}"
        for job in answer:
            found = (job.claim_id, job.attempts, job.lost, job.payload)
            wanted = expected[job.id]
            assert found == (wanted.claim_id, wanted.attempts, wanted.lost, {"n": wanted.spec.number})


def _suspects(model: Model, priority: int) -> list[ModelJob]:
    found = [j for lane in LANES if lane.priority == priority for j in model.queue_of(lane, suspect=True)]
    return sorted(found, key=lambda j: j.place or 0)


class What(StrEnum):
    """What happened to a handler."""

    RETURNED = "returned"
    RAISED = "raised"
    ABORTED = "aborted"
    SNOOZED = "snoozed"
    UNSTARTED = "unstarted"
    INTERRUPTED = "interrupted"
    STOPPED = "stopped"
    """Because a cancel was asked for."""


@dataclass(frozen=True)
class Settle(Operation[list[Settled]]):
    """A worker writes what became of its claims, some of which it may have lost without knowing."""

    slot: int
    batch: tuple[tuple[Held, What], ...]

    async def run(self, arena: Arena) -> list[Settled]:
        return await arena.slots[self.slot].work.settle([_decide(held, what) for held, what in self.batch], [])

    def apply(self, model: Model, answer: list[Settled]) -> None:
        expected = {}
        for held, what in self.batch:
            if (job := model.held(held.claim)) is not None:
                expected[held.claim] = _apply_end(model, job, held, what)
        got = {settled.claim: settled.status for settled in answer}
        assert got == expected, f"settled {got}, expected {expected}"
        assert len(got) == len(answer)

    def record(self, journal: Journal, answer: list[Settled]) -> None:
        whats = {held.claim: what for held, what in self.batch}
        for settled in answer:
            journal.end(settled.claim, settled.status)
            if settled.status is Status.READY:
                journal.gave_back(settled.claim.job_id, started=whats[settled.claim] is What.INTERRUPTED)
            if settled.status is Status.SCHEDULED and whats[settled.claim] is What.SNOOZED:
                journal.snoozed(settled.claim.job_id)

    def waits(self, model: Model) -> bool:
        return any(model.held(held.claim) and model.is_locked(held.claim.job_id) for held, _ in self.batch)


@dataclass(frozen=True)
class Say(Operation[set[Claim]]):
    """A worker writes reports of its handlers, some of whose claims it may have lost. ``is_alone``: nobody settles them meanwhile."""

    slot: int
    reports: tuple[tuple[Claim, int], ...]
    """With how many percent."""
    is_alone: bool = True

    async def run(self, arena: Arena) -> set[Claim]:
        reports = {claim: Report(percent / 100, f"{percent} %") for claim, percent in self.reports}
        return await arena.slots[self.slot].work.report(reports)

    def apply(self, model: Model, answer: set[Claim]) -> None:
        for claim, percent in self.reports:
            if not self.is_alone and claim in answer:
                continue  # whoever else had the row comes first, or after: nothing was written
            is_told = model.report(claim, percent)
            assert is_told is (claim not in answer), (
                f"a report of {claim} was {'' if is_told else 'not '}to be written: {answer}"
            )


def _error(claim: Claim) -> str:
    return f"error of claim {claim.claim_id}"


def _result(claim: Claim) -> str:
    return f'{{"claim": {claim.claim_id}}}'


def _decide(held: Held, what: What) -> Outcome:
    """What a worker decides, from what it was told at the claim."""
    claim, job = held.claim, held.job
    counts = Counts(job.attempts, job.max_attempts, job.lost, job.releases, job.snoozes)
    match what:
        case What.RETURNED:
            return outcomes.Done(claim, 7, _result(claim))
        case What.RAISED:
            return _failed(claim, counts)
        case What.SNOOZED:
            snoozed = outcomes.decide_snooze(claim, counts, delay_seconds=DELAY, reason=None)
            return snoozed or _failed(claim, counts)
        case What.ABORTED:
            return outcomes.Failed(claim, 7, _error(claim))
        case What.STOPPED:
            return outcomes.Cancelled(claim, 7)
    return outcomes.decide_release(claim, counts, started=what is What.INTERRUPTED)


def _failed(claim: Claim, counts: Counts) -> Outcome:
    return outcomes.decide_after_failure(
        claim, counts, error=_error(claim), failure=Failure(), delay_seconds=DELAY, duration_ms=7
    )


def _apply_end(model: Model, job: ModelJob, held: Held, what: What) -> Status:
    """What must come of it."""
    match what:
        case What.RETURNED:
            return model.done(job, _result(held.claim))
        case What.RAISED | What.ABORTED:
            return model.fail(job, _error(held.claim), DELAY if what is What.RAISED else None)
        case What.SNOOZED:
            return model.snooze(job, _error(held.claim), DELAY)
        case What.STOPPED:
            return job.stop(outcomes.CANCELLED_BY_REQUEST)
    return model.release(job, started=what is What.INTERRUPTED)


class Refusal(StrEnum):
    """Why ``complete`` did not."""

    LOST = "lost"
    ASKED = "asked to cancel"


@dataclass(frozen=True)
class Complete(Operation[Refusal | None]):
    """``ctx.complete``: in the open transaction, or at once."""

    held: Held
    within: bool

    async def run(self, arena: Arena) -> Refusal | None:
        work, claim = arena.slots[self.held.slot].work, self.held.claim
        try:
            await work.complete(claim, _result(claim), arena.handler if self.within else None, duration_ms=7)
        except ClaimLost:
            return Refusal.LOST
        except CompletionRefused:
            return Refusal.ASKED
        return None

    def apply(self, model: Model, answer: Refusal | None) -> None:
        job = model.held(self.held.claim)
        if job is not None and self.within and model.opened is not None and job.id in model.opened.completed:
            job = None
        if job is None:
            assert answer is Refusal.LOST
        elif job.is_asked:
            assert answer is Refusal.ASKED
            if not self.within:  # written as CANCELLED; within a transaction that is to be rolled back
                job.stop()
        else:
            assert answer is None, answer
            if self.within and model.opened is not None:
                model.opened.completed[job.id] = _result(self.held.claim)
            else:
                model.done(job, _result(self.held.claim))

    def record(self, journal: Journal, answer: Refusal | None) -> None:
        if not self.within and answer is not Refusal.LOST:
            journal.end(self.held.claim, Status.DONE if answer is None else Status.CANCELLED)

    def waits(self, model: Model) -> bool:
        return not self.within and model.held(self.held.claim) is not None and model.is_locked(self.held.claim.job_id)


class Reaper(StrEnum):
    """Which look of the reaper."""

    LOST = "lost"
    ORPHANS = "orphans"
    OVERDUE = "overdue"


@dataclass(frozen=True)
class Reap(Operation[list[Reaped]]):
    """The reaper. ``is_alone``: else a row that somebody has locked is left for the next look."""

    reaper: Reaper
    slot: int
    is_alone: bool = True

    async def run(self, arena: Arena) -> list[Reaped]:
        work = arena.slots[self.slot].work
        if self.reaper is Reaper.LOST:
            return await work.reap_lost()
        if self.reaper is Reaper.ORPHANS:
            return await work.reap_orphans(stale_seconds=STALE, margin_seconds=MARGIN)
        return await work.reap_overdue(margin_seconds=MARGIN, decide=_decide_overdue)

    def apply(self, model: Model, answer: list[Reaped]) -> None:
        got = {reaped.settled.claim.job_id: reaped.settled.status for reaped in answer}
        expected = {}
        for job in self._found(model):
            if self.is_alone or job.id in got:
                is_overdue = self.reaper is Reaper.OVERDUE
                expected[job.id] = model.fail(job, "timed out", DELAY, "timeout") if is_overdue else model.lose(job)
        assert got == expected, f"reaped {got}, expected {expected}"

    def _found(self, model: Model) -> Sequence[ModelJob]:
        if self.reaper is Reaper.LOST:
            return model.lost_jobs()
        return model.orphans(STALE, MARGIN) if self.reaper is Reaper.ORPHANS else model.overdue(MARGIN)

    def record(self, journal: Journal, answer: list[Reaped]) -> None:
        for reaped in answer:
            journal.end(reaped.settled.claim, reaped.settled.status)


def _decide_overdue(found: Overdue) -> outcomes.Retrying | outcomes.Failed:
    failure = Failure(FailureKind.TIMEOUT)
    return outcomes.decide_after_failure(
        found.claim, found.counts, error="timed out", failure=failure, delay_seconds=DELAY, duration_ms=None
    )


@dataclass(frozen=True)
class Promote(Operation[Promotion]):
    """Make due jobs READY, from the start of the index."""

    slot: int

    async def run(self, arena: Arena) -> Promotion:
        return await arena.slots[self.slot].work.promote(None)

    def apply(self, model: Model, answer: Promotion) -> None:
        expected = model.promote()
        assert answer.jobs == expected, f"promoted {answer.jobs}, expected {expected}"
        later = [job.due_in for job in model.jobs.values() if job.status is Status.SCHEDULED and job.due_in > 0]
        assert (answer.next_in_seconds is None) is (not later)
        assert answer.next_in_seconds is None or abs(answer.next_in_seconds - min(later)) < DELAY
