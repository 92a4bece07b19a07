"""How the state machine works: operations are done and checked one by one, two at once, and around an open transaction.

What a rule draws never depends on what happened, so an example can be repeated whichever way a race went: numbers are drawn, and taken
modulo what there is to choose from. An operation that must wait for the open transaction is started, seen to wait, and let go by the
transaction's end. Two operations at once must have the result of one order or of the other.
"""

import asyncio
import copy
import dataclasses
import sys
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

from hypothesis.stateful import RuleBasedStateMachine

from pqrun.job.state import Status
from pqrun.store import registry
from pqrun.store.registry import Beat
from tests.faults.arena import SLOTS, WORKER_IDS, Arena
from tests.faults.inspection import compare, compare_workers, must_hold, read
from tests.faults.journal import Held, Journal
from tests.faults.model import Model, ModelJob, ModelWorker, Opened, Spec
from tests.faults.operations import Cancel, Enqueue, Operation
from tests.faults.work import ClaimJobs, ClaimSuspect, Settle, What

__all__ = ["Machine", "pick"]

T = TypeVar("T")


def pick(number: int, among: Sequence[T]) -> T:
    """One of these."""
    return among[number % len(among)]


class Machine(RuleBasedStateMachine):
    """See the module's docstring. A subclass has the rules, and the arena."""

    arena: ClassVar[Arena]

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.journal = Journal()
        self.seen: list[Beat] = []
        """Beats that were observed, to be judged by later."""
        self.numbers = iter(range(1000, 10**6))
        self.arena.call(self.arena.empty())

    # How an operation is done and checked.

    def check(self) -> None:
        """The tables are as they must be, and as the model has them."""
        rows, workers = self.arena.call(read(self.arena.watcher))
        must_hold(rows)
        compare(self.model, rows)
        compare_workers(self.model, workers)

    def do(self, operation: Operation[Any]) -> Any:
        """One operation; if it must wait for the open transaction, that one ends meanwhile."""
        done = self._do_waiting(operation) if operation.waits(self.model) else operation.run(self.arena)
        answer = self.arena.call(done)
        operation.record(self.journal, answer)
        operation.apply(self.model, answer)
        self.check()
        return answer

    async def _do_waiting(self, operation: Operation[Any]) -> Any:
        task = self.arena.start(operation.run(self.arena))
        await self.arena.wait_until_waiting(task)
        await self._end_transaction()
        return await task

    def race(self, *operations: Operation[Any]) -> list[Any]:
        """Operations at once: the answers, which are returned, and the tables are those of one order or of the other."""
        self.end_transaction()
        answers = self.arena.call(self._run_all(operations))
        for operation, answer in zip(operations, answers, strict=True):
            operation.record(self.journal, answer)
        rows, _ = self.arena.call(read(self.arena.watcher))
        must_hold(rows)
        pairs = list(zip(operations, answers, strict=True))
        refused: list[AssertionError] = []
        for order in (pairs, pairs[::-1]):
            model = copy.deepcopy(self.model)
            try:
                for operation, answer in order:
                    operation.apply(model, answer)
                compare(model, rows)
            except AssertionError as error:
                refused.append(error)
            else:
                self.model = model
                return answers
        raise AssertionError(f"neither order explains {answers}: {refused}")

    async def _run_all(self, operations: Sequence[Operation[Any]]) -> list[Any]:
        return await asyncio.gather(*(operation.run(self.arena) for operation in operations))

    async def _end_transaction(self) -> None:
        opened = self.model.opened
        if opened is None:
            return
        await self.arena.end_transaction(commits=opened.commits)
        if opened.commits:
            for job_id in opened.completed:
                held = self.journal.claims[self.model.jobs[job_id].claim_id or 0]
                self.journal.end(held.claim, Status.DONE)
        self.model.end_transaction()

    def end_transaction(self) -> None:
        """End the open transaction, if there is one."""
        if self.model.opened is not None:
            self.arena.call(self._end_transaction())
            self.check()

    def teardown(self) -> None:
        """Whatever the example left, everything READY is found by a claim from the start, and nothing is stuck."""
        try:
            if sys.exc_info()[0] is None and self.model.workers:  # else the example has failed already
                self.drain()
        finally:
            self.arena.call(self.arena.empty())

    def drain(self) -> None:
        """A worker that comes late takes all that is READY, and finishes it."""
        self.end_transaction()
        self.renew(1)
        self.is_born(0)
        worker = self.arena.slots[0].worker
        while self.do(ClaimJobs(0, worker)).jobs or self.do(ClaimSuspect(0, worker)):
            self.do(Settle(0, tuple((held, What.RETURNED) for held in self.held())))
        assert not [job.id for job in self.model.jobs.values() if job.status is Status.READY]

    # What there is to choose from.

    def held(self) -> list[Held]:
        """Claims that hold."""
        return [held for held in self.journal.claims.values() if self.model.held(held.claim)]

    def claim_at(self, number: int, *, is_stale: bool = False) -> Held:
        """A claim that holds, made if there is none; or one that does not any more, if there is one (first of jobs that run again)."""
        if not (holding := self.held()):
            self.ready_at(number)
            self.is_born(slot := number % len(SLOTS))
            self.do(self.claim_by(slot))
            holding = self.held()
        stale = [held for held in reversed(self.journal.claims.values()) if held not in holding]
        running = {job.id for job in self.jobs_in(Status.RUNNING)}
        stale.sort(key=lambda held: held.claim.job_id not in running)
        return pick(number, stale if is_stale and stale else holding)

    def ready_at(self, number: int) -> ModelJob:
        """A job that can be claimed, made if there is none."""
        if not (found := [j for j in self.jobs_in(Status.READY) if j.lost == 0 and not self.model.is_locked(j.id)]):
            new = self.numbered(Spec(0, max_attempts=1 + number % 3, timeout=30.0))
            self.do(Enqueue((dataclasses.replace(new, key=f"of {new.number}"),)))
            found = self.jobs_in(Status.READY)[-1:]
        return pick(number, found)

    def finished_at(self, number: int, status: Status) -> ModelJob:
        """A job that ended so, made if there is none."""
        if not (found := self.jobs_in(status)):
            self.end_transaction()
            held = self.claim_at(number)
            if status is Status.CANCELLED:
                self.do(Cancel(held.claim.job_id))
            self.do(Settle(held.slot, ((held, What.ABORTED if status is Status.FAILED else What.RETURNED),)))
            found = self.jobs_in(status)
        return pick(number, found or list(self.model.jobs.values()))

    def jobs_in(self, *statuses: Status) -> list[ModelJob]:
        """Jobs in one of these states."""
        return [job for job in self.model.jobs.values() if job.status in statuses]

    def may_claim(self, claim: ClaimJobs) -> bool:
        """Whether it is a registered worker's."""
        worker = self.model.workers.get(claim.worker)
        return worker is not None and not worker.is_dead

    def numbered(self, spec: Spec) -> Spec:
        """With a payload of its own."""
        return dataclasses.replace(spec, number=next(self.numbers))

    def claim_by(self, slot: int, **options: Any) -> ClaimJobs:
        """A claim of the worker in a slot."""
        return ClaimJobs(slot, self.arena.slots[slot].worker, **options)

    def begin(self, commits: bool) -> None:
        """Open a transaction, unless one is open."""
        if self.model.opened is None:
            self.arena.call(self.arena.handler.execute("BEGIN"))
            self.model.opened = Opened(commits)

    # The registry.

    def is_born(self, slot: int) -> None:
        """A process starts in place of the one before, whose lock is free now."""
        self.loses_lock(slot)
        worker = self.arena.call(self.arena.register(slot))
        self.model.workers[worker] = ModelWorker(WORKER_IDS[slot])

    def loses_lock(self, slot: int) -> None:
        self.arena.call(self.arena.kill(slot))
        if (worker := self.model.workers.get(self.arena.slots[slot].worker)) is not None:
            worker.has_lock = False

    def bury(self, beat: Beat) -> None:
        """Take a worker for dead, if its beat is still this one."""
        session = self.arena.slots[0].session
        worker = self.model.workers.get(beat.worker)
        expected = []
        if worker is not None and not worker.is_dead and worker.beat == beat.beat:
            worker.is_dead, worker.grave_age = True, 0.0
            expected = [(beat.worker, worker.worker_id)]
        buried = self.arena.call(registry.bury(session, [beat]))
        assert buried == expected, f"buried {buried}, expected {expected}"

    def renew(self, slot: int) -> None:
        """Which claims hold, and which ended their job themselves, of all that there ever were."""
        work, claims = self.arena.slots[slot].work, [held.claim for held in self.journal.claims.values()]
        renewal = self.arena.call(work.renew(claims))
        jobs = {claim: job for claim in claims if (job := self.model.held(claim))}
        assert renewal.held == set(jobs), f"held {renewal.held}, expected {set(jobs)}"
        assert renewal.cancelled == {claim for claim, job in jobs.items() if job.is_asked}, "cancel requests"
        for claim in claims[-5:]:
            job = self.model.jobs.get(claim.job_id)
            is_its_end = job is not None and job.claim_id == claim.claim_id and job.status.is_finished
            expected = job.status if job is not None and is_its_end else None
            found = self.arena.call(work.find_claim(claim))
            assert found == expected, f"{claim} ended {found}, expected {expected}"
