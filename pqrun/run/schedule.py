"""Schedules: declare what the code says, fire what is due, retire what the code has dropped.

Every worker does this for the job types that it has handlers for, as it claims only those. Which firings are made, and when the next is,
are decisions of ``pqrun.job.schedule``; the statement that writes them is fenced, so any number of workers may take one at once. A
schedule that cannot be planned or fired is told of once and tried again by itself; it holds up no other.
"""

import random
import time
from collections.abc import Sequence
from typing import Protocol

from pqrun.errors import DatabaseUnavailableError, StoreError
from pqrun.job.definition import ScheduleDefinition
from pqrun.job.policy import LoopErrorPolicy
from pqrun.job.schedule import Tick, plan_tick, run_after
from pqrun.job.storable import error_summary, one_line
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
from pqrun.run.service import Service
from pqrun.store.schedules import DueSchedule, DueSchedules, Firing
from pqrun.store.schedules import Fired as FiredRow

__all__ = ["Scheduler", "Scheduling"]

PIECE_JOBS = 2_000
"""Jobs that one statement inserts, unless a single schedule makes more."""

HELD_UP = frozenset({"55P03", "57014"})
"""A lock that was not had in time, or the whole statement not: it waited for a row or key of one schedule."""

POLL_SECONDS = 10.0
"""Between two looks where nothing is planned before: a change that was not heard of is found then."""

AGAIN_SECONDS = 1.0
"""Before another look at what is due and was not moved: another worker has it, or a statement failed."""

SPREAD_SECONDS = 0.01
"""By how much, at random, a worker looks later than the planned time: the first moves it, and the others find nothing to do."""

ORPHAN_SECONDS = 10.0
"""Between two tries to retire what the code has dropped, while workers of the older code still run."""


class Scheduling(Protocol):
    """What the scheduler needs of the store."""

    async def declare_schedules(
        self, definitions: Sequence[ScheduleDefinition], app: str
    ) -> list[tuple[ScheduleDefinition, str]]:
        """Store what is new or changed; return what was done about which."""
        ...

    async def orphan_schedules(self, app: str, names: Sequence[str]) -> list[str]:
        """Retire what the app's code has dropped."""
        ...

    async def find_due_schedules(self, job_types: Sequence[str], app: str | None, names: Sequence[str]) -> DueSchedules:
        """Look for what is due."""
        ...

    async def fire_schedules(self, firings: Sequence[Firing]) -> list[FiredRow]:
        """Insert the jobs and move the schedules on."""
        ...


class Scheduler:
    """See the module's docstring. ``app`` is None for a worker whose code declares no schedules."""

    def __init__(
        self,
        store: Scheduling,
        *,
        definitions: Sequence[ScheduleDefinition],
        app: str | None,
        job_types: Sequence[str],
        events: Events,
        policy: LoopErrorPolicy,
    ) -> None:
        self._store = store
        self._definitions = sorted(definitions, key=lambda definition: definition.name)
        self._names = [definition.name for definition in self._definitions]
        self._app = app
        self._job_types = list(job_types)
        self._events = events
        self._is_declared = not definitions
        self._next_orphaning = 0.0
        self._told: dict[str, str] = {}  # schedule → the error that was told; it is fired by itself until it works
        self.service = Service("schedule", self._tick, events=events, policy=policy)

    async def _tick(self) -> float:
        if not self._is_declared:
            await self._declare()
        look = await self._store.find_due_schedules(self._job_types, self._app, self._names)
        if look.has_dropped:
            await self._orphan()
        if look.due:
            return 0.0 if await self._fire(look) else AGAIN_SECONDS
        if look.next_in_seconds is None:
            return POLL_SECONDS
        spread = random.random() * SPREAD_SECONDS  # noqa: S311  # no secret
        return min(look.next_in_seconds + spread, POLL_SECONDS)

    async def _declare(self) -> None:
        assert self._app is not None  # noqa: S101  # only an app declares
        for definition, change in await self._store.declare_schedules(self._definitions, self._app):
            if change == "taken":
                self._events.emit(ScheduleTaken(definition.name))
            else:
                self._events.emit(ScheduleChanged(definition.name, change))
        self._is_declared = True

    async def _orphan(self) -> None:
        now = time.monotonic()
        if self._app is None or now < self._next_orphaning:
            return
        self._next_orphaning = now + ORPHAN_SECONDS
        for name in await self._store.orphan_schedules(self._app, self._names):
            self._events.emit(ScheduleOrphaned(name))

    async def _fire(self, look: DueSchedules) -> bool:
        """Fire what is due; return whether anything was moved on."""
        planned: dict[str, Tick] = {}
        together: list[Firing] = []
        alone: list[Firing] = []
        for schedule in look.due:
            firing = self._plan(schedule, look, planned)
            if firing is not None:
                (alone if schedule.name in self._told else together).append(firing)
        fired: list[FiredRow] = []
        for piece in _pieces(together):
            fired += await self._fire_together(piece)
        for firing in alone:
            fired += await self._fire_alone(firing)
        due = {schedule.name: schedule for schedule in look.due}
        for row in fired:
            self._tell(due[row.name], planned[row.name], row)
        return bool(fired)

    def _plan(self, schedule: DueSchedule, look: DueSchedules, planned: dict[str, Tick]) -> Firing | None:
        try:
            tick = plan_tick(schedule.rule, schedule.next_at, look.clock, schedule.catch_up)
        except Exception as error:  # noqa: BLE001  # whatever a rule that was written by hand makes its parser raise
            self._tell_failed(schedule.name, error)
            return None
        planned[schedule.name] = tick
        jobs = [(instant, run_after(schedule.name, instant, schedule.jitter)) for instant in tick.firings]
        return Firing(schedule, jobs, tick.next_at)

    async def _fire_together(self, firings: list[Firing]) -> list[FiredRow]:
        try:
            return await self._store.fire_schedules(firings)
        except StoreError as error:  # of one of them, it is not known which
            if _is_away(error):
                raise
            fired: list[FiredRow] = []
            for firing in firings:
                fired += await self._fire_alone(firing)
            return fired

    async def _fire_alone(self, firing: Firing) -> list[FiredRow]:
        try:
            fired = await self._store.fire_schedules([firing])
        except StoreError as error:
            if _is_away(error):
                raise
            self._tell_failed(firing.schedule.name, error)
            return []
        self._told.pop(firing.schedule.name, None)
        return fired

    def _tell_failed(self, name: str, error: Exception) -> None:
        text = one_line(error_summary(f"{type(error).__name__}: {error}"))
        if self._told.get(name) != text:
            self._told[name] = text
            self._events.emit(ScheduleFailed(name, text))

    def _tell(self, schedule: DueSchedule, tick: Tick, row: FiredRow) -> None:
        if tick.has_missed and schedule.next_at is not None:
            self._events.emit(FiringsMissed(row.name, schedule.next_at, schedule.catch_up, row.jobs))
        if row.jobs and row.last_job_id is not None:
            self._events.emit(Fired(row.name, tick.firings[-1], row.jobs, row.last_job_id))
        elif tick.firings:
            self._events.emit(FiringSkipped(row.name, tick.firings[-1], "overlap" if row.is_busy else "dedupe"))


def _pieces(firings: list[Firing]) -> list[list[Firing]]:
    """Cut what is to be fired into statements of bounded size: after an outage one schedule may make up for a thousand firings."""
    pieces: list[list[Firing]] = []
    jobs = 0  # of the last piece
    for firing in firings:
        if not pieces or jobs + len(firing.jobs) > PIECE_JOBS:
            pieces.append([])
            jobs = 0
        pieces[-1].append(firing)
        jobs += len(firing.jobs)
    return pieces


def _is_away(error: StoreError) -> bool:
    """Whether the whole database is to be waited for, and not one schedule to be blamed."""
    return isinstance(error, DatabaseUnavailableError) and error.sqlstate not in HELD_UP
