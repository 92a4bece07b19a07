"""The state machine: any operation of the store, in any order, from several connections, against the model of a job."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from pqrun.job.record import Claim
from pqrun.job.state import Status
from pqrun.store import registry
from pqrun.store.maintaining import GRAVE_SECONDS
from pqrun.store.registry import Beat
from tests.faults.arena import SLOTS, Arena
from tests.faults.inspection import ORPHANED
from tests.faults.machine import Machine, pick
from tests.faults.model import SNOOZES_FREE, Spec
from tests.faults.operations import DELAY, LANES, TYPES, Cancel, Enqueue, Operation, Retry
from tests.faults.work import ClaimSuspect, Complete, FindForgotten, Promote, Reap, Reaper, Say, Settle, What

__all__ = ["StoreMachine", "machine_in"]

NUMBERS = st.integers(0, 11)
"""Which of what there is to choose from."""

PRUNE_AGE = 250.0
LOCKABLE = (Status.READY, Status.RUNNING, Status.SCHEDULED, Status.FAILED)
FINISHED_STATUSES = (Status.FAILED, Status.CANCELLED, Status.DONE)

specs = st.builds(
    Spec,
    number=st.just(0),
    job_type=st.sampled_from(TYPES),
    queue=st.sampled_from(["default", "other"]),
    priority=st.just(0),
    max_attempts=st.sampled_from([2, 1, 1, 3]),
    key=st.sampled_from([None, "k", "k", "l"]),
    timeout=st.sampled_from([None, 30.0, 30.0]),
    delay=st.sampled_from([None, None, DELAY]),
) | st.builds(Spec, number=st.just(0), priority=st.just(5), key=st.sampled_from([None, "k"]))
whats = st.sampled_from(
    [What.RETURNED, What.RAISED, What.RAISED, What.ABORTED, What.SNOOZED, What.UNSTARTED, What.INTERRUPTED]
)


class StoreMachine(Machine):
    """All that may happen. A subclass has the arena (``machine_in``)."""

    # Producers.

    @initialize(first=st.lists(specs, min_size=2, max_size=5))
    def start(self, first: list[Spec]) -> None:
        """All workers, and some jobs."""
        for slot in SLOTS:
            self.is_born(slot)
        self.do(Enqueue(tuple(map(self.numbered, first))))

    @rule(new=st.lists(specs, min_size=1, max_size=3), by_function=st.booleans())
    def enqueue(self, new: list[Spec], by_function: bool) -> None:
        self.do(Enqueue(tuple(map(self.numbered, new[: 1 if by_function else 3])), by_function=by_function))

    @rule(new=specs, by_function=st.booleans(), commits=st.booleans())
    def enqueue_within(self, new: Spec, by_function: bool, commits: bool) -> None:
        self.begin(commits)
        self.do(Enqueue((self.numbered(new),), by_function=by_function, within=True))

    @rule(number=NUMBERS, commits=st.booleans(), among=st.sampled_from(LOCKABLE))
    def lock_row(self, number: int, commits: bool, among: Status) -> None:
        """A user's own transaction locks a job; the others go on without it."""
        if among is Status.READY:
            self.ready_at(number)
        jobs = [j for j in self.jobs_in(among) or self.jobs_in(*Status) if not self.model.is_locked(j.id)]
        if not jobs:
            return
        job = pick(number, jobs)
        self.begin(commits)
        self.arena.call(self.arena.handler.execute(f"SELECT FROM pqrun.jobs WHERE id = {job.id} FOR UPDATE"))
        if self.model.opened is not None:
            self.model.opened.locked.add(job.id)
        self.do(Promote(number % len(SLOTS)))
        self.do(self.claim_by(number % len(SLOTS)))
        if job.claim_id is not None:
            self.do(Say(0, ((Claim(job.id, job.claim_id), number),)))
        self.do(Cancel(job.id, once=not job.status.is_finished))

    @rule()
    def transaction_ends(self) -> None:
        self.end_transaction()

    @rule(number=NUMBERS, among=st.sampled_from([*Status, Status.RUNNING]))
    def cancel(self, number: int, among: Status) -> None:
        job = pick(number, self.jobs_in(among) or self.jobs_in(*Status) or [self.ready_at(number)])
        self.do(Cancel(job.id, once=self.model.is_locked(job.id) and not job.status.is_finished))

    @rule(number=NUMBERS, status=st.sampled_from(FINISHED_STATUSES), force=st.booleans(), is_taken=st.booleans())
    def retry(self, number: int, status: Status, force: bool, is_taken: bool) -> None:
        job = self.finished_at(number, status)
        if is_taken and job.spec.key:
            self.do(Enqueue((self.numbered(job.spec),)))
        self.do(Retry(job.id, force))

    @rule(number=NUMBERS)
    def retry_in_vain(self, number: int) -> None:
        """Of what is active, or not there."""
        job = pick(number, self.jobs_in(Status.SCHEDULED, Status.READY, Status.RUNNING) or [None])
        self.do(Retry(job.id if job else 10**6, force=True))

    # Workers.

    @rule(slot=st.sampled_from(SLOTS), limit=st.integers(1, 4), free=st.integers(0, 2), is_proven=st.booleans())
    def claim(self, slot: int, limit: int, free: int, is_proven: bool) -> None:
        self.ready_at(slot)
        if free == 0:
            self.do(Enqueue((self.numbered(Spec(0, priority=5, max_attempts=1)),)))
        types = TYPES if is_proven else TYPES[: 1 + free % 2]
        self.do(self.claim_by(slot, types=types, proven=TYPES if is_proven else (), limit=limit, free=free))

    @rule(slot=st.sampled_from(SLOTS))
    def claim_all(self, slot: int) -> None:
        self.do(self.claim_by(slot))
        self.do(ClaimSuspect(slot, self.arena.slots[slot].worker))

    @rule(number=NUMBERS, keeps=st.integers(0, 3))
    def look_for_forgotten(self, number: int, keeps: int) -> None:
        """The answer to some claims was lost; others the worker knows of, and of some that it has no more."""
        slot = self.claim_at(number).slot
        known = tuple(held.claim for held in self.journal.claims.values() if held.claim.claim_id % 4 >= keeps)
        self.do(FindForgotten(slot, self.arena.slots[slot].worker, known))

    @rule(number=NUMBERS, what=whats, is_stale=st.booleans())
    def settle(self, number: int, what: What, is_stale: bool) -> None:
        held = self.claim_at(number, is_stale=is_stale)
        job = self.model.held(held.claim)
        is_stopped = job is not None and job.is_asked and number % 2 == 0
        self.do(Settle(held.slot, ((held, What.STOPPED if is_stopped else what),)))

    @rule(chosen=st.lists(st.tuples(NUMBERS, whats, st.booleans()), min_size=2, max_size=4))
    def settle_many(self, chosen: list[tuple[int, What, bool]]) -> None:
        found = [(self.claim_at(number, is_stale=is_stale), what) for number, what, is_stale in chosen]
        batch = {held.claim: (held, what) for held, what in found}
        self.do(Settle(0, tuple(batch.values())))

    @rule(chosen=st.dictionaries(NUMBERS, st.tuples(st.integers(0, 100), st.booleans()), min_size=1, max_size=3))
    def report(self, chosen: dict[int, tuple[int, bool]]) -> None:
        """Of claims that hold, and of some that do not."""
        said = {
            self.claim_at(number, is_stale=is_stale).claim: percent for number, (percent, is_stale) in chosen.items()
        }
        self.do(Say(0, tuple(said.items())))

    @rule(number=NUMBERS, is_stale=st.booleans(), within=st.booleans(), commits=st.booleans())
    def complete(self, number: int, is_stale: bool, within: bool, commits: bool) -> None:
        held = self.claim_at(number, is_stale=is_stale)
        if within:
            self.begin(commits)
        refused = self.do(Complete(held, within))
        if within and refused and self.model.opened is not None:
            self.model.opened.commits = False  # the handler's error rolls it back
            self.end_transaction()

    @rule(number=NUMBERS, times=st.sampled_from([2, 13]))
    def restless(self, number: int, times: int) -> None:
        """A job is given back after its start, again and again."""
        held = self.claim_at(number)
        if not self.may_claim(self.claim_by(held.slot)):
            self.is_born(held.slot)
        for _ in range(times):
            job = self.model.held(held.claim)
            if job is None or self.model.is_locked(job.id):
                return
            self.do(Settle(held.slot, ((held, What.INTERRUPTED),)))
            self.claim_all(held.slot)
            held = self.journal.claims.get(job.claim_id or 0, held)

    @rule(number=NUMBERS, snoozes=st.sampled_from([0, SNOOZES_FREE - 1, SNOOZES_FREE]))
    def procrastinates(self, number: int, snoozes: int) -> None:
        """A job is put off until it may not be any more: the count of a long life is set by hand."""
        job = self.ready_at(number)
        self.arena.call(self.arena.watcher.execute(f"UPDATE pqrun.jobs SET snoozes = {snoozes} WHERE id = {job.id}"))
        job.snoozes = snoozes
        self.is_born(slot := number % len(SLOTS))
        self.do(self.claim_by(slot))
        for held in self.held():
            if held.claim.job_id == job.id:
                self.do(Settle(slot, ((held, What.SNOOZED),)))

    # The registry.

    @rule(slot=st.sampled_from(SLOTS))
    def starts_anew(self, slot: int) -> None:
        self.is_born(slot)
        self.check()

    @rule(slot=st.sampled_from(SLOTS))
    def beats(self, slot: int) -> None:
        """A worker lives, and sees the others."""
        at = self.arena.slots[slot]
        beats = self.arena.call(registry.beat(at.session, at.worker))
        own = self.model.workers.get(at.worker)
        assert beats.is_registered is (own is not None and not own.is_dead), f"a beat of {own}: {beats}"
        if own is not None:
            own.beat += 0 if own.is_dead else 1
        living = {n: w for n, w in self.model.workers.items() if not w.is_dead and n != at.worker}
        assert {b.worker: (b.beat, b.worker_id) for b in beats.others} == {
            n: (w.beat, w.worker_id) for n, w in living.items()
        }
        free = self.arena.call(registry.probe_locks(at.session, list(living)))
        assert free == {n for n, w in living.items() if not w.has_lock}
        self.seen += beats.others

    @rule(slot=st.sampled_from(SLOTS), is_alive=st.booleans())
    def is_suspected(self, slot: int, is_alive: bool) -> None:
        """Taken for dead by what another observed: not if it has beaten since."""
        if not self.may_claim(self.claim_by(slot)):
            self.is_born(slot)
        self.beats((slot + 1) % len(SLOTS))
        if is_alive:
            self.beats(slot)
        observed = [beat for beat in self.seen if beat.worker == self.arena.slots[slot].worker]
        self.bury(observed[-1])
        self.check()

    @rule(number=NUMBERS)
    def is_buried(self, number: int) -> None:
        """By what was observed a long time ago."""
        if self.seen:
            self.bury(pick(number, self.seen))
            self.check()

    @rule(number=NUMBERS, is_resumed=st.booleans())
    def dies(self, number: int, is_resumed: bool) -> None:
        """A worker with a claim dies, and its jobs are recovered. Or it was only stopped, and goes on, knowing nothing."""
        slot = self.claim_at(number).slot
        self.is_taken_for_dead(slot)
        self.do(Reap(Reaper.LOST, (slot + 1) % len(SLOTS)))
        if is_resumed:
            self.claim_all(slot)
            self.beats(slot)

    @rule(slot=st.sampled_from(SLOTS))
    def is_taken_for_dead(self, slot: int) -> None:
        """No beat any more, and its lock is free."""
        self.loses_lock(slot)
        number = self.arena.slots[slot].worker
        if (worker := self.model.workers.get(number)) is not None:
            self.bury(Beat(number, worker.beat, worker.worker_id, has_lock=True))
        self.check()

    @rule(slot=st.sampled_from(SLOTS), is_emptied=st.booleans())
    def leaves(self, slot: int, is_emptied: bool) -> None:
        """By itself, or because somebody emptied the registry."""
        at = self.arena.slots[slot]
        if is_emptied:
            self.arena.call(self.arena.watcher.execute(f"DELETE FROM pqrun.workers WHERE id = {at.worker}"))
            self.model.workers.pop(at.worker, None)
            return
        self.arena.call(registry.deregister(at.session, at.worker))
        if (worker := self.model.workers.get(at.worker)) is not None and not worker.is_dead:
            worker.is_dead, worker.grave_age = True, 0.0
        self.check()

    # Maintenance, and time.

    @rule(slot=st.sampled_from(SLOTS), is_due=st.booleans())
    def promote(self, slot: int, is_due: bool) -> None:
        if not self.jobs_in(Status.SCHEDULED):
            self.do(Enqueue((self.numbered(Spec(0, delay=DELAY)),)))
        if is_due:
            self.time_passes(1)
        self.do(Promote(slot))

    @rule(number=NUMBERS, order=st.permutations(list(Reaper)), hundreds=st.sampled_from([0, 2]))
    def reap(self, number: int, order: list[Reaper], hundreds: int) -> None:
        """Each look of the reaper, at once and after a while."""
        slot = self.claim_at(number).slot
        for reaper in order:
            self.do(Reap(reaper, slot))
        if hundreds:
            self.time_passes(hundreds)
            for reaper in order:
                self.do(Reap(reaper, slot))

    @rule(slot=st.sampled_from(SLOTS), hundreds=st.integers(0, 3), is_full=st.booleans())
    def clean(self, slot: int, hundreds: int, is_full: bool) -> None:
        """History and graves, after a while; ``is_full``: in one of the graves is a job."""
        self.finished_at(slot, Status.FAILED)
        if is_full:
            self.is_taken_for_dead(self.claim_at(slot).slot)
        if hundreds or is_full:
            self.time_passes(max(hundreds, 1))
        work = self.arena.slots[slot].work
        assert self.arena.call(work.prune(age_seconds=PRUNE_AGE)) == (True, self.model.prune(PRUNE_AGE)), "prune"
        assert self.arena.call(self.arena.watcher.fetchval(ORPHANED)) == 0, "attempts of jobs that are gone"
        assert set(self.arena.call(work.forget_workers())) == self.model.forget(GRAVE_SECONDS), "graves"
        self.check()

    @rule(hundreds=st.sampled_from([1, 2, 3]))
    def time_passes(self, hundreds: int) -> None:
        self.end_transaction()
        self.arena.call(self.arena.pass_time(hundreds * 100.0))
        self.model.pass_time(hundreds * 100.0)
        self.check()

    # Two at once.

    @rule(slot=st.sampled_from(SLOTS), limit=st.integers(1, 4))
    def claims_race(self, slot: int, limit: int) -> None:
        one, other = slot, (slot + 1) % len(SLOTS)
        self.end_transaction()
        options = {"limit": limit, "free": 99, "is_alone": False}
        operations = self.claim_by(one, **options), self.claim_by(other, **options)
        waiting = len(self.model.claimable(LANES, TYPES, TYPES, limit * sum(map(self.may_claim, operations)), 99))
        answers = self.race(*operations)
        assert sum(len(batch.jobs) for batch in answers) == waiting  # what one passes is the other's

    @rule(number=NUMBERS, slot=st.sampled_from(SLOTS))
    def cancel_races_claim(self, number: int, slot: int) -> None:
        self.end_transaction()
        self.race(self.claim_by(slot, is_alone=False), Cancel(self.ready_at(number).id))

    @rule(number=NUMBERS, what=whats, other=whats)
    def ends_race(self, number: int, what: What, other: What) -> None:
        """One claim is settled over two connections."""
        self.end_transaction()
        held = self.claim_at(number)
        other_slot = (held.slot + 1) % len(SLOTS)
        self.race(Settle(held.slot, ((held, what),)), Settle(other_slot, ((held, other),)))

    @rule(number=NUMBERS, what=whats, is_completed=st.booleans())
    def cancel_races_end(self, number: int, what: What, is_completed: bool) -> None:
        self.end_transaction()
        held = self.claim_at(number)
        end: Operation[Any] = Complete(held, False) if is_completed else Settle(held.slot, ((held, what),))
        self.race(Cancel(held.claim.job_id), end)

    @rule(number=NUMBERS, what=whats)
    def recovery_races_end(self, number: int, what: What) -> None:
        self.end_transaction()
        held = self.claim_at(number)
        self.is_taken_for_dead(held.slot)
        reap = Reap(Reaper.LOST, (held.slot + 1) % len(SLOTS), is_alone=False)
        self.race(reap, Settle(held.slot, ((held, what),)))

    @rule(number=NUMBERS, what=whats, percent=st.integers(0, 100))
    def report_races_end(self, number: int, what: What, percent: int) -> None:
        self.end_transaction()
        held = self.claim_at(number)
        self.race(Say(held.slot, ((held.claim, percent),), is_alone=False), Settle(held.slot, ((held, what),)))

    @rule(number=NUMBERS, is_retried_twice=st.booleans())
    def retry_races(self, number: int, is_retried_twice: bool) -> None:
        """With a job that takes its key, or with another retry."""
        self.end_transaction()
        job = self.finished_at(number, Status.FAILED)
        other = Retry(job.id) if is_retried_twice else Enqueue((self.numbered(job.spec),))
        self.race(Retry(job.id), other)

    @rule(new=specs)
    def enqueues_race(self, new: Spec) -> None:
        self.race(Enqueue((self.numbered(new),)), Enqueue((self.numbered(new),)))


def machine_in(arena: Arena) -> type[StoreMachine]:
    """The state machine of this arena."""
    return type("BoundStoreMachine", (StoreMachine,), {"arena": arena})
