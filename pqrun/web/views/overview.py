"""The first page: each queue by state, what finished lately, who works, and whether something needs attention."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from pqrun.job.registered import RegisteredWorker
from pqrun.job.state import Status
from pqrun.store import schedules as rows
from pqrun.store.attempts import find_error_groups
from pqrun.store.pages import (
    ActiveCount,
    Ended,
    count_active,
    count_ended,
    list_workers,
    see_database,
    see_tables,
)
from pqrun.web.views.errors import group_rows
from pqrun.web.views.schedules import LATE
from pqrun.web.views.system import database_warnings
from pqrun.web.views.workers import state_of
from pqrun.web.visit import Visit

__all__ = ["overview_data"]

RANGES: Final = {"15m": 900.0, "1h": 3600.0, "6h": 21_600.0, "1d": 86_400.0, "7d": 604_800.0}
RANGE_DEFAULT: Final = "15m"

ERRORS_SHOWN: Final = 5

WAITS_LONG: Final = timedelta(minutes=5)


class QueueRow(NamedTuple):
    """A queue by state."""

    name: str
    ready: int
    running: int
    scheduled: int
    again: int
    """Of those that wait, the ones that were started before."""
    done: int
    failed: int
    cancelled: int
    waits: timedelta | None
    """How long the one that has waited longest could have been running."""
    workers: int


class UpcomingRow(NamedTuple):
    """A schedule that fires soon."""

    name: str
    words: str
    next_at: datetime


async def overview_data(visit: Visit) -> Mapping[str, object]:
    """``?range=`` says what "lately" means."""
    chosen = visit.query.get("range", RANGE_DEFAULT)
    chosen = chosen if chosen in RANGES else RANGE_DEFAULT
    store = await visit.site.store()
    async with visit.reading() as session:
        counts = await count_active(session)
        ended, is_ended_capped = await count_ended(session, RANGES[chosen])
        workers = await list_workers(session)
        known = await rows.find(session)
        database = await see_database(session)
        tables = await see_tables(session, store.schema)
        groups = await find_error_groups(session.run, limit=ERRORS_SHOWN)
    upcoming = sorted(
        (
            UpcomingRow(one.name, one.words, one.next_at)
            for one in known.schedules
            if one.state == "active" and one.next_at
        ),
        key=lambda one: one.next_at,
    )
    late = [
        one.name for one in known.schedules if one.state == "active" and one.next_at and counts.now - one.next_at > LATE
    ]
    queues = queue_rows(counts.active, ended, workers, counts.now)
    return {
        "queues": queues,
        "is_capped": counts.is_capped,
        "is_ended_capped": is_ended_capped,
        "range": chosen,
        "ranges": list(RANGES),
        "alive": [worker for worker in workers if worker.is_alive],
        "silent": [worker for worker in workers if not worker.is_alive],
        "states": {worker.id: state_of(worker) for worker in workers},
        "errors": group_rows(visit, groups),
        "running": sum(worker.running for worker in workers),
        "upcoming": upcoming[:5],
        "schedules": len(known.schedules),
        "paused": sum(one.state == "paused" for one in known.schedules),
        "warnings": [*_warnings(queues, workers, late), *database_warnings(database, tables)],
        "now": counts.now,
    }


def queue_rows(
    active: Iterable[ActiveCount], ended: Iterable[Ended], workers: Iterable[RegisteredWorker], now: datetime
) -> list[QueueRow]:
    """Return every queue that is known of, by name."""
    active, ended = list(active), list(ended)
    alive = [worker for worker in workers if worker.dead_at is None]
    named = {name for worker in alive for name in worker.queues or ()}
    names = named | {one.queue for one in active} | {one.queue for one in ended}
    return [_row(name, active, ended, alive, now) for name in sorted(names)]


def _row(
    name: str, active: Iterable[ActiveCount], ended: Iterable[Ended], alive: Iterable[RegisteredWorker], now: datetime
) -> QueueRow:
    own = [one for one in active if one.queue == name]
    over = [one for one in ended if one.queue == name]

    def waiting(status: Status) -> int:
        return sum(one.jobs for one in own if one.status is status)

    def finished(status: Status) -> int:
        return sum(one.jobs for one in over if one.status is status)

    ready = [one.oldest_due for one in own if one.status is Status.READY]
    return QueueRow(
        name=name,
        ready=waiting(Status.READY),
        running=waiting(Status.RUNNING),
        scheduled=waiting(Status.SCHEDULED),
        again=sum(one.again for one in own if one.status is not Status.RUNNING),
        done=finished(Status.DONE),
        failed=finished(Status.FAILED),
        cancelled=finished(Status.CANCELLED),
        waits=max(now - min(ready), timedelta(0)) if ready else None,
        workers=sum(worker.queues is None or name in worker.queues for worker in alive),
    )


def _warnings(queues: Iterable[QueueRow], workers: Iterable[RegisteredWorker], late: list[str]) -> list[str]:
    found: list[str] = []
    for queue in queues:
        if queue.ready and not queue.workers:
            found.append(f"Queue {queue.name}: {queue.ready:,} ready, and no worker serves it.")
        elif queue.waits is not None and queue.waits > WAITS_LONG:
            found.append(
                f"Queue {queue.name}: a job has been ready for {queue.waits.total_seconds() / 60:,.0f} minutes."
            )
    silent = [worker.worker_id for worker in workers if state_of(worker) == "silent"]
    if silent:
        found.append(f"No sign of life for some seconds: {', '.join(silent[:5])}.")
    if late:
        found.append(f"Late schedules, which no worker has fired: {', '.join(late[:5])}.")
    return found
