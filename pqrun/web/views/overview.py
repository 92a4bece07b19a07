"""The first page: each queue, what went through lately, who works, and whether something needs attention."""

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from pqrun.job.definition import Schedule
from pqrun.job.queue import QueueState
from pqrun.job.registered import RegisteredWorker
from pqrun.store import schedules as rows
from pqrun.store.attempts import find_error_groups
from pqrun.store.migrate import migrations
from pqrun.store.pages import MigrationRow, list_migrations, list_workers, see_database, see_tables
from pqrun.store.queues import find_queues
from pqrun.web.periods import PERIODS
from pqrun.web.views.errors import group_rows
from pqrun.web.views.queues import queue_rows, queue_warnings
from pqrun.web.views.schedules import LATE
from pqrun.web.views.system import database_warnings
from pqrun.web.visit import Visit
from pqrun.web.volumes import Counted, read_volumes

__all__ = ["overview_data"]

ERRORS_SHOWN: Final = 5
QUEUES_SHOWN: Final = 20
UPCOMING_SHOWN: Final = 5

SKEW_SECONDS: Final = 1.0
"""As ``pqrun doctor`` has it."""

UNREAPED_SECONDS: Final = 60.0
"""A silent worker that is not taken for dead for so long is seen by no reaper: one needs half of that."""


class UpcomingRow(NamedTuple):
    """A schedule that fires soon."""

    name: str
    words: str
    next_at: datetime


class Health(NamedTuple):
    """One thing that must work for jobs to run."""

    name: str
    is_well: bool
    words: str
    path: str
    """The page that says more."""


async def overview_data(visit: Visit) -> Mapping[str, object]:
    """``?range=`` says what "lately" means."""
    store = await visit.site.store()
    async with visit.reading() as session:
        states = await find_queues(session)
        workers = await list_workers(session)
        known = await rows.find(session)
        before = time.time()
        database = await see_database(session)
        ahead = (before + time.time()) / 2 - database.now.timestamp()
        tables = await see_tables(session, store.schema)
        applied = await list_migrations(session)
        groups = await find_error_groups(session.run, limit=ERRORS_SHOWN)
    now = database.now
    counted = await read_volumes(visit, now, "queue")
    trouble = database_warnings(database, tables)
    health = [
        _workers_health(workers),
        _reaper_health(workers),
        _scheduler_health(known.schedules, now),
        _clock_health(ahead),
        _schema_health(applied),
        _database_health(trouble),
    ]
    return {
        **_queues(states, counted),
        "counted": counted,
        "ranges": list(PERIODS),
        "health": health,
        "alive": [worker for worker in workers if worker.is_alive],
        "silent": [worker for worker in workers if not worker.is_alive],
        "states": {worker.id: worker.state for worker in workers},
        "errors": group_rows(visit, groups),
        "upcoming": _upcoming(known.schedules),
        "schedules": len(known.schedules),
        "paused": sum(one.state == "paused" for one in known.schedules),
        "warnings": [*queue_warnings(states), *_warnings(health, workers, known.schedules, now), *trouble],
        "now": now,
    }


def _queues(states: Sequence[QueueState], counted: Counted) -> dict[str, object]:
    """The queues that matter most, and the sums of all."""
    queues = queue_rows(states, counted)
    shown = sorted(queues, key=lambda row: row.weight, reverse=True)[:QUEUES_SHOWN]
    return {
        "queues": sorted(shown, key=lambda row: row.name),
        "all_queues": len(queues),
        "sums": {name: sum(getattr(state, name) for state in states) for name in ("ready", "running", "scheduled")},
        "at_least": frozenset[str]().union(*(state.at_least for state in states)),
    }


def _upcoming(schedules: Iterable[Schedule]) -> list[UpcomingRow]:
    active = (
        UpcomingRow(one.name, one.words, one.next_at) for one in schedules if one.state == "active" and one.next_at
    )
    return sorted(active, key=lambda one: one.next_at)[:UPCOMING_SHOWN]


def _late(schedules: Iterable[Schedule], now: datetime) -> list[str]:
    return [one.name for one in schedules if one.state == "active" and one.next_at and now - one.next_at > LATE]


def _number(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _workers_health(workers: Sequence[RegisteredWorker]) -> Health:
    alive = sum(worker.is_alive for worker in workers)
    silent = sum(worker.state == "silent" for worker in workers)
    words = f"{alive} alive" + (f", {silent} silent" if silent else "")
    return Health("workers", bool(alive) and not silent, words, "/workers")


def _reaper_health(workers: Sequence[RegisteredWorker]) -> Health:
    """Judged by what a reaper does, as none registers: it takes silent workers for dead, and their jobs from them."""
    left = [worker for worker in workers if worker.beat_age_seconds > UNREAPED_SECONDS and worker.dead_at is None]
    held = [worker for worker in workers if worker.dead_at is not None and worker.running]
    if left:
        return Health("reaper", False, f"{_number(len(left), 'silent worker')} not cleared away", "/workers")
    if held:
        return Health("reaper", True, f"recovers the jobs of {_number(len(held), 'dead worker')}", "/workers")
    return Health("reaper", True, "nothing to recover", "/workers")


def _scheduler_health(schedules: Sequence[Schedule], now: datetime) -> Health:
    late = _late(schedules, now)
    if late:
        return Health("scheduler", False, f"{len(late)} late", "/schedules")
    active = sum(one.state == "active" for one in schedules)
    return Health("scheduler", True, f"{active} on time" if active else "no active schedule", "/schedules")


def _clock_health(ahead: float) -> Health:
    words = f"{abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} the database"
    is_well = abs(ahead) <= SKEW_SECONDS
    return Health("clock of this host", is_well, "agrees with the database" if is_well else words, "/system")


def _schema_health(applied: Sequence[MigrationRow]) -> Health:
    done = {one.version for one in applied}
    missing = sum(one.version not in done for one in migrations())
    words = f"version {max(done, default=0):04}" + (f", {_number(missing, 'migration')} missing" if missing else "")
    return Health("schema", not missing, words, "/system")


def _database_health(trouble: Sequence[str]) -> Health:
    words = _number(len(trouble), "warning") if trouble else "no bloat, no long transaction"
    return Health("database", not trouble, words, "/system")


def _warnings(
    health: Iterable[Health], workers: Iterable[RegisteredWorker], schedules: Iterable[Schedule], now: datetime
) -> list[str]:
    silent = [worker.worker_id for worker in workers if worker.state == "silent"]
    late = _late(schedules, now)
    found = []
    if silent:
        found.append(f"No sign of life for some seconds: {', '.join(silent[:5])}.")
    if late:
        found.append(f"Late schedules, which no worker has fired: {', '.join(late[:5])}.")
    told = ("workers", "scheduler", "database")
    return found + [
        f"{one.name.capitalize()}: {one.words}." for one in health if not one.is_well and one.name not in told
    ]
