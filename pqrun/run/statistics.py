"""Statistics: a worker counts what happens to jobs, and adds a row per minute, queue and task to the database.

``Tally`` counts: on the way of every job it is a few additions, called directly, since an event would cost more; what is rare it hears as
events. An end counts when its write has held. ``StatisticsWriter`` is the duty: at each full minute of the database's clock it takes what
was counted and adds it, all in one statement, and at the worker's end the rest. While the database is away, minutes are kept and added
later; beyond ROWS_MAX the oldest are dropped, which the log tells. What a killed worker counted in its last minute is lost.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from pqrun.errors import StoreError
from pqrun.job.policy import LoopErrorPolicy
from pqrun.job.record import Job
from pqrun.job.state import Status
from pqrun.job.statistics import MinuteCounts
from pqrun.run import events
from pqrun.run.events import Events
from pqrun.run.service import Service
from pqrun.store.statistics import Minute

__all__ = ["Minutes", "StatisticsWriter", "Tally"]

PAIRS_MAX = 1_000
"""Queues and tasks that are told apart within one minute of one worker; what is beyond counts for the queue OTHER."""

OTHER: Final = "(other)"

ROWS_MAX = 20_000
"""Rows kept while the database is away: sixteen hours of twenty tasks."""

MINUTE_SECONDS = 60.0

JITTER_SECONDS = 2.0
"""Workers take their minutes all at once, and add them within this time."""

FOLD_SECONDS = 1.0
"""Of what was appended: at ten thousands of jobs a second, counting it takes a millisecond."""

PRUNE_SECONDS = 600.0
"""Between two looks for old rows."""

PIECE_SECONDS = 0.05
"""Between two pieces: vacuum and everybody else get their turn."""

FLUSH_SECONDS = 2.0
"""What the end of a worker waits for its last minute at most."""

_RARE: Final = frozenset(
    {
        *(events.Retrying, events.Failed, events.JobCancelled, events.Released, events.Snoozed, events.PutAside),
        events.Recovered,
    }
)

_LOGGER = logging.getLogger("pqrun")


class Minutes(Protocol):
    """What writing statistics needs of the store."""

    @property
    def worker(self) -> int:
        """The row of this worker in the registry."""
        ...

    async def add_statistics(self, minutes: Sequence[Minute]) -> float:
        """Add rows, once, however often it is tried; return the database's clock in seconds of the epoch."""
        ...

    async def prune_statistics(self, *, age_seconds: float) -> bool:
        """Delete a piece of old rows; return whether there may be more."""
        ...


class Tally:
    """The counts of the minute under way. Everything happens on the worker's loop."""

    def __init__(self) -> None:
        self._counts: dict[
            str, dict[str, MinuteCounts]
        ] = {}  # by job_type, then queue: nested is looked up faster than pairs
        self._pairs = 0

    def started(self, job: Job, held: float) -> None:
        """Count a start, ``held`` seconds after the claim, and how long the job had been due."""
        try:
            counts = self._counts[job.job_type][job.queue]
        except KeyError:
            counts = self._find(job.queue, job.job_type)
        if job.lost or job.releases:
            counts.started += 1
            return
        # Job.waited_seconds, written out: for each job that is started, which in all takes some microseconds.
        due, made = job._run_after, job._created_at
        if made > due:  # type: ignore[operator]  # of a claim all times are numbers
            due = made
        waited: float = job._locked_at - due + held  # type: ignore[operator]  # the same
        (counts.first_waits if job.attempts == 1 and not job.snoozes else counts.later_waits).append(waited)

    def done(self, job: Job, milliseconds: int) -> None:
        """Count a DONE that was written."""
        try:
            self._counts[job.job_type][job.queue].done_times.append(milliseconds)
        except KeyError:
            self._find(job.queue, job.job_type).done_times.append(milliseconds)

    def fold(self) -> None:
        """Count what was appended; from time to time, so that there is never much of it."""
        for queues in self._counts.values():
            for counts in queues.values():
                counts.fold()

    @staticmethod
    def wants(kind: type[events.Event]) -> bool:
        """Whether this kind of event is counted: none of those that every job makes."""
        return kind in _RARE

    def hear(self, event: events.Event) -> None:
        """Count what is rare."""
        match event:
            case events.Retrying(job=job, duration_ms=milliseconds):
                self._ended(job, "retrying", milliseconds)
            case events.Failed(job=job, duration_ms=milliseconds):
                self._ended(job, "failed", milliseconds)
            case events.JobCancelled(job=job, duration_ms=milliseconds):
                self._ended(job, "cancelled", milliseconds)
            case events.Snoozed(job=job):
                self._ended(job, "snoozed", None)
            case events.Released(job=job) | events.PutAside(job=job):
                self._ended(job, "released", None)
            case events.Recovered():
                self._recovered(event)
            case _:
                pass

    def take(self) -> list[tuple[str, str, MinuteCounts]]:
        """Return what was counted, by queue and job_type, and begin anew."""
        self.fold()
        taken = [(queue, name, counts) for name, queues in self._counts.items() for queue, counts in queues.items()]
        self._counts, self._pairs = {}, 0
        return taken

    def _find(self, queue: str, job_type: str) -> MinuteCounts:
        if (found := self._counts.get(job_type, {}).get(queue)) is not None:
            return found
        if self._pairs >= PAIRS_MAX:
            return self._counts.setdefault(OTHER, {}).setdefault(OTHER, MinuteCounts())
        self._pairs += 1
        return self._counts.setdefault(job_type, {}).setdefault(queue, MinuteCounts())

    def _ended(self, job: Job, outcome: str, milliseconds: int | None) -> None:
        counts = self._find(job.queue, job.job_type)
        setattr(counts, outcome, getattr(counts, outcome) + 1)
        if milliseconds is not None:
            counts.other_times.append(milliseconds)

    def _recovered(self, event: events.Recovered) -> None:
        counts = self._find(event.queue, event.job_type)
        counts.lost += event.is_lost
        match event.status:
            case Status.SCHEDULED:
                counts.retrying += 1
            case Status.FAILED:
                counts.failed += 1
            case Status.CANCELLED:
                counts.cancelled += 1
            case _:
                pass


class StatisticsWriter:
    """See the module's docstring."""

    def __init__(self, store: Minutes, *, keep_seconds: float, events: Events, policy: LoopErrorPolicy) -> None:
        self._store = store
        self.tally = Tally()
        self._events = events
        self._unsubscribe: Callable[[], None] = lambda: None  # until there is a subscription
        self._keep_seconds = keep_seconds
        self._rows: list[Minute] = []  # not known to be written, the oldest first
        self._clock: float | None = None  # the database's, in epoch seconds, less our monotonic one
        self._minute = 0  # that is being counted: of the epoch
        self._write_at = 0.0  # monotonic
        self._prune_at = 0.0
        self.service = Service("statistics", self._tick, events=events, policy=policy)

    def start(self) -> None:
        """Begin to count and to write; the worker is registered."""
        self._unsubscribe = self._events.subscribe(self.tally.hear, wants=Tally.wants)
        self.service.start()

    async def stop(self, timeout: float) -> None:
        """Add what is left, at the worker's end, within this time; the log tells where that failed."""
        self._unsubscribe()
        timeout = min(timeout, FLUSH_SECONDS)
        await self.service.stop(timeout / 2)
        if self._clock is None:
            return
        self._take(self._now_minute())
        with contextlib.suppress(StoreError, TimeoutError):
            await asyncio.wait_for(self._write(), timeout / 2)
        if self._rows:
            _LOGGER.warning("%d rows of statistics could not be written at the end, and are lost", len(self._rows))

    async def _tick(self) -> float:
        if self._clock is None:
            await self._write()
            self._minute = self._now_minute()
        self.tally.fold()
        now = time.monotonic()
        minute = self._now_minute()
        if minute > self._minute:  # not where the clock was set back: then this one is long
            self._take(minute)
            self._write_at = now + random.uniform(0, JITTER_SECONDS)  # noqa: S311  # jitter, not a secret
        if self._rows:
            if now < self._write_at:
                return min(self._write_at - now, FOLD_SECONDS)
            await self._write()
        if now >= self._prune_at:
            await self._prune()
        return min(self._until_next_minute(), max(self._prune_at - time.monotonic(), PIECE_SECONDS))

    def _take(self, following: int) -> None:
        at, self._minute = self._minute * MINUTE_SECONDS, following
        taken = self.tally.take()
        self._rows += [Minute(at, self._store.worker, *counted) for counted in taken]
        if len(self._rows) > ROWS_MAX:
            _LOGGER.warning(
                "the oldest %d rows of statistics are dropped: the database was away for too long",
                len(self._rows) - ROWS_MAX,
            )
            del self._rows[:-ROWS_MAX]

    async def _write(self) -> None:
        rows = list(self._rows)
        clock = await self._store.add_statistics(rows)
        self._clock = clock - time.monotonic()
        del self._rows[: len(rows)]

    async def _prune(self) -> None:
        is_more = await self._store.prune_statistics(age_seconds=self._keep_seconds)
        self._prune_at = time.monotonic() + (0.0 if is_more else PRUNE_SECONDS)

    def _now_minute(self) -> int:
        assert self._clock is not None  # noqa: S101  # asked once it is known
        return int((time.monotonic() + self._clock) // MINUTE_SECONDS)

    def _until_next_minute(self) -> float:
        assert self._clock is not None  # noqa: S101  # the same
        seconds = (self._minute + 1) * MINUTE_SECONDS - self._clock - time.monotonic()
        return min(max(seconds, 0.01), FOLD_SECONDS)
