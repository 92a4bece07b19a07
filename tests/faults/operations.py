"""What can be done to the store, one operation at a time: how it is done, and what the model says must come of it.

``apply`` never looks at the database: it compares the answer with the model's, and moves the model on. It raises AssertionError where
the answer is none that the model allows.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, TypeVar

from pqrun.errors import JobNotFound, RetryRefused
from pqrun.job.outcome import CancelOutcome
from pqrun.job.record import Enqueued, NewJob
from pqrun.job.state import Status
from pqrun.store.claiming import Lane
from tests.faults.arena import Arena
from tests.faults.journal import Journal
from tests.faults.model import Model, Spec

__all__ = ["DELAY", "LANES", "MARGIN", "STALE", "TYPES", "Cancel", "Enqueue", "Operation", "Retry"]

R = TypeVar("R")

TYPES = ("a", "b")
LANES = (Lane("default", 5), Lane("default", 0), Lane("other", 0))
"""In the order of claims: all that the jobs here are in."""

DELAY = 45.0
"""Of a retry: far from each multiple of the hundred seconds in which time passes, as all limits here."""

STALE = 150.0
MARGIN = 20.0


class Operation(ABC, Generic[R]):
    """One call of the store."""

    @abstractmethod
    async def run(self, arena: Arena) -> R:
        """Do it for real."""

    @abstractmethod
    def apply(self, model: Model, answer: R) -> None:
        """Do it in the model; the answer must be the model's."""

    def record(self, journal: Journal, answer: R) -> None:
        """Write down what was answered, for the checks that need no model."""
        return

    def waits(self, model: Model) -> bool:
        """Whether it must wait for the end of the open transaction."""
        return False


def _new_job(spec: Spec) -> NewJob:
    return NewJob(
        job_type=spec.job_type,
        payload=f'{{"n": {spec.number}}}',
        queue=spec.queue,
        priority=spec.priority,
        max_attempts=spec.max_attempts,
        timeout_seconds=spec.timeout,
        dedupe_key=spec.key,
        delay_seconds=spec.delay,
    )


@dataclass(frozen=True)
class Enqueue(Operation[list[Enqueued]]):
    """Enqueue, by the store or by the SQL function, within the open transaction or not."""

    specs: tuple[Spec, ...]
    by_function: bool = False
    within: bool = False

    async def run(self, arena: Arena) -> list[Enqueued]:
        if self.by_function:
            return [await arena.enqueue_by_function(spec, within=self.within) for spec in self.specs]
        connection = arena.handler if self.within else None
        return await arena.store.enqueue_jobs([_new_job(spec) for spec in self.specs], connection=connection)

    def apply(self, model: Model, answer: list[Enqueued]) -> None:
        for spec, enqueued in zip(self.specs, answer, strict=True):
            holder = model.holder(spec.slot, within=self.within)
            assert enqueued.created is (holder is None), f"{enqueued}: the key is held by {holder}"
            if holder is None:
                assert enqueued.id not in model.jobs
                model.insert(enqueued.id, spec, within=self.within)
            else:
                assert enqueued.id == holder

    def record(self, journal: Journal, answer: list[Enqueued]) -> None:
        journal.enqueued(e.id for e in answer if e.created)

    def waits(self, model: Model) -> bool:
        return not self.within and any(model.is_key_busy(spec.slot) for spec in self.specs)


@dataclass(frozen=True)
class Cancel(Operation[CancelOutcome | None]):
    """Cancel. ``once``: look once, at a row that is known to be locked."""

    job_id: int
    once: bool = False

    async def run(self, arena: Arena) -> CancelOutcome | None:
        if not self.once:
            return await arena.store.cancel(self.job_id)
        answer = str((await arena.store.run("cancel", self.job_id))[0]["outcome"])
        return None if answer == "LOCKED" else CancelOutcome(answer)

    def apply(self, model: Model, answer: CancelOutcome | None) -> None:
        expected = model.cancel(self.job_id)
        assert answer == expected, f"cancel said {answer}, expected {expected}"

    def record(self, journal: Journal, answer: CancelOutcome | None) -> None:
        if answer is CancelOutcome.REQUESTED:
            running = [c for c, h in journal.claims.items() if h.claim.job_id == self.job_id]
            journal.asked.add(max(running))


@dataclass(frozen=True)
class Retry(Operation[str | int | None]):
    """Retry by hand."""

    job_id: int
    force: bool = False

    async def run(self, arena: Arena) -> str | int | None:
        try:
            await arena.store.retry(self.job_id, force=self.force)
        except JobNotFound:
            return "missing"
        except RetryRefused as error:
            return "refused" if error.conflicting_id is None else error.conflicting_id
        return None

    def apply(self, model: Model, answer: str | int | None) -> None:
        expected = model.retry(self.job_id, force=self.force)
        assert answer == expected, f"retry said {answer}, expected {expected}"

    def record(self, journal: Journal, answer: str | int | None) -> None:
        if answer is None:
            journal.retried(self.job_id)

    def waits(self, model: Model) -> bool:
        job = model.jobs.get(self.job_id)
        if job is None or not job.status.is_finished or (job.status is Status.DONE and not self.force):
            return False
        return model.is_locked(self.job_id) or model.is_key_busy(job.spec.slot)
