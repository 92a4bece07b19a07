"""The settler: outcomes gather while one settle is in flight, then go together, in one statement.

It promises that an outcome handed in is written as soon as the database takes it, if the claim still holds then: a database that is away
is asked again and again, with the loop's back-off, and what was in doubt is asked for before it is called lost. It never decides what
becomes of a job. In the worst case, a crash, what was finished within one settle round trip is run again.
"""

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol, assert_never

from pqrun.errors import DatabaseUnavailableError, StoreError
from pqrun.job import outcome as outcomes
from pqrun.job.failure import failure_of
from pqrun.job.outcome import Outcome
from pqrun.job.policy import LoopErrorPolicy
from pqrun.job.record import Claim, Job
from pqrun.job.signals import REASON_SHOWN_MAX
from pqrun.job.state import Status
from pqrun.job.storable import error_summary, one_line
from pqrun.run import events
from pqrun.run.events import Events
from pqrun.run.service import AT_ONCE, Service
from pqrun.store.settling import Settled

__all__ = ["Settlements", "Settler"]

SETTLE_ROWS = 1_000
"""Outcomes written by one statement."""

PENDING_MAX = 10_000
"""Outcomes that may wait for a slow or absent database before the worker stops starting jobs."""

AWAITED_MAX = 100_000
"""Ids remembered because somebody waits for them."""

AWAITED_SECONDS = 30.0
"""How long such an announcement is remembered; waiters repeat theirs."""


class Settlements(Protocol):
    """What the settler needs of the store."""

    async def settle(self, outcomes: list[Outcome], awaited: list[int]) -> list[Settled]:
        """Write the outcomes; return those that held."""
        ...

    async def find_claim(self, claim: Claim) -> Status | None:
        """Return the state that this claim finished its job with, if it did."""
        ...


class _Pending(NamedTuple):
    job: Job
    outcome: Outcome
    written: "asyncio.Future[None] | None"


class Settler:
    """Writes outcomes; see the module's docstring."""

    def __init__(
        self,
        store: Settlements,
        *,
        events: Events,
        policy: LoopErrorPolicy,
        on_due: Callable[[float], None],
        on_done: Callable[[Job, int], None] | None = None,
    ) -> None:
        self._store = store
        self._events = events
        self._on_due = on_due  # told when a retry of ours is due, in seconds
        self._on_done = on_done  # told of each DONE that was written, for less than an event costs
        self._pending: list[_Pending] = []  # appended by the executor, taken by the tick
        self._in_flight: list[_Pending] = []  # written by the tick alone; non-empty after a failure too
        self._in_doubt = False  # the last try may have been written
        self._refused: set[Claim] = set()  # no outcome of theirs can be stored
        self._awaited: dict[int, float] = {}  # id → when to forget it
        self._tells_done = True  # whether anybody listens: asked once for each batch
        self._idle = asyncio.Event()
        self._idle.set()
        self.service = Service("settle", self._tick, events=events, policy=policy)

    def submit(self, job: Job, outcome: Outcome) -> None:
        """Hand in an outcome to be written."""
        self._add(_Pending(job, outcome, None))

    async def submit_and_wait(self, job: Job, outcome: Outcome) -> None:
        """Hand in an outcome and wait until it is written (or its claim found lost)."""
        written = asyncio.get_running_loop().create_future()
        self._add(_Pending(job, outcome, written))
        await written

    @property
    def backlog(self) -> int:
        """How many outcomes are not written yet."""
        return len(self._pending) + len(self._in_flight)

    def unwritten(self) -> list[Claim]:
        """Return the claims whose rows may still say RUNNING though their handlers have ended."""
        return [*(p.outcome.claim for p in (*self._in_flight, *self._pending)), *self._refused]

    @property
    def is_full(self) -> bool:
        """Whether so many outcomes wait that no further job should start."""
        return self.backlog >= PENDING_MAX

    def await_ids(self, ids: list[int]) -> None:
        """Remember that somebody waits for these jobs: settling one then announces it."""
        until = time.monotonic() + AWAITED_SECONDS
        for job_id in ids:
            self._awaited.pop(job_id, None)
            self._awaited[job_id] = until
        while len(self._awaited) > AWAITED_MAX:
            del self._awaited[next(iter(self._awaited))]

    async def wait_flushed(self, timeout: float) -> bool:
        """Wait until everything handed in is written; return whether it was in time."""
        if self._idle.is_set():
            return True
        try:
            await asyncio.wait_for(self._idle.wait(), max(timeout, 0.0))
        except TimeoutError:
            return False
        return True

    def _add(self, pending: _Pending) -> None:
        self._pending.append(pending)
        if len(self._pending) == 1:  # those behind it go with it, or with the next: the tick looks again by itself
            self._idle.clear()
            self.service.wake()

    async def _tick(self) -> float:
        if not self._in_flight:
            self._in_flight, self._pending = self._pending[:SETTLE_ROWS], self._pending[SETTLE_ROWS:]
        if not self._in_flight:
            self._idle.set()
            return 60.0
        await self._write(list(self._in_flight))
        self._in_doubt = False
        if not self._pending:
            self._idle.set()
        return AT_ONCE if self._pending else 60.0

    async def _write(self, batch: list[_Pending]) -> None:
        try:
            settled = await self._settle(batch)
        except StoreError as error:
            if type(error) is not StoreError:
                raise  # a conflict or a missing schema says nothing about what the batch holds
            await self._write_one_by_one(batch)
            return
        await self._tell(batch, settled)

    async def _settle(self, batch: list[_Pending]) -> list[Settled]:
        try:
            return await self._store.settle([p.outcome for p in batch], self._awaited_of(batch))
        except StoreError as error:
            # A batch that is DONE takes two statements where a cancel was asked for, and the first may have held. In doubt such ends
            # are found by their claims; what goes back has no trace, so it is in doubt only where the connection broke.
            if isinstance(error, DatabaseUnavailableError) or all(type(p.outcome) is outcomes.Done for p in batch):
                self._in_doubt = True
            raise

    async def _write_one_by_one(self, batch: list[_Pending]) -> None:
        """The database refused the batch for what it holds: find the one, so that its neighbours are written."""
        for pending in batch:
            try:
                settled = await self._settle([pending])
            except StoreError as refused:
                if type(refused) is not StoreError:
                    raise
                await self._write_refused(pending, refused)
            else:
                await self._tell([pending], settled)

    async def _write_refused(self, pending: _Pending, refused: StoreError) -> None:
        error = f"the outcome could not be stored: {refused}"
        failed = pending._replace(outcome=outcomes.Failed(pending.outcome.claim, None, error, failure_of(refused)))
        try:
            settled = await self._settle([failed])
        except StoreError as again:
            if type(again) is not StoreError:
                raise
            # A trigger of the user's, say: whatever is written is refused. Trying for ever would hold up everybody's outcomes.
            text = f"no outcome of job {pending.job.id} can be stored, it stays RUNNING until this worker ends: {again}"
            self._events.emit(events.LoopFailed("settle", one_line(text), 1, 0.0))
            self._refused.add(pending.outcome.claim)
            self._over(pending)
            return
        await self._tell([failed], settled)

    async def _tell(self, batch: list[_Pending], settled: list[Settled]) -> None:
        written = {s.claim: s for s in settled}
        self._tells_done = self._events.hears(events.Done)
        if self._in_doubt:
            for outcome in (p.outcome for p in batch if p.outcome.claim not in written):
                if (before := await self._written_before(outcome)) is not None:
                    written[outcome.claim] = before
        # Nothing awaits from here on: what is told is out of flight, so that no later error makes it be written and told again.
        for pending in batch:
            found = written.get(pending.outcome.claim)
            if found is not None:
                self._tell_written(pending, found)
            else:
                self._events.emit(events.ClaimLost(pending.job))
            self._over(pending)

    def _over(self, pending: _Pending) -> None:
        del self._in_flight[0]  # outcomes are told in the order of the batch
        if pending.written is not None and not pending.written.done():
            pending.written.set_result(None)

    async def _written_before(self, outcome: Outcome) -> Settled | None:
        """After a try with unknown end: what that one wrote. A job that went back to waiting has no trace of its claim."""
        status = await self._store.find_claim(outcome.claim)
        if status is not None:
            # FAILED where we wrote something else: by a reaper, which had lost patience with us.
            is_ours = status is not Status.FAILED or isinstance(outcome, outcomes.Failed)
            return Settled(outcome.claim, status, None) if is_ours else None
        match outcome:
            case outcomes.Retrying() | outcomes.Snoozed():
                return Settled(outcome.claim, Status.SCHEDULED, outcome.delay_seconds)
            case outcomes.Released() | outcomes.Recovered():
                return Settled(outcome.claim, Status.READY, None)
            case _:
                return None

    def _awaited_of(self, batch: list[_Pending]) -> list[int]:
        if not self._awaited:
            return []
        now = time.monotonic()
        return [p.job.id for p in batch if self._awaited.get(p.job.id, 0.0) > now]

    def is_awaited(self, job_id: int) -> bool:
        """Whether somebody is known to wait for this job."""
        return self._awaited.get(job_id, 0.0) > time.monotonic()

    def _tell_written(self, pending: _Pending, settled: Settled) -> None:
        job, outcome = pending.job, pending.outcome
        if settled.status is Status.CANCELLED:
            self._events.emit(events.JobCancelled(job, _duration_of(outcome)))
            return
        match outcome:
            case outcomes.Done():
                if self._on_done is not None:
                    self._on_done(job, outcome.duration_ms)
                if self._tells_done:
                    self._events.emit(events.Done(job, outcome.duration_ms))
            case outcomes.Retrying():
                error = one_line(error_summary(outcome.error))
                self._events.emit(events.Retrying(job, error, outcome.delay_seconds, outcome.duration_ms))
                self._on_due(max(settled.due_in_seconds or 0.0, 0.0))
            case outcomes.Snoozed():
                self._events.emit(_snoozed(job, outcome))
                self._on_due(max(settled.due_in_seconds or 0.0, 0.0))
            case outcomes.Failed():
                error = one_line(error_summary(outcome.error))
                self._events.emit(events.Failed(job, error, outcome.duration_ms))
            case outcomes.Released():
                self._events.emit(events.Released(job, outcome.started))
            case outcomes.Cancelled() | outcomes.Recovered():
                pass  # a worker writes Cancelled as CANCELLED, handled above; only reapers recover
            case _:
                assert_never(outcome)


def _duration_of(outcome: Outcome) -> int | None:
    match outcome:
        case outcomes.Done() | outcomes.Retrying() | outcomes.Failed() | outcomes.Cancelled():
            return outcome.duration_ms
        case _:
            return None


def _snoozed(job: Job, outcome: outcomes.Snoozed) -> events.Snoozed | events.PutAside:
    if not outcome.is_chosen:
        return events.PutAside(job, outcome.delay_seconds)
    reason = None if outcome.reason is None else one_line(outcome.reason[:REASON_SHOWN_MAX])
    return events.Snoozed(job, outcome.delay_seconds, job.snoozes + 1, reason)
