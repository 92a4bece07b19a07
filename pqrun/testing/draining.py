"""Drain: run everything that is due, with a real worker, until nothing is.

It starts a worker of the app in the caller's event loop, asks the database after each end whether anything due is left, and stops it when
there is nothing. So claims, timeouts, retries, results and cancels are those of production, and so is what happens when the test drops the
connections meanwhile. It stops with an error at its limits: a task that defers itself for ever is told, not waited for.
"""

import asyncio
import contextlib
import time
from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any

from pqrun.app import App
from pqrun.errors import OptionError
from pqrun.job.options import check_queue
from pqrun.job.record import Job
from pqrun.job.state import Status
from pqrun.run import events
from pqrun.store import PgJobStore
from pqrun.store.rehearsing import Unended, count_due, list_active
from pqrun.testing.calls import hearing_errors
from pqrun.testing.opening import opened, run_sync
from pqrun.testing.report import DrainReport, DrainStopped, Ran, Waiting

__all__ = ["drain", "drain_sync"]

MAX_JOBS = 1_000
TIMEOUT_SECONDS = 60.0

LOOK_SECONDS = 0.05
"""How soon to look again for what tells nobody: a job in another worker's hands, a commit of another process's."""


class _Watch:
    """Hears the worker and notes each end."""

    def __init__(self, max_jobs: int) -> None:
        self.ran: list[Ran] = []
        self.trouble: str | None = None  # of the worker itself, as long as it lasts
        self.recovered: list[int] = []
        self.changed = asyncio.Event()
        self._max_jobs = max_jobs
        self._starts = 0
        self._in_hand: set[int | None] = set()  # claims whose handlers have started
        self._errors: dict[int | None, BaseException] = {}  # of a claim

    @property
    def is_idle(self) -> bool:
        """Whether no handler runs, as far as was heard."""
        return not self._in_hand

    @property
    def is_beyond(self) -> bool:
        """Whether more has started than may."""
        return self._starts > self._max_jobs

    def raised(self, job: Job, error: BaseException) -> None:
        """A handler raised; maybe in a thread."""
        self._errors[job.claim_id] = error

    def hear(self, event: events.Event) -> None:
        """Note one event of the worker."""
        match event:
            case events.Picked(job=job):
                self._starts += 1
                self._in_hand.add(job.claim_id)
            case events.Done(job=job):
                self._end(job, Status.DONE)
            case events.Retrying(job=job, error=error):
                self._end(job, Status.SCHEDULED, error)
            case events.Failed(job=job, error=error):
                self._end(job, Status.FAILED, error)
            case events.Snoozed() | events.PutAside():
                self._put_off(event)
            case events.JobCancelled(job=job):
                self._end(job, Status.CANCELLED)
            case events.ClaimLost(job=job):
                self._end(job, Status.READY, "the claim was lost: the job was recovered, ended or removed elsewhere")
            case events.Released(job=job, started=True):
                self._end(job, Status.READY, "stopped, and given back")
            case events.Recovered(job_id=job_id):
                self.recovered.append(job_id)
            case events.LoopFailed(duty=duty, error=error):
                self.trouble = f"{duty}: {error}"
            case events.LoopResumed():
                self.trouble = None
            case _:
                return
        self.changed.set()

    def _put_off(self, event: events.Snoozed | events.PutAside) -> None:
        job = event.job
        self._in_hand.discard(job.claim_id)
        self._errors.pop(job.claim_id, None)
        if isinstance(event, events.Snoozed):  # else its handler was not even called
            self.ran.append(Ran(job.job_type, job.id, job.attempts, Status.SCHEDULED, is_snoozed=True))

    def _end(self, job: Job, status: Status, error: str | None = None) -> None:
        self._in_hand.discard(job.claim_id)
        exception = self._errors.pop(job.claim_id, None)
        raised = exception if status in (Status.FAILED, Status.SCHEDULED) else None
        self.ran.append(Ran(job.job_type, job.id, job.attempts, status, error, raised))


async def drain(
    jobs: App[Any],
    *,
    queues: Collection[str] | None = None,
    concurrency: int = 1,
    max_jobs: int = MAX_JOBS,
    timeout: float | timedelta = TIMEOUT_SECONDS,
    raise_errors: bool = True,
) -> DrainReport:
    """Run everything that is due now, and what these jobs defer, until nothing due is left; return what happened.

    A real worker of the app runs it in this event loop, one job at a time by default, in the order of priority and time. Jobs for later
    stay (``report.scheduled``; ``advance`` brings their time), and so do failed and snoozed ones, until their next start is due.
    ``queues``: only these; None: all. The app is opened for it where it is not open here.

    Schedules make no jobs meanwhile. Raises DrainFailed at the end if any attempt failed, those included that would be tried again;
    ``raise_errors=False`` leaves that to ``report.failed``. Raises DrainStopped after ``max_jobs`` starts (1,000), or after ``timeout``
    (60 s) with what still runs given back.
    """
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    chosen = None if queues is None else _checked_queues(queues)
    watch = _Watch(max_jobs)
    stopped: str | None = None
    async with opened(jobs) as store:
        types = list(jobs.handlers)
        if await count_due(store, types, chosen):
            stopped = await _work(jobs, watch, types, chosen, concurrency=concurrency, seconds=seconds)
        await _note_lost(store, watch)
        report = _report(watch.ran, await list_active(store), types, chosen)
    if stopped is not None:
        raise DrainStopped(stopped, report)
    if raise_errors:
        report.raise_for_failures()
    return report


def drain_sync(
    jobs: App[Any],
    *,
    queues: Collection[str] | None = None,
    concurrency: int = 1,
    max_jobs: int = MAX_JOBS,
    timeout: float | timedelta = TIMEOUT_SECONDS,
    raise_errors: bool = True,
) -> DrainReport:
    """Do the same as ``drain`` in a test without an event loop; one in another thread, as a TestClient has, may have the app open too."""
    draining = drain(
        jobs, queues=queues, concurrency=concurrency, max_jobs=max_jobs, timeout=timeout, raise_errors=raise_errors
    )
    return run_sync(draining, instead="drain")


def _checked_queues(queues: Collection[str]) -> list[str]:
    if isinstance(queues, str) or not queues:
        raise OptionError(f"queues must be a list of one or more names, got {queues!r}")
    return sorted({check_queue(queue) for queue in queues})


async def _work(
    jobs: App[Any], watch: _Watch, types: list[str], queues: list[str] | None, *, concurrency: int, seconds: float
) -> str | None:
    """Run a worker until nothing is due, or a limit is reached: then say which."""
    worker = jobs.worker(
        queues=queues,
        concurrency=concurrency,
        retention=None,
        statistics=None,
        shutdown_grace=0.0,  # in the rule nothing runs at the end; at a limit, what runs is to be cut off
        shutdown_timeout=5.0,
        environ={},  # what sets the workers of production is not for tests
    )
    worker.leave_schedules()
    give_up = time.monotonic() + seconds
    with contextlib.ExitStack() as stack:
        for handler in jobs.handlers.values():
            stack.enter_context(hearing_errors(handler, watch.raised))
        stack.callback(worker.events.subscribe(watch.hear))
        async with worker.lifespan():
            while time.monotonic() < give_up:
                watch.changed.clear()
                if watch.is_beyond:
                    return (
                        f"more than max_jobs={watch._max_jobs} attempts started: does a task defer itself without end?"
                    )
                if watch.is_idle and not await count_due(jobs.store, types, queues):
                    return None
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(watch.changed.wait(), LOOK_SECONDS)
    trouble = "" if watch.trouble is None else f" ({watch.trouble})"
    return f"jobs were still due or running after timeout={seconds:g} s{trouble}"


async def _note_lost(store: PgJobStore, watch: _Watch) -> None:
    """Of jobs that had lost their worker before, those with no attempt left have ended without running here."""
    for job_id in watch.recovered:
        job = await store.get(job_id)
        if job is not None and job.status is Status.FAILED and all(ran.id != job_id for ran in watch.ran):
            watch.ran.append(Ran(job.job_type, job.id, job.attempts, Status.FAILED, job.last_error))


def _report(
    ran: Sequence[Ran], left: Sequence[Unended], types: Collection[str], queues: Collection[str] | None
) -> DrainReport:
    def is_ours(job: Job) -> bool:
        return job.job_type in types and (queues is None or job.queue in queues)

    def waiting(unended: Unended) -> Waiting:
        job = unended.job
        return Waiting(job.job_type, job.id, job.status, job.run_after, unended.in_seconds, job.attempts)

    ours = [waiting(one) for one in left if is_ours(one.job) and one.in_seconds > 0]
    others = [waiting(one) for one in left if not is_ours(one.job) and one.in_seconds <= 0]
    return DrainReport(tuple(ran), tuple(ours), tuple(others))
