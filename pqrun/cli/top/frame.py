"""What one look finds: read by some five short statements, each of which looks at a bounded number of rows."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from pqrun.job.queue import QueueState
from pqrun.job.registered import RegisteredWorker
from pqrun.job.state import Status
from pqrun.store import PgJobStore
from pqrun.store.ended import count_ended
from pqrun.store.workers import LongRunning, find_longest

__all__ = ["Ended", "Frame", "Minute", "read_frame"]

MINUTES: Final = 5
"""Of statistics that are shown, the last of them complete."""

ENDED_SECONDS: Final = 60.0

LONGEST: Final = 50


class Minute(msgspec.Struct, frozen=True, kw_only=True):
    """What all workers counted in one minute."""

    at: datetime
    arrived: int
    """Jobs that were started for the first time."""
    done: int
    failed: int
    retrying: int
    """Attempts that failed and left the job another."""


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs that ended in the last 60 seconds, by the table of jobs: there also where nobody counts statistics."""

    done: int = 0
    failed: int = 0
    cancelled: int = 0
    at_least: bool = False
    """There may be more: only so many were looked at."""


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """One look."""

    at: datetime
    """By the database's clock."""
    queues: Sequence[QueueState]
    minutes: Sequence[Minute]
    """The last complete ones in which anything happened, the newest last; empty where statistics are switched off."""
    last_minute: Ended
    error_rate: float | None
    """Of the attempts that ended in ``minutes``, the share that failed; without them of the jobs of ``last_minute``; None: none ended."""
    workers: Sequence[RegisteredWorker]
    slowest: Sequence[LongRunning]


async def read_frame(store: PgJobStore) -> Frame:
    """Look; raises StoreError and SchemaError."""
    now, slowest = await find_longest(store, LONGEST)
    minutes = await _minutes(store, now)
    ended = await _ended(store)
    return Frame(
        at=now,
        queues=sorted(await store.queues(), key=lambda queue: (-queue.ready, -queue.running, queue.name)),
        minutes=minutes,
        last_minute=ended,
        error_rate=_error_rate(minutes, ended),
        workers=await store.list_workers(),
        slowest=slowest,
    )


async def _minutes(store: PgJobStore, now: datetime) -> list[Minute]:
    until = now.replace(second=0, microsecond=0)
    rows = await store.statistics(until - timedelta(minutes=MINUTES), until, by="all")
    return [
        Minute(at=row.at, arrived=row.arrived, done=row.done, failed=row.failed, retrying=row.retrying) for row in rows
    ]


async def _ended(store: PgJobStore) -> Ended:
    groups, is_cut = await count_ended(store, ENDED_SECONDS)
    by_status = {status: sum(one.jobs for one in groups if one.status is status) for status in Status}
    return Ended(
        done=by_status[Status.DONE],
        failed=by_status[Status.FAILED],
        cancelled=by_status[Status.CANCELLED],
        at_least=is_cut,
    )


def _error_rate(minutes: Sequence[Minute], ended: Ended) -> float | None:
    failed = sum(minute.failed + minute.retrying for minute in minutes) if minutes else ended.failed
    done = sum(minute.done for minute in minutes) if minutes else ended.done
    return failed / (failed + done) if failed + done else None
