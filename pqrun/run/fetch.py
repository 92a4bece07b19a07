"""The fetcher: promotes what is due, claims what fits, sleeps until there is reason to look again.

Notifications are hints and polling is the truth: a hint names a lane or a time, so that an idle worker looks at once and in the right
place; without any, the idle policy decides how long it sleeps, and a claim from the start of every lane comes every few seconds. It never
holds more than the executor asks for. When the database is away the tick fails, and the service's back-off paces it; a claim whose answer
was lost may have been written all the same, so it then looks for claims of this worker that nobody here knows of, and takes them up.
"""

import logging
import time
from collections.abc import Callable
from datetime import datetime

from pqrun.job.pause import NO_PAUSES, Pauses
from pqrun.job.policy import IdlePollPolicy, LoopErrorPolicy, judge_idle_sleep
from pqrun.job.record import Claim
from pqrun.job.serving import Serving
from pqrun.run.cursor import Lanes
from pqrun.run.events import Events
from pqrun.run.groups import SHARED, GroupName
from pqrun.run.lookback import LookBack
from pqrun.run.ports import Claims, Slots
from pqrun.run.service import AT_ONCE, Service
from pqrun.store.claiming import ClaimBatch, Lane

__all__ = ["Fetcher"]

CLAIM_ROWS = 1_000
"""Jobs claimed by one statement at most."""

LOOK_EXTRA = 500
"""Rows looked at in a lane beyond those wanted, so that a few locked or unserved ones do not hide the rest."""

WALK_ROWS = 10_000
"""Rows looked at in a lane at once behind as many that are not for us, such as those of a paused task: some ten milliseconds."""

FULL_SECONDS = 1.0
"""While nothing more fits: a slot that becomes free ends the sleep at once."""

STREAM_SECONDS = 0.05
"""After a claim that found something, but less than was wanted: how soon to look again without a hint."""


_LOGGER = logging.getLogger("pqrun")


class Fetcher:
    """Fills the slots; see the module's docstring."""

    def __init__(
        self,
        store: Claims,
        slots: Slots,
        *,
        unwritten: Callable[[], list[Claim]],
        serving: Serving,
        idle_policy: IdlePollPolicy,
        events: Events,
        policy: LoopErrorPolicy,
    ) -> None:
        self._store = store
        self._slots = slots
        self._unwritten = unwritten  # claims that have ended here, and whose rows may not say so yet
        self._serving = serving
        self._idle_policy = idle_policy
        self._lanes = Lanes(serving.queues, serving.slots)
        self._streak = 0  # claims in a row that found nothing
        self._hungry: set[GroupName] = set()  # groups whose last claim was filled: there is more where it came from
        self._needs_free: set[GroupName] = set()  # and the next of it may only be claimed into a free slot
        self._unscanned: set[GroupName] = set()  # since the last survey: their next claim is one from the start
        self._has_suspect = False
        self._missed_suspect: set[GroupName] = (
            set()
        )  # groups that had no free slot when others were looked through for one
        self._due_after: datetime | None = None  # the promotion's cursor
        self._next_due = 0.0  # monotonic time of the next promotion
        self._clock: float | None = None  # the database's, in epoch seconds, less ours
        self._is_hinted = False  # since the last scan: what was announced may lie below the cursors
        self._pauses = NO_PAUSES  # as last heard; claims look for themselves
        self._is_policy_good = True  # the idle policy's last answer was one
        self._look_back = LookBack()
        self.service = Service("fetch", self._tick, events=events, policy=policy)

    # Hints, from the keeper's notifications, the settler and the executor.

    def on_ready(self, lane: Lane) -> None:
        """Jobs were added to a lane; while its queue is paused there is nothing to look for."""
        if lane.queue in self._pauses.queues:
            return
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

    def on_room(self, group: GroupName) -> None:
        """A slot became free: worth a claim only if the last one left something."""
        if group in self._missed_suspect:
            self._missed_suspect.clear()
            self._has_suspect = True
        if group in self._hungry or self._has_suspect:
            self.service.wake()

    def serve(self, serving: Serving) -> None:
        """Fetch for other queues, or other numbers, from now on."""
        self._serving = serving
        self._lanes.serve(serving.queues, serving.slots)
        self._hungry.clear()
        self._needs_free.clear()
        self._missed_suspect.clear()  # the scan finds it
        self._lanes.scan_soon()
        self.service.wake()

    def on_pauses(self, pauses: Pauses) -> None:
        """Something was paused or resumed: what was passed over meanwhile lies below the cursors."""
        if pauses.ends(self._pauses):
            self._lanes.scan_soon()
            self.service.wake()
        self._pauses = pauses

    def on_reconnect(self) -> None:
        """Hints may have been missed: look everywhere. A promoted standby may also hold claims of this worker that have ended long ago."""
        self._lanes.scan_soon()
        self._next_due = 0.0
        self._due_after = None
        self._look_back.soon()
        self.service.wake()

    # The loop.

    async def _tick(self) -> float:
        if self._look_back.is_due:
            await self._take_forgotten()
        if not any(sum(self._slots.capacity(group)) > 0 for group in self._slots.groups):
            self._hungry.update(self._slots.groups)
            return FULL_SECONDS
        now = time.monotonic()
        is_scan = self._lanes.is_scan_due(now)
        if is_scan:
            self._is_hinted = False  # before the look: a hint that comes meanwhile counts
            self._lanes.scanning()
            await self._survey()
        if now >= self._next_due:
            await self._promote()
        if self._has_suspect:
            free = [group for group in self._slots.groups if self._slots.capacity(group)[0] > 0]
            if self._slots.has_unstarted or not free:
                return FULL_SECONDS  # nothing else is claimed meanwhile: the next free slot is for the suspect
            await self._take_suspect(free)
        # Also after a suspect, and when there is none for us: others must not wait until the last of them is through.
        found = 0
        for group in self._slots.groups:
            if group in self._hungry:
                found += await self._walk(group)
            found += await self._fill(group)
            if group not in self._hungry:
                found += await self._walk(group)
        if is_scan:
            self._lanes.scanned(now, time.monotonic())
        self._streak = 0 if found or self._is_all_hungry or self._is_walking else self._streak + 1
        return 0.0 if self._has_suspect else self._sleep()

    async def _fill(self, group: GroupName) -> int:
        """Claim for a group of queues, first for the lanes that starve there; return how many."""
        free, room = self._slots.capacity(group)
        starved, starts = self._lanes.starved(time.monotonic(), group)
        if free + room <= 0 or (starved and free <= 0 and group in self._needs_free):
            self._hungry.add(group)
            return 0
        found = 0
        if starved:
            found = await self._claim_starved(group, starved, starts)
            free, room = self._slots.capacity(group)
            if free + room <= 0 or (group in self._needs_free and free <= 0):
                self._hungry.add(group)
                return found
        return found + await self._claim(group, free, room)

    async def _claim(self, group: GroupName, free: int, room: int) -> int:
        limit = min(free + room, CLAIM_ROWS)
        is_scan = group in self._unscanned
        lanes = self._lanes.boundaries(time.monotonic(), from_start=is_scan, group=group)
        batch = None if not lanes else await self._claim_from(lanes, limit, free, look=limit + LOOK_EXTRA)
        self._unscanned.discard(group)
        if batch is None:
            self._hungry.discard(group)
            return 0
        is_full = len(batch.jobs) >= limit
        _toggle(self._needs_free, group, batch.is_barred)
        _toggle(self._hungry, group, batch.is_barred or is_full)
        if not (batch.is_barred or is_full):
            self._lanes.emptied(group)
        elif batch.jobs:
            last = Lane(batch.jobs[-1].queue, batch.jobs[-1].priority)
            yielded = {look.lane for look in batch.looks} if is_scan else None
            self._lanes.filled(last, len(batch.jobs), time.monotonic(), yielded=yielded)
        self._lanes.cut(batch.cut, group)
        if batch.jobs:
            self._slots.take(batch.jobs)
        return len(batch.jobs)

    async def _walk(self, group: GroupName) -> int:
        """Go on behind rows that are not for us and fill a whole look, a piece with each tick: other lanes have their turn between.

        While claims are full: before the next one, in the lanes of higher priorities only.
        """
        lanes = self._lanes.walks(group, is_full=group in self._hungry)
        free, room = self._slots.capacity(group)
        if not lanes or free + room <= 0 or (free <= 0 and group in self._needs_free):
            return 0
        started = time.monotonic()
        limit = min(free + room, CLAIM_ROWS)
        batch = await self._claim_from(lanes, limit, free, look=WALK_ROWS)
        if batch.is_barred or len(batch.jobs) >= limit:
            _toggle(self._needs_free, group, batch.is_barred)
            self._hungry.add(group)
            self._lanes.cut(batch.looks, group)
        else:
            now = time.monotonic()
            self._lanes.walked([lane for lane, _ in lanes], batch.cut, now - started, now, group)
        if batch.jobs:
            self._slots.take(batch.jobs)
        return len(batch.jobs)

    async def _claim_starved(self, group: GroupName, lanes: list[tuple[Lane, int]], starts: int) -> int:
        free, room = self._slots.capacity(group)
        limit = min(starts, free + room, CLAIM_ROWS)
        batch = await self._claim_from(lanes, limit, free, look=limit + LOOK_EXTRA)
        if batch.is_barred and not batch.jobs:
            # It keeps its turn. With the next free slot it is claimed: nothing else is fetched ahead of it meanwhile.
            self._needs_free.add(group)
            return 0
        reached, empty = [lane for lane, _ in lanes], []
        if len(batch.jobs) >= limit:
            reached = reached[: reached.index(Lane(batch.jobs[-1].queue, batch.jobs[-1].priority)) + 1]
        elif not batch.is_barred:
            seen = {look.lane for look in batch.looks}
            empty = [lane for lane in reached if lane not in seen]
        self._lanes.relieved(reached, empty, time.monotonic(), group)
        if batch.jobs:
            self._slots.take(batch.jobs)
        return len(batch.jobs)

    async def _claim_from(self, lanes: list[tuple[Lane, int]], limit: int, free: int, *, look: int) -> ClaimBatch:
        with self._look_back.around_claim():
            batch = await self._store.claim(
                lanes,
                self._slots.served_types(),
                self._slots.proven_types,
                self._slots.alive_ids(),
                limit=limit,
                look=look,
                free=free,
            )
        is_filled = batch.is_barred or len(batch.jobs) >= limit
        self._lanes.looked(batch.looks, time.monotonic(), is_filled=is_filled)
        return batch

    async def _take_suspect(self, free: list[GroupName]) -> None:
        """Claim one such job of the groups that have a free slot, and start nothing else beside it."""
        self._has_suspect = False  # before the look: a hint that comes meanwhile counts
        queues = self._serving.queues
        if queues is not None and self._serving.slots:
            queues = tuple(q for q in queues if (q if q in self._serving.slots else SHARED) in free)
            self._missed_suspect = {group for group in self._slots.groups if group not in free}
        with self._look_back.around_claim():
            job = await self._store.claim_suspect(queues, self._slots.served_types(), self._slots.alive_ids())
        if job is not None:
            self._has_suspect = True  # there may be more
            await self._slots.take_alone(job)

    async def _take_forgotten(self) -> None:
        # No claim is under way here, so a claim of ours that is RUNNING and was unknown before the look is unknown for ever.
        jobs = await self._store.find_forgotten([*self._slots.known_claims(), *self._unwritten()])
        self._look_back.looked()
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
        survey = await self._store.survey(self._serving.queues)
        self._unscanned.update(self._slots.groups)
        self._lanes.add(survey.lanes)
        self._has_suspect = self._has_suspect or survey.has_suspect
        # A scan from the start for promotions too: what committed late lies below their cursor.
        self._due_after = None
        self._next_due = 0.0

    @property
    def _is_walking(self) -> bool:
        return any(self._lanes.walks(group) for group in self._slots.groups if group not in self._hungry)

    @property
    def _is_all_hungry(self) -> bool:
        return all(group in self._hungry for group in self._slots.groups)

    def _sleep(self) -> float:
        for group in self._hungry:
            free, room = self._slots.capacity(group)
            if free > 0 or (room > 0 and group not in self._needs_free):
                return AT_ONCE
        if self._is_walking:
            return 0.0
        if self._is_all_hungry:
            return FULL_SECONDS
        now = time.monotonic()
        idle = STREAM_SECONDS if self._streak == 0 else self._idle_seconds()
        if self._is_hinted:
            # Late commits and returned jobs were announced, and were not found if their place lies below the cursor.
            idle = min(idle, self._lanes.scan_in(now))
        until = min(self._next_due, self._look_back.next)
        return max(min(idle, until - now), 0.0)

    def _idle_seconds(self) -> float:
        judged = judge_idle_sleep(self._idle_policy, self._streak)
        if judged.complaint is not None and self._is_policy_good:
            _LOGGER.warning("the idle policy is replaced by the default: %s", judged.complaint)
        self._is_policy_good = judged.complaint is None
        return judged.value


def _toggle(groups: set[GroupName], group: GroupName, is_in: bool) -> None:
    if is_in:
        groups.add(group)
    else:
        groups.discard(group)
