"""The executor: slots, the jobs that wait for one, and the stopping of those that run.

It promises that each job taken ends in exactly one outcome handed on, or in none where the claim was lost; that a handler which ignores
being stopped loses its slot, its outcome and its claim after ``grace_seconds``; that a claim unstarted for UNSTARTED_SECONDS goes back;
and that an id which is still alive here is never claimed again. It knows nothing of the database.
"""

import asyncio
import contextlib
import contextvars
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from pqrun.job.outcome import Counts, Outcome, decide_release
from pqrun.job.pause import NO_PAUSES, Pauses
from pqrun.job.record import Claim, Job
from pqrun.job.serving import Serving
from pqrun.run import events
from pqrun.run.alarm import Alarm
from pqrun.run.attempt import Attempt, Completed, Surroundings, is_ran_out
from pqrun.run.blockage import InHand
from pqrun.run.events import Events
from pqrun.run.groups import SHARED, Capacity, Group, GroupName, Groups
from pqrun.run.handler import Handler
from pqrun.run.stopping import Stops

__all__ = ["Executor"]

UNSTARTED_SECONDS = 1.0
"""A claim that found no slot for so long goes back: another worker may have one."""

ALONE_SECONDS = 1.0
"""Around the start of a job that was lost before, nothing else starts for so long."""

ALONE_MOST_SECONDS = 10.0
"""How long a job lost twice waits for the others to end."""

_SWEEP_SECONDS = 0.25


class Executor:
    """Runs jobs; see the module's docstring. Everything happens on one event loop."""

    def __init__(
        self,
        *,
        handlers: Mapping[str, Handler],
        around: Surroundings,
        serving: Serving,
        grace_seconds: float,
        events: Events,
        deliver: Callable[[Job, Outcome], None],
        deliver_and_wait: Callable[[Job, Outcome], Awaitable[None]] | None,
        on_room: Callable[[GroupName], None],
        is_backlogged: Callable[[], bool],
        on_start: Callable[[Job, float], None] | None = None,
        on_done: Callable[[Job, int], None] | None = None,
    ) -> None:
        self._handlers = handlers
        self._around = around
        self._serving = serving
        self._groups = Groups(serving)
        self._events = events
        self._deliver = deliver
        self._deliver_and_wait = deliver_and_wait
        self._on_room = on_room
        self._is_backlogged = is_backlogged  # outcomes pile up unwritten: start nothing more
        self._on_start = on_start  # told of each start, and the seconds from claim to slot
        self._on_done = on_done  # told of each job that its own handler has completed
        self._context = contextvars.copy_context()  # each attempt runs in a copy: nothing leaks from job to job
        self._running: dict[Claim, Attempt] = {}
        self._reporting: dict[Claim, Outcome | Completed | None] = {}  # held back until the last report is written
        self._stops = Stops(self._running, grace_seconds=grace_seconds, events=events, ended=self._ended)
        self._alarm = Alarm(self._running, lambda attempt: self._stops.stop(attempt, "timeout"))
        self._pauses = NO_PAUSES
        self._is_changed = False  # what is served has been another: claims for that may still come
        self._is_closed = False  # no more starts
        self._is_alone = False  # a job that was lost before is about to start, or just did
        self._last_start = 0.0
        self._changed = asyncio.Event()  # set at each end and at close
        self._sweep: asyncio.TimerHandle | None = None
        self._threads_told = False
        self._tells_picked = True  # whether anybody listens: asked once for each piece of work that comes

    # What fetching asks.

    @property
    def groups(self) -> Sequence[GroupName]:
        """Names of the groups of queues that have slots."""
        return self._groups.names

    def capacity(self, group: GroupName = SHARED) -> Capacity:
        """Return what fits now into a group of queues."""
        if self._is_closed or self._is_alone or not self._serving.fetching or self._is_backlogged():
            return Capacity(0, 0)
        return self._groups.named(group).capacity(time.monotonic())

    @property
    def proven_types(self) -> Sequence[str]:
        """Types that may be fetched ahead."""
        return self._groups.shared.prefetch.proven

    def served_types(self) -> list[str]:
        """Return what may be claimed now: everything, but plain functions while too many given-up threads still run."""
        alive = self._stops.threads_alive
        if alive < self._serving.concurrency:
            self._threads_told = False
            return list(self._handlers)
        if not self._threads_told:
            self._threads_told = True
            self._events.emit(events.ThreadsExhausted(alive))
        return [name for name, handler in self._handlers.items() if handler.is_async]

    def alive_ids(self) -> list[int]:
        """Return ids that still run here without a slot: claiming them again would start them twice in one process."""
        return [attempt.job.id for attempt in self._stops.alive()]

    @property
    def has_unstarted(self) -> bool:
        """Whether claims wait for a slot."""
        return self._groups.has_waiting

    def in_hand(self, loop: asyncio.AbstractEventLoop) -> InHand:
        """Return what runs; for another thread too, while ``loop``, ours, stands still."""
        attempts = self._running.copy()  # in one step: what is copied may go on changing
        task = asyncio.current_task(loop)
        current = next((a.job for a in attempts.values() if task is not None and a.task is task), None)
        return InHand(current, tuple(attempt.job for attempt in attempts.values()))

    def attempts(self) -> list[Attempt]:
        """Return what runs, those that were given up at the end; for another thread too, while our loop stands still."""
        return [*self._running.copy().values(), *(attempt for attempt in self._stops.given_up if attempt.is_alive)]

    @property
    def running(self) -> int:
        """How many handlers run in slots."""
        return len(self._running)

    @property
    def held(self) -> int:
        """How many claims wait for a slot."""
        return sum(len(group.waiting) for group in self._groups.all)

    # What fetching brings.

    def take(self, jobs: Sequence[Job]) -> None:
        """Start these jobs, or keep them until a slot is free; after ``close`` they go back."""
        now = time.monotonic()
        self._tells_picked = self._events.hears(events.Picked)
        if self._pauses or self._is_changed:
            jobs = self._still_wanted(jobs)
        for group, meant in self._groups.sorted(jobs):
            group.waiting.extend([(job, now) for job in meant])
            group.low_water = group.prefetch.target(now) // 2
            self._fill(group)
        if self._is_closed:
            self.release_unstarted()
            return
        self._schedule_sweep()

    async def take_alone(self, job: Job) -> None:
        """Start a job that was running when its worker died, with nothing else starting around it."""
        self._is_alone = True
        try:
            if await self._wait_alone(job) and not self._is_unwanted(job):
                self._start(job, time.monotonic(), self._groups.of(job.queue))
                claim = Claim(job.id, job.claim_id or 0)
                await self._wait_until(lambda: self._is_closed or claim not in self._running, ALONE_SECONDS)
            else:
                self._release(job)
        finally:
            self._is_alone = False
        self._fill_all()

    async def _wait_alone(self, job: Job) -> bool:
        quiet = ALONE_SECONDS - (time.monotonic() - self._last_start)
        await self._wait_until(lambda: self._is_closed, max(quiet, 0.0))
        if job.lost > 1:
            await self._wait_until(lambda: self._is_closed or not self._running, ALONE_MOST_SECONDS)
        return not self._is_closed and self._groups.of(job.queue).has_slot

    async def _wait_until(self, condition: Callable[[], bool], seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()

    def known_claims(self) -> list[Claim]:
        """Return every claim that is known here and not yet handed to be settled."""
        return [*self._groups.waiting_claims(), *self._running, *(attempt.claim for attempt in self._stops.given_up)]

    # What renewing asks and tells.

    def claims(self) -> list[Claim]:
        """Return the claims in hand, but those that are being settled, by us or by their handler itself."""
        return self._groups.waiting_claims() + [
            claim for claim, attempt in self._running.items() if not (attempt.is_completed or attempt.is_over)
        ]

    def lose(self, claims: Sequence[Claim]) -> None:
        """Drop what is not ours any more: nothing is written, running handlers are told."""
        lost = set(claims)
        if not lost:
            return
        for job in self._groups.take_out(lambda job: Claim(job.id, job.claim_id or 0) in lost):
            self._events.emit(events.ClaimLost(job))
        for claim in lost:
            attempt = self._running.get(claim)
            if attempt is not None and not attempt.is_completed:
                self._stops.stop(attempt, "claim_lost")

    def cancel(self, claims: Sequence[Claim]) -> None:
        """Stop handlers whose jobs were asked to cancel; unstarted ones are given to the settle, which writes CANCELLED."""
        wanted = set(claims)
        for job in self._groups.take_out(lambda job: Claim(job.id, job.claim_id or 0) in wanted):
            self._release(job)
        for claim in wanted:
            if (attempt := self._running.get(claim)) is not None:
                self._stops.stop(attempt, "cancelled")

    # What is decided from outside.

    def pause(self, pauses: Pauses) -> None:
        """Give back what is paused and has not started; from now on also what comes and was claimed before."""
        self._pauses = pauses
        for job in self._groups.take_out(self._is_unwanted):
            self._release(job)

    def serve(self, serving: Serving) -> None:
        """Serve other queues, with other numbers, or nothing new: what runs goes on, what waits and is not served any more goes back."""
        self._serving, self._is_changed = serving, True
        for job in self._groups.take_out(self._is_unwanted):
            self._release(job)
        self._groups.serve(serving, [attempt.job.queue for attempt in self._running.values()])
        self._fill_all()

    def _is_unwanted(self, job: Job) -> bool:
        serving = self._serving
        return not serving.fetching or self._pauses.takes_back(job) or not serving.serves(job.queue)

    def _still_wanted(self, jobs: Sequence[Job]) -> Sequence[Job]:
        for job in filter(self._is_unwanted, jobs):
            self._release(job)
        return [job for job in jobs if not self._is_unwanted(job)]

    # Stopping.

    def close(self) -> None:
        """Start nothing more; give back what has not started."""
        self._is_closed = True
        self._changed.set()
        self.release_unstarted()

    def release_unstarted(self, older_than: float = 0.0) -> None:
        """Give back claims that have waited for ``older_than`` seconds or more."""
        now = time.monotonic()
        for group in self._groups.all:
            while group.waiting and now - group.waiting[0][1] >= older_than:
                self._release(group.waiting.popleft()[0])

    async def wait_idle(self, timeout: float) -> bool:
        """Wait until no handler runs; return whether that was in time."""
        await self._wait_until(lambda: not self._running, timeout)
        return not self._running

    def stop_all(self) -> None:
        """Ask all running handlers to stop, because of the shutdown."""
        for attempt in list(self._running.values()):
            self._stops.stop(attempt, "shutdown")

    def give_up_all(self) -> None:
        """Decide for all that still run, and ask the database no more; their tasks and threads are left to end by themselves."""
        for claim in list(self._reporting):
            self._hand_on(claim)
        self._stops.give_up_all()

    # Inside.

    def _fill(self, group: Group) -> None:
        while group.waiting and group.running < group.limit and not (self._is_alone or self._is_closed):
            self._start(*group.waiting.popleft(), group)

    def _fill_all(self) -> None:
        for group in self._groups.all:
            self._fill(group)

    def _start(self, job: Job, came: float, group: Group) -> None:
        attempt = Attempt(job, self._handlers[job.job_type], self._around)
        self._last_start = attempt.started
        self._running[attempt.claim] = attempt
        group.running += 1
        if self._on_start is not None:
            self._on_start(job, attempt.started - came)
        if self._tells_picked:
            waited = job.waited_seconds
            self._events.emit(events.Picked(job, None if waited is None else waited + attempt.started - came))
        # The attempt keeps its task alive: the loop itself holds tasks weakly.
        attempt.task = asyncio.get_running_loop().create_task(self._run(attempt), context=self._context.copy())
        if job.timeout_seconds is not None:
            attempt.deadline = attempt.started + job.timeout_seconds
            self._alarm.note(attempt.deadline)

    async def _run(self, attempt: Attempt) -> None:
        outcome = await attempt.run()
        if attempt.is_given_up:
            self._returned_late(attempt, outcome)
            return
        attempt.is_over = True
        if attempt.giving_up is not None:
            attempt.giving_up.cancel()
        if attempt.context._has_reported and not await self._report(attempt.claim, outcome):
            return
        if self._deliver_and_wait is not None and outcome is not None and not isinstance(outcome, Completed):
            await self._deliver_and_wait(attempt.job, outcome)
            self._ended(attempt, outcome, is_delivered=True)
        else:
            self._ended(attempt, outcome)

    async def _report(self, claim: Claim, outcome: Outcome | Completed | None) -> bool:
        """Have the last report written; return whether the outcome is still to be handed on."""
        self._reporting[claim] = outcome
        try:
            await self._around.reports.flush(claim)
        except asyncio.CancelledError:  # the event loop is torn down
            self._hand_on(claim)
            raise
        return self._reporting.pop(claim, self) is not self

    def _hand_on(self, claim: Claim) -> None:
        """The report is lost, the outcome is not."""
        if claim in self._reporting:
            self._ended(self._running[claim], self._reporting.pop(claim))

    def _ended(self, attempt: Attempt, outcome: Outcome | Completed | None, *, is_delivered: bool = False) -> None:
        del self._running[attempt.claim]
        group = self._groups.only or self._groups.of(attempt.job.queue)
        group.running -= 1
        if outcome is None:
            if not attempt.is_completed:  # else its own transaction decides, and has not yet
                self._events.emit(events.ClaimLost(attempt.job))
        elif isinstance(outcome, Completed):
            self._completed(attempt)
        elif not is_delivered:
            self._deliver(attempt.job, outcome)
        if is_ran_out(outcome):
            now = time.monotonic()
            group.prefetch.ended(attempt.job.job_type, now - attempt.started, now)
        self._changed.set()
        if group.waiting:
            self._fill(group)
        if len(group.waiting) <= group.low_water:
            self._on_room(group.name)

    def _returned_late(self, attempt: Attempt, outcome: Outcome | Completed | None) -> None:
        if attempt.is_thread_alive:
            return  # only its task has ended, with the event loop
        self._events.emit(events.LateReturn(attempt.job))
        match outcome:
            case None:
                pass  # the outcome was decided when it was given up
            case Completed():
                self._completed(attempt)
            case _:  # its transaction is over and has not committed: nobody else would write anything
                self._deliver(attempt.job, outcome)

    def _completed(self, attempt: Attempt) -> None:
        duration = attempt.duration_ms
        if self._on_done is not None:
            self._on_done(attempt.job, duration)
        self._events.emit(events.Done(attempt.job, duration))

    def _release(self, job: Job) -> None:
        counts = Counts(job.attempts, job.max_attempts, job.lost, job.releases)
        self._deliver(job, decide_release(Claim(job.id, job.claim_id or 0), counts, started=False))

    def _schedule_sweep(self) -> None:
        if self._sweep is None and self._groups.has_waiting:
            self._sweep = asyncio.get_running_loop().call_later(_SWEEP_SECONDS, self._swept)

    def _swept(self) -> None:
        self._sweep = None
        self.release_unstarted(UNSTARTED_SECONDS)
        self._schedule_sweep()
