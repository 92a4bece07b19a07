"""The fetcher: what it asks the store for, and when."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime

import pytest

from pqrun.errors import DatabaseUnavailableError, SchemaError
from pqrun.job.policy import IdlePollPolicy, LoopErrorPolicy
from pqrun.job.record import Claim, Job
from pqrun.run.events import Events, LoopFailed
from pqrun.run.fetch import CLAIM_ROWS, Fetcher
from pqrun.store.claiming import ClaimBatch, Lane, Promotion, Survey
from tests.run.making import claim_of, make_job
from tests.support.jobs import NOW
from tests.support.waiting import Recorder, wait_until

LANE = Lane("default", 0)
HOUR = 3_600.0
UNWRITTEN = Claim(77, 1077)


class Shelf:
    """Stands for the store: jobs on a shelf, and a note of each question."""

    def __init__(self) -> None:
        self.ready: list[Job] = []
        self.suspects: list[Job] = []
        self.lanes: list[Lane] = [LANE]
        self.has_foreign_suspect = False  # one of a type that is not served here
        self.is_barred = False
        self.promotions: list[Promotion] = []
        self.failures: list[Exception] = []
        self.promote_failures: list[Exception] = []
        self.surveys = 0
        self.forgotten: list[Job] = []  # claimed, and the answer was lost
        self.known: list[list[Claim]] = []  # what each look for them was told
        self.promoted_after: list[datetime | None] = []
        self.claims: list[tuple[int, int]] = []  # limit, free
        self.claimed_lanes: list[list[tuple[Lane, int]]] = []
        self.during_promote: Callable[[], None] = lambda: None
        self.during_suspect: Callable[[], None] = lambda: None

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
        self.claims.append((limit, free))
        self.claimed_lanes.append(list(lanes))
        if self.failures:
            raise self.failures.pop(0)
        taken, self.ready = self.ready[:limit], self.ready[limit:]
        return ClaimBatch(taken, [], self.is_barred)

    async def claim_suspect(
        self, queues: Sequence[str] | None, types: Sequence[str], alive: Sequence[int]
    ) -> Job | None:
        found = self.suspects.pop(0) if self.suspects else None
        self.during_suspect()
        return found

    async def find_forgotten(self, known: Sequence[Claim]) -> list[Job]:
        self.known.append(list(known))
        found, self.forgotten = self.forgotten, []
        return found

    async def survey(self, queues: Sequence[str] | None) -> Survey:
        self.surveys += 1
        return Survey(self.lanes, bool(self.suspects) or self.has_foreign_suspect)

    async def promote(self, after: datetime | None) -> Promotion:
        self.promoted_after.append(after)
        self.during_promote()
        if self.promote_failures:
            raise self.promote_failures.pop(0)
        return self.promotions.pop(0) if self.promotions else Promotion([], 0, False, None, None)


class Slots:
    """Stands for the executor: so many slots; jobs stay until told to end."""

    def __init__(self, concurrency: int = 10, room: int = 0) -> None:
        self.concurrency = concurrency
        self.room = room
        self.taken: list[Job] = []
        self.alone: list[Job] = []
        self.order: list[int] = []  # ids of both, as they came
        self.running = 0
        self.has_unstarted = False
        self.proven_types: Sequence[str] = []

    def capacity(self) -> tuple[int, int]:
        return self.concurrency - self.running, self.room

    def served_types(self) -> list[str]:
        return ["t"]

    def alive_ids(self) -> list[int]:
        return []

    def known_claims(self) -> list[Claim]:
        return [claim_of(job) for job in self.taken]

    def take(self, jobs: Sequence[Job]) -> None:
        self.taken.extend(jobs)
        self.order.extend(job.id for job in jobs)
        self.running += len(jobs)

    async def take_alone(self, job: Job) -> None:
        self.alone.append(job)
        self.order.append(job.id)
        await asyncio.sleep(0)


class Streaks(IdlePollPolicy):
    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []

    def next_sleep(self, empty_streak: int) -> float:
        self.asked.append(empty_streak)
        return 0.0


@asynccontextmanager
async def fetching(
    shelf: Shelf, slots: Slots, *, idle: IdlePollPolicy | None = None, events: Events | None = None
) -> AsyncIterator[Fetcher]:
    """A running fetcher that sleeps for an hour unless something wakes it."""
    fetcher = Fetcher(
        shelf,
        slots,
        unwritten=lambda: [UNWRITTEN],
        queues=None,
        idle_policy=idle or IdlePollPolicy(HOUR, HOUR),
        events=events or Events(),
        policy=LoopErrorPolicy(),
    )
    fetcher.service.start()
    try:
        yield fetcher
    finally:
        assert await fetcher.service.stop(30)


async def resting(shelf: Shelf) -> None:
    """Until it has looked and found nothing, and sleeps."""
    await wait_until(lambda: shelf.claims)
    for _ in range(20):
        await asyncio.sleep(0)


async def test_it_claims_no_more_than_fits_and_says_how_many_slots_are_free() -> None:
    shelf, slots = Shelf(), Slots(concurrency=3, room=4)
    async with fetching(shelf, slots):
        await resting(shelf)
    assert shelf.claims[0] == (7, 3)


async def test_one_claim_is_bounded_whatever_fits() -> None:
    shelf, slots = Shelf(), Slots(concurrency=CLAIM_ROWS * 3)
    async with fetching(shelf, slots):
        await resting(shelf)
    assert shelf.claims[0][0] == CLAIM_ROWS


async def test_while_nothing_fits_nothing_is_asked_and_a_free_slot_is_filled_at_once() -> None:
    shelf, slots = Shelf(), Slots(concurrency=1)
    shelf.ready = [make_job(1), make_job(2)]
    async with fetching(shelf, slots) as fetcher:
        await wait_until(lambda: len(slots.taken) == 1)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(shelf.claims) == 1
        slots.running = 0
        fetcher.on_room()
        await wait_until(lambda: len(slots.taken) == 2)


async def test_a_free_slot_is_not_worth_a_look_when_the_last_one_found_nothing() -> None:
    shelf, slots = Shelf(), Slots()
    async with fetching(shelf, slots) as fetcher:
        await resting(shelf)
        for _ in range(20):
            fetcher.on_room()
            await asyncio.sleep(0)
        assert len(shelf.claims) == 1


async def test_a_barred_claim_waits_for_a_free_slot_even_if_there_is_room_ahead() -> None:
    shelf, slots = Shelf(), Slots(concurrency=1, room=5)
    shelf.ready, shelf.is_barred = [make_job(1)], True
    async with fetching(shelf, slots) as fetcher:
        await wait_until(lambda: len(slots.taken) == 1)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(shelf.claims) == 1
        shelf.ready, shelf.is_barred = [make_job(2)], False
        slots.running = 0
        fetcher.on_room()
        await wait_until(lambda: len(slots.taken) == 2)


async def test_a_hint_makes_an_idle_worker_look_into_that_lane() -> None:
    shelf, slots = Shelf(), Slots()
    other = Lane("new", 7)
    async with fetching(shelf, slots) as fetcher:
        await resting(shelf)
        shelf.ready = [make_job(1)]
        fetcher.on_ready(other)
        await wait_until(lambda: slots.taken)
    assert other in [lane for lane, _ in shelf.claimed_lanes[-1]]


async def test_without_any_lane_nothing_is_claimed() -> None:
    shelf, slots = Shelf(), Slots()
    shelf.lanes = []
    async with fetching(shelf, slots) as fetcher:
        await wait_until(lambda: shelf.surveys)
        for _ in range(20):
            await asyncio.sleep(0)
        assert shelf.claims == []
        fetcher.on_ready(LANE)
        await wait_until(lambda: shelf.claims)


async def test_the_idle_policy_is_asked_with_the_streak_and_work_resets_it() -> None:
    shelf, slots, idle = Shelf(), Slots(), Streaks()
    async with fetching(shelf, slots, idle=idle) as fetcher:
        await wait_until(lambda: len(idle.asked) >= 3)
        assert idle.asked[:3] == [1, 2, 3]
        shelf.ready = [make_job(1)]
        fetcher.on_ready(LANE)
        await wait_until(lambda: slots.taken)
        asked = len(idle.asked)
        await wait_until(lambda: len(idle.asked) > asked)
        assert idle.asked[asked] == 1


async def test_an_idle_policy_that_misbehaves_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Streaks):
        def next_sleep(self, empty_streak: int) -> float:
            super().next_sleep(empty_streak)
            return -1.0

    shelf, slots, idle = Shelf(), Slots(), Broken()
    async with fetching(shelf, slots, idle=idle) as fetcher:
        await wait_until(lambda: idle.asked)
        fetcher.on_ready(LANE)
        await wait_until(lambda: len(idle.asked) == 2)
    (record,) = caplog.records
    assert "Broken.next_sleep returned -1" in record.getMessage()


async def test_what_is_due_is_promoted_until_nothing_is_left_and_claimed() -> None:
    shelf, slots = Shelf(), Slots()
    later = Lane("later", 3)
    shelf.promotions = [Promotion([later], 1_000, False, NOW, 0.0), Promotion([later], 1, False, NOW, None)]
    async with fetching(shelf, slots):
        await wait_until(lambda: len(shelf.promoted_after) == 3)
    assert shelf.promoted_after == [None, NOW, NOW]
    assert later in [lane for lane, _ in shelf.claimed_lanes[-1]]


async def test_a_job_for_later_is_promoted_when_it_is_due() -> None:
    shelf, slots = Shelf(), Slots()
    shelf.promotions = [Promotion([], 0, False, None, 0.05)]
    async with fetching(shelf, slots):
        await wait_until(lambda: len(shelf.promoted_after) == 2)


async def test_a_hint_of_an_earlier_due_time_shortens_the_sleep() -> None:
    shelf, slots = Shelf(), Slots()
    shelf.promotions = [Promotion([], 0, False, None, HOUR)]
    async with fetching(shelf, slots) as fetcher:
        await resting(shelf)
        assert len(shelf.promoted_after) == 1
        fetcher.on_due(0.02)
        await wait_until(lambda: len(shelf.promoted_after) == 2)


async def test_a_due_time_is_read_by_the_databases_clock() -> None:
    shelf, slots = Shelf(), Slots()
    shelf.promotions = [Promotion([], 0, False, None, HOUR, clock=1_000.0)]
    async with fetching(shelf, slots) as fetcher:
        await resting(shelf)
        fetcher.on_due_at(1_000.0 + HOUR / 2)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(shelf.promoted_after) == 1
        fetcher.on_due_at(1_000.1)
        await wait_until(lambda: len(shelf.promoted_after) == 2, seconds=5)


async def test_what_was_announced_and_not_found_is_scanned_for_when_a_scan_may_be_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pqrun.run.cursor.SCAN_LEAST_SECONDS", 0.3)
    shelf, slots = Shelf(), Slots()
    async with fetching(shelf, slots) as fetcher:
        await resting(shelf)
        fetcher.on_ready(LANE)  # its place lies below the cursor: a late commit, or a job that came back
        await wait_until(lambda: len(shelf.claims) == 2)
        assert shelf.surveys == 1
        await wait_until(lambda: shelf.surveys == 2, seconds=5)
        fetcher.on_due_at(0.0)
        await wait_until(lambda: shelf.surveys == 3, seconds=5)


async def test_a_due_time_announced_during_a_promotion_is_not_lost() -> None:
    shelf, slots = Shelf(), Slots()
    async with fetching(shelf, slots) as fetcher:
        await resting(shelf)
        asked = len(shelf.promoted_after)

        def announce() -> None:
            shelf.during_promote = lambda: None
            fetcher.on_due(0.02)  # committed after this statement's snapshot

        shelf.during_promote = announce
        fetcher.on_due(0.0)
        await wait_until(lambda: len(shelf.promoted_after) >= asked + 2, seconds=5)


async def test_a_promotion_that_failed_is_tried_again() -> None:
    shelf, slots = Shelf(), Slots()
    async with fetching(shelf, slots) as fetcher:
        await resting(shelf)
        asked = len(shelf.promoted_after)
        shelf.promote_failures = [DatabaseUnavailableError("gone")] * 2
        fetcher.on_due(0.0)
        await wait_until(lambda: len(shelf.promoted_after) == asked + 3)


async def test_a_reconnect_makes_it_look_everywhere_again() -> None:
    shelf, slots = Shelf(), Slots()
    shelf.promotions = [Promotion([], 1, False, NOW, None)]
    async with fetching(shelf, slots) as fetcher:
        await wait_until(lambda: len(shelf.promoted_after) == 2)
        await resting(shelf)
        before = shelf.surveys
        fetcher.on_reconnect()
        await wait_until(lambda: shelf.surveys > before)
        await wait_until(lambda: len(shelf.promoted_after) == 3)
    assert shelf.promoted_after == [None, NOW, None]


async def test_an_error_of_the_database_is_told_and_the_next_claim_works() -> None:
    shelf, slots, events = Shelf(), Slots(), Events()
    heard = Recorder(events)
    shelf.failures = [DatabaseUnavailableError("gone"), DatabaseUnavailableError("gone")]
    shelf.ready = [make_job(1)]
    async with fetching(shelf, slots, events=events):
        await wait_until(lambda: slots.taken)
    assert [(e.duty, e.error, e.consecutive) for e in heard.of(LoopFailed)] == [
        ("fetch", "gone", 1),
        ("fetch", "gone", 2),
    ]


async def test_a_job_that_lost_its_worker_is_taken_alone() -> None:
    shelf, slots = Shelf(), Slots()
    shelf.suspects = [make_job(9, lost=1)]
    async with fetching(shelf, slots):
        await wait_until(lambda: slots.alone)
    assert [job.id for job in slots.alone] == [9]
    assert slots.taken == []


async def test_a_suspect_waits_until_nothing_unstarted_is_held() -> None:
    shelf, slots = Shelf(), Slots()
    slots.has_unstarted = True
    shelf.suspects = [make_job(9, lost=1)]
    async with fetching(shelf, slots) as fetcher:
        await wait_until(lambda: shelf.surveys)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(shelf.suspects) == 1
        slots.has_unstarted = False
        fetcher.on_room()
        await wait_until(lambda: slots.alone)


async def test_a_suspect_waits_for_a_slot() -> None:
    shelf, slots = Shelf(), Slots(concurrency=1, room=3)
    slots.running = 1
    shelf.suspects = [make_job(9, lost=1)]
    async with fetching(shelf, slots) as fetcher:
        await wait_until(lambda: shelf.surveys)
        assert slots.alone == []
        slots.running = 0
        fetcher.on_room()
        await wait_until(lambda: slots.alone)


async def test_a_suspect_that_only_others_can_run_keeps_nothing_from_being_claimed_and_makes_no_hot_loop() -> None:
    shelf, slots = Shelf(), Slots()
    shelf.has_foreign_suspect = True
    shelf.ready = [make_job(1)]
    async with fetching(shelf, slots):
        await wait_until(lambda: slots.taken, seconds=5)
        await resting(shelf)
        assert shelf.surveys == 1


async def test_many_suspects_do_not_keep_other_jobs_waiting() -> None:
    shelf, slots = Shelf(), Slots()
    shelf.suspects = [make_job(100 + number, lost=1) for number in range(50)]
    shelf.ready = [make_job(1)]
    async with fetching(shelf, slots):
        await wait_until(lambda: len(slots.alone) == 50)
    assert slots.order.index(1) <= 1


async def test_a_suspect_announced_while_the_last_look_found_none_is_not_lost() -> None:
    shelf, slots = Shelf(), Slots()
    async with fetching(shelf, slots) as fetcher:
        await resting(shelf)

        def announce() -> None:
            shelf.during_suspect = lambda: None
            shelf.suspects = [make_job(9, lost=1)]
            fetcher.on_suspect()

        shelf.during_suspect = announce
        fetcher.on_suspect()
        await wait_until(lambda: slots.alone, seconds=5)


async def test_a_claim_under_way_at_the_stop_is_not_cut_off() -> None:
    shelf, slots = Shelf(), Slots()
    entered, gate = asyncio.Event(), asyncio.Event()

    class Slow(Shelf):
        async def survey(self, queues: Sequence[str] | None) -> Survey:
            entered.set()
            await gate.wait()
            return await super().survey(queues)

    shelf = Slow()
    shelf.ready = [make_job(1)]
    async with fetching(shelf, slots) as fetcher:
        await asyncio.wait_for(entered.wait(), 30)
        fetcher.service.stop_soon()
        gate.set()
    assert [job.id for job in slots.taken] == [1]


async def test_a_claim_whose_answer_was_lost_is_looked_for_and_its_jobs_are_run() -> None:
    shelf, slots = Shelf(), Slots()
    shelf.ready = [make_job(1)]
    async with fetching(shelf, slots) as fetcher:
        await wait_until(lambda: slots.taken)
        assert not shelf.known  # nothing was lost
        shelf.failures = [DatabaseUnavailableError("gone")]
        shelf.forgotten = [make_job(2), make_job(3, lost=1)]
        fetcher.on_ready(LANE)
        await wait_until(lambda: slots.alone)
    assert slots.order == [1, 2, 3]
    assert [job.id for job in slots.alone] == [3]
    assert shelf.known == [[claim_of(make_job(1)), UNWRITTEN]]


async def test_after_a_reconnect_claims_are_looked_for_that_only_the_database_knows_of() -> None:
    """A promoted standby may not have heard of an end that was written; no claim of this worker need have failed meanwhile."""
    shelf, slots = Shelf(), Slots()
    async with fetching(shelf, slots) as fetcher:
        await resting(shelf)
        shelf.forgotten = [make_job(2)]
        fetcher.on_reconnect()
        await wait_until(lambda: slots.taken)
    assert slots.order == [2]
    assert shelf.known == [[UNWRITTEN]]


async def test_a_claim_that_the_database_refused_has_taken_nothing() -> None:
    shelf, slots = Shelf(), Slots()
    shelf.failures = [SchemaError("missing")]
    async with fetching(shelf, slots):
        await wait_until(lambda: len(shelf.claims) > 1)
    assert not shelf.known


async def test_slots_that_become_free_while_no_lane_is_known_are_no_loop_without_a_pause() -> None:
    """A worker whose only jobs are suspects knows no lane: it must not call that a reason to claim again at once."""
    shelf, slots = Shelf(), Slots(concurrency=1)
    shelf.lanes = []
    slots.running = 1
    fetcher = Fetcher(
        shelf,
        slots,
        unwritten=list,
        queues=None,
        idle_policy=IdlePollPolicy(HOUR, HOUR),
        events=Events(),
        policy=LoopErrorPolicy(),
    )
    assert await fetcher._tick() > 0  # hungry: there is no room
    slots.running = 0
    assert await fetcher._tick() >= 0  # the survey, which finds none
    assert await fetcher._tick() > 0
    assert shelf.claims == []
