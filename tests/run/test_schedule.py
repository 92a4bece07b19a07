"""The duty of schedules: how often it looks, what it tells, and that one bad schedule holds up no other. The store is a list here."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from pqrun.errors import DatabaseUnavailableError, StoreError
from pqrun.job.definition import ScheduleDefinition
from pqrun.job.policy import LoopErrorPolicy
from pqrun.job.record import NewJob
from pqrun.job.schedule import EveryRule
from pqrun.run import schedule as duty
from pqrun.run.events import (
    Events,
    Fired,
    FiringSkipped,
    FiringsMissed,
    ScheduleChanged,
    ScheduleFailed,
    ScheduleOrphaned,
    ScheduleTaken,
)
from pqrun.run.schedule import AGAIN_SECONDS, POLL_SECONDS, SPREAD_SECONDS, Scheduler
from pqrun.store.schedules import DueSchedule, DueSchedules, Firing
from pqrun.store.schedules import Fired as FiredRow
from tests.support.waiting import Recorder

HOUR = timedelta(hours=1)
NOW = datetime(2026, 1, 1, 12, 0, 1, tzinfo=UTC)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def due(name: str, next_at: datetime | None = NOON) -> DueSchedule:
    return DueSchedule(name, EveryRule(HOUR), "one", timedelta(0), next_at, 1)


class Stored:
    """Stands for the store: what is due, and what refuses to be fired."""

    def __init__(self, *waiting: DueSchedule, next_in_seconds: float | None = None) -> None:
        self.waiting = list(waiting)
        self.next_in_seconds = next_in_seconds
        self.has_dropped = False
        self.refused: dict[str, StoreError] = {}
        self.foreign: set[str] = set()  # another worker has moved them
        self.busy: set[str] = set()
        self.calls: list[list[str]] = []
        self.declared: list[str] = []
        self.changes: dict[str, str] = {}
        self.orphanings = 0

    async def declare_schedules(
        self, definitions: Sequence[ScheduleDefinition], app: str
    ) -> list[tuple[ScheduleDefinition, str]]:
        self.declared += [definition.name for definition in definitions]
        return [(one, self.changes[one.name]) for one in definitions if one.name in self.changes]

    async def orphan_schedules(self, app: str, names: Sequence[str]) -> list[str]:
        self.orphanings += 1
        return [f"{app} without {','.join(names)}"]

    async def find_due_schedules(self, job_types: Sequence[str], app: str | None, names: Sequence[str]) -> DueSchedules:
        return DueSchedules(list(self.waiting), NOW, self.next_in_seconds, self.has_dropped)

    async def fire_schedules(self, firings: Sequence[Firing]) -> list[FiredRow]:
        names = [firing.schedule.name for firing in firings]
        self.calls.append(names)
        for name in names:
            if name in self.refused:
                raise self.refused[name]
        done = []
        for firing in firings:
            name = firing.schedule.name
            self.waiting = [one for one in self.waiting if one.name != name]
            jobs = 0 if name in self.busy else len(firing.jobs)
            if name not in self.foreign:
                done.append(FiredRow(name, jobs, 7 if jobs else None, name in self.busy))
        return done


def scheduler(stored: Stored, *declared: str, app: str | None = "app") -> tuple[Scheduler, Recorder]:
    events = Events()
    definitions = [
        ScheduleDefinition(name=name, job=NewJob(job_type="t", payload="{}"), rule=EveryRule(HOUR)) for name in declared
    ]
    made = Scheduler(stored, definitions=definitions, app=app, job_types=["t"], events=events, policy=LoopErrorPolicy())
    return made, Recorder(events)


async def test_without_schedules_it_looks_every_ten_seconds_and_writes_nothing() -> None:
    stored = Stored()
    made, told = scheduler(stored)
    assert [await made._tick() for _ in range(3)] == [POLL_SECONDS] * 3
    assert (stored.calls, stored.declared, stored.orphanings, told.seen) == ([], [], 0, [])


@pytest.mark.parametrize(("next_in", "expected"), [(3.0, 3.0), (3600.0, POLL_SECONDS), (0.0, 0.0)])
async def test_it_looks_again_when_the_next_is_due_or_at_the_poll(next_in: float, expected: float) -> None:
    made, _ = scheduler(Stored(next_in_seconds=next_in))
    assert expected <= await made._tick() <= expected + SPREAD_SECONDS


async def test_what_is_due_is_fired_together_and_then_it_looks_at_once() -> None:
    stored = Stored(due("a"), due("b"))
    made, told = scheduler(stored)
    assert await made._tick() == 0.0
    assert stored.calls == [["a", "b"]]
    assert told.seen == [Fired("a", NOON, 1, 7), Fired("b", NOON, 1, 7)]
    assert await made._tick() == POLL_SECONDS


async def test_what_another_worker_has_in_hand_is_looked_at_again_a_little_later_and_not_told() -> None:
    stored = Stored(due("a"))
    stored.foreign.add("a")
    made, told = scheduler(stored)
    assert await made._tick() == AGAIN_SECONDS
    assert told.seen == []


async def test_missed_and_skipped_firings_are_told() -> None:
    stored = Stored(due("late", NOON - 3 * HOUR), due("busy"))
    stored.busy.add("busy")
    made, told = scheduler(stored)
    await made._tick()
    assert told.seen == [
        FiringsMissed("late", NOON - 3 * HOUR, "one", 1),
        Fired("late", NOON, 1, 7),
        FiringSkipped("busy", NOON, "overlap"),
    ]


async def test_a_schedule_without_a_plan_gets_one_in_silence() -> None:
    stored = Stored(due("a", None))
    made, told = scheduler(stored)
    assert await made._tick() == 0.0
    assert (stored.calls, told.seen) == ([["a"]], [])


async def test_many_missed_firings_go_in_statements_of_bounded_size() -> None:
    long_ago = NOON - 700 * HOUR
    stored = Stored(*(due(name, long_ago)._replace(catch_up="all") for name in "abcde"), due("f"), due("g", None))
    made, _ = scheduler(stored)
    assert await made._tick() == 0.0
    assert stored.calls == [["a", "b"], ["c", "d"], ["e", "f", "g"]]


async def test_one_that_the_database_refuses_is_fired_alone_from_then_on_and_told_once_per_error() -> None:
    stored = Stored(due("a"), due("bad"), due("c"))
    stored.refused["bad"] = StoreError("no")
    made, told = scheduler(stored)
    assert await made._tick() == 0.0
    assert stored.calls == [["a", "bad", "c"], ["a"], ["bad"], ["c"]]
    stored.calls.clear()
    stored.waiting.append(due("d"))
    assert await made._tick() == 0.0
    assert stored.calls == [["d"], ["bad"]]
    assert await made._tick() == AGAIN_SECONDS
    assert told.of(ScheduleFailed) == [ScheduleFailed("bad", "StoreError: no")]
    stored.refused["bad"] = StoreError("another reason")
    await made._tick()
    assert len(told.of(ScheduleFailed)) == 2
    del stored.refused["bad"]
    assert await made._tick() == 0.0
    assert told.of(Fired)[-1].schedule == "bad"


async def test_a_database_that_is_away_is_no_fault_of_a_schedule() -> None:
    stored = Stored(due("a"))
    stored.refused["a"] = DatabaseUnavailableError("gone")
    made, told = scheduler(stored)
    with pytest.raises(DatabaseUnavailableError):
        await made._tick()
    assert told.seen == []


async def test_a_lock_that_was_not_had_in_time_is_the_fault_of_one_schedule() -> None:
    stored = Stored(due("a"), due("b"))
    held = DatabaseUnavailableError("lock timeout")
    held.sqlstate = "55P03"
    stored.refused["a"] = held
    made, told = scheduler(stored)
    assert await made._tick() == 0.0
    assert [event.schedule for event in told.of(Fired)] == ["b"]
    assert [event.schedule for event in told.of(ScheduleFailed)] == ["a"]


async def test_what_the_code_declares_is_stored_once_and_told_where_it_changed_something() -> None:
    stored = Stored()
    stored.changes = {"b": "new", "c": "taken"}
    made, told = scheduler(stored, "c", "b", "a")
    await made._tick()
    await made._tick()
    assert stored.declared == ["a", "b", "c"]
    assert told.seen == [ScheduleChanged("b", "new"), ScheduleTaken("c")]


async def test_what_the_code_dropped_is_retired_at_most_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = Stored()
    stored.has_dropped = True
    made, told = scheduler(stored, "kept")
    await made._tick()
    await made._tick()
    assert stored.orphanings == 1
    assert told.of(ScheduleOrphaned) == [ScheduleOrphaned("app without kept")]
    monkeypatch.setattr(duty, "ORPHAN_SECONDS", 0.0)
    made._next_orphaning = 0.0
    await made._tick()
    await made._tick()
    assert stored.orphanings == 3


async def test_a_worker_without_an_app_retires_nothing() -> None:
    stored = Stored()
    stored.has_dropped = True
    made, _ = scheduler(stored, app=None)
    await made._tick()
    assert stored.orphanings == 0
