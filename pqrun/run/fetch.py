"""The fetcher: promotes what is due, claims what fits, sleeps until there is reason to look again.

Notifications are hints and polling is the truth: a hint names a lane or a time, so that an idle worker looks at once and in the right
place; without any, the idle policy decides how long it sleeps, and a claim from the start of every lane comes every few seconds. It never
holds more than the executor asks for. When the database is away the tick fails, and the service's back-off paces it; a claim whose answer
was lost may have been written all the same, so it then looks for claims of this worker that nobody here knows of, and takes them up.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Protocol

from pqrun.errors import DatabaseUnavailableError
from pqrun.job.policy import IdlePollPolicy, LoopErrorPolicy, judge_idle_sleep
from pqrun.job.record import Claim, Job
from pqrun.run.cursor import Lanes
from pqrun.run.events import Events
from pqrun.run.service import AT_ONCE, Service
from pqrun.store.claiming import ClaimBatch, Lane, Promotion, Survey

__all__ = ["Claims", "Fetcher", "Slots"]

CLAIM_ROWS = 1_000
"""Jobs claimed by one statement at most."""

LOOK_EXTRA = 500
"""Rows looked at in a lane beyond those wanted, so that a few locked or unserved ones do not hide the rest."""

FULL_SECONDS = 1.0
"""While nothing more fits: a slot that becomes free ends the sleep at once."""

STREAM_SECONDS = 0.05
"""After a claim that found something, but less than was wanted: how soon to look again without a hint."""

LOOK_BACK_SECONDS = (0.0, 5.0, 30.0, 120.0, 600.0)
"""When to look for claims whose answer was lost: at once, and again, since the statement may reach the server long after that."""


_LOGGER = logging.getLogger("pqrun")


class Claims(Protocol):
    """What fetching needs of the store."""

    async def claim(
        self,
        lanes: Sequence[tuple[Lane, int]],
        types: Sequence[str],
        proven: Sequence[str],
        alive: Sequence[int],
        *,
        limit: int,
        look: int,
        free: int,
    ) -> ClaimBatch:
        """Claim up to ``limit`` jobs."""
        ...

    async def claim_suspect(
        self, queues: Sequence[str] | None, types: Sequence[str], alive: Sequence[int]
    ) -> Job | None:
        """Claim one job that was lost before."""
        ...

    async def find_forgotten(self, known: Sequence[Claim]) -> list[Job]:
        """Return jobs claimed for this worker that it does not know of."""
        ...

    async def survey(self, queues: Sequence[str] | None) -> Survey:
        """List lanes with jobs."""
        ...

    async def promote(self, after: datetime | None) -> Promotion:
        """Make due jobs READY."""
        ...


class Slots(Protocol):
    """What fetching needs of the executor."""

    def capacity(self) -> tuple[int, int]:
        """Return (free slots, claims to hold beyond them)."""
        ...

    def served_types(self) -> list[str]:
        """Return the types to claim."""
        ...

    def alive_ids(self) -> list[int]:
        """Return ids that must not be claimed."""
        ...

    def known_claims(self) -> list[Claim]:
        """Return the claims that it knows of."""
        ...

    @property
    def proven_types(self) -> Sequence[str]:
        """Types that may be fetched ahead."""
        ...

    @property
    def has_unstarted(self) -> bool:
        """Whether claims wait for a slot."""
        ...

    def take(self, jobs: Sequence[Job]) -> None:
        """Run these."""
        ...

    async def take_alone(self, job: Job) -> None:
        """Run this one apart from others."""
        ...


class Fetcher:
    """Fills the slots; see the module's docstring."""

    def __init__(
        self,
        store: Claims,
        slots: Slots,
        *,
        unwritten: Callable[[], list[Claim]],
        queues: Sequence[str] | None,
        idle_policy: IdlePollPolicy,
        events: Events,
        policy: LoopErrorPolicy,
    ) -> None:
        self._store = store
        self._slots = slots
        self._unwritten = unwritten  # claims that have ended here, and whose rows may not say so yet
        self._queues = None if queues is None else list(queues)
        self._idle_policy = idle_policy
        self._lanes = Lanes(queues)
        self._streak = 0  # claims in a row that found nothing
        self._is_hungry = False  # the last claim was filled: there is more where it came from
        self._needs_free = False  # and the next of it may only be claimed into a free slot
        self._has_suspect = False
        self._due_after: datetime | None = None  # the promotion's cursor
        self._next_due = 0.0  # monotonic time of the next promotion
        self._clock: float | None = None  # the database's, in epoch seconds, less ours
        self._is_hinted = False  # since the last scan: what was announced may lie below the cursors
        self._is_policy_good = True  # the idle policy's last answer was one
        self._look_back: list[float] = []  # monotonic times at which to look for claims whose answer was lost
        self.service = Service("fetch", self._tick, events=events, policy=policy)

    # Hints, from the keeper's notifications, the settler and the executor.

    def on_ready(self, lane: Lane) -> None:
        """Jobs were added to a lane."""
        self._lanes.add([lane])
        self._is_hinted = True
        self.service.wake()

    def on_suspect(self) -> None:
        """A job that lost its worker waits."""
        self._has_suspect = True
        self.service.wake()

    def on_due(self, seconds: float) -> None:
        """A job becomes due in so many seconds."""
        due = time.monotonic() + seconds
        if due < self._next_due:
            self._next_due = due
            self.service.wake()

    def on_due_at(self, epoch: float) -> None:
        """A job becomes due when the database's clock shows this; a job that is due already may lie below the promotion's cursor."""
        seconds = 0.0 if self._clock is None else epoch - self._clock - time.monotonic()
        self._is_hinted = self._is_hinted or seconds <= 0
        self.on_due(seconds)

    def on_room(self) -> None:
        """A slot became free: worth a claim only if the last one left something."""
        if self._is_hungry or self._has_suspect:
            self.service.wake()

    def on_reconnect(self) -> None:
        """Hints may have been missed: look everywhere. A promoted standby may also hold claims of this worker that have ended long ago."""
        self._lanes.scan_soon()
        self._next_due = 0.0
        self._due_after = None
        now = time.monotonic()
        self._look_back = [now, *(at for at in self._look_back if at > now)]
        self.service.wake()

    # The loop.

    async def _tick(self) -> float:
        if self._look_back and time.monotonic() >= self._look_back[0]:
            await self._take_forgotten()
        if sum(self._slots.capacity()) <= 0:
            self._is_hungry = True
            return FULL_SECONDS
        now = time.monotonic()
        is_scan = self._lanes.is_scan_due(now)
        if is_scan:
            self._is_hinted = False  # before the look: a hint that comes meanwhile counts
            await self._survey()
        if now >= self._next_due:
            await self._promote()
        if self._has_suspect:
            if self._slots.has_unstarted or self._slots.capacity()[0] <= 0:
                return FULL_SECONDS  # nothing else is claimed meanwhile: the next free slot is for the suspect
            await self._take_suspect()
        # Also after a suspect, and when there is none for us: others must not wait until the last of them is through.
        free, room = self._slots.capacity()
        if free + room <= 0:
            self._is_hungry = True
            return FULL_SECONDS
        found = 0
        if len(self._lanes):
            found = await self._claim(free, room, is_scan=is_scan)
        else:  # no claim says that there is more: to look again at once would be a loop that awaits nothing
            self._is_hungry = False
        if is_scan:
            self._lanes.scanned(now, time.monotonic())
        self._streak = 0 if found or self._is_hungry else self._streak + 1
        return 0.0 if self._has_suspect else self._sleep()

    async def _claim(self, free: int, room: int, *, is_scan: bool) -> int:
        limit = min(free + room, CLAIM_ROWS)
        with self._looking_back():
            batch = await self._store.claim(
                self._lanes.boundaries(time.monotonic(), from_start=is_scan),
                self._slots.served_types(),
                self._slots.proven_types,
                self._slots.alive_ids(),
                limit=limit,
                look=limit + LOOK_EXTRA,
                free=free,
            )
        self._lanes.looked(batch.looks, time.monotonic())
        self._needs_free = batch.is_barred
        self._is_hungry = batch.is_barred or len(batch.jobs) >= limit
        if batch.jobs:
            if self._is_hungry:
                self._lanes.filled(Lane(batch.jobs[-1].queue, batch.jobs[-1].priority))
            self._slots.take(batch.jobs)
        return len(batch.jobs)

    async def _take_suspect(self) -> None:
        """Claim one such job, and start nothing else beside it."""
        self._has_suspect = False  # before the look: a hint that comes meanwhile counts
        with self._looking_back():
            job = await self._store.claim_suspect(self._queues, self._slots.served_types(), self._slots.alive_ids())
        if job is not None:
            self._has_suspect = True  # there may be more
            await self._slots.take_alone(job)

    @contextlib.contextmanager
    def _looking_back(self) -> Iterator[None]:
        """A claim that ends with the connection may have been written: nobody would ever run what it took."""
        try:
            yield
        except DatabaseUnavailableError:
            now = time.monotonic()
            self._look_back = [now + seconds for seconds in LOOK_BACK_SECONDS]
            raise

    async def _take_forgotten(self) -> None:
        # No claim is under way here, so a claim of ours that is RUNNING and was unknown before the look is unknown for ever.
        jobs = await self._store.find_forgotten([*self._slots.known_claims(), *self._unwritten()])
        del self._look_back[0]
        self._slots.take([job for job in jobs if not job.lost])
        for job in jobs:
            if job.lost:
                await self._slots.take_alone(job)

    async def _promote(self) -> None:
        self._next_due = float("inf")  # a hint that comes during the statement, and that its snapshot misses, lowers it
        asked = time.monotonic()
        try:
            promoted = await self._store.promote(self._due_after)
        except BaseException:
            self._next_due = 0.0
            raise
        if promoted.clock is not None:
            self._clock = promoted.clock - asked
        self._lanes.add(promoted.lanes)
        self._has_suspect = self._has_suspect or promoted.has_suspect
        self._due_after = promoted.last_run_after or self._due_after
        if promoted.jobs:
            self._next_due = 0.0  # there may be more due than one statement takes
        elif promoted.next_in_seconds is not None:
            self._next_due = min(self._next_due, time.monotonic() + promoted.next_in_seconds)

    async def _survey(self) -> None:
        survey = await self._store.survey(self._queues)
        self._lanes.add(survey.lanes)
        self._has_suspect = self._has_suspect or survey.has_suspect
        # A scan from the start for promotions too: what committed late lies below their cursor.
        self._due_after = None
        self._next_due = 0.0

    def _sleep(self) -> float:
        if self._is_hungry:
            free, room = self._slots.capacity()
            return AT_ONCE if free > 0 or (room > 0 and not self._needs_free) else FULL_SECONDS
        now = time.monotonic()
        idle = STREAM_SECONDS if self._streak == 0 else self._idle_seconds()
        if self._is_hinted:
            # Late commits and returned jobs were announced, and were not found if their place lies below the cursor.
            idle = min(idle, self._lanes.scan_in(now))
        until = min([self._next_due, *self._look_back[:1]])
        return max(min(idle, until - now), 0.0)

    def _idle_seconds(self) -> float:
        judged = judge_idle_sleep(self._idle_policy, self._streak)
        if judged.complaint is not None and self._is_policy_good:
            _LOGGER.warning("the idle policy is replaced by the default: %s", judged.complaint)
        self._is_policy_good = judged.complaint is None
        return judged.value
