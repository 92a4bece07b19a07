"""Inline mode: ``defer`` runs the handler at once, in the caller's task, without a database.

The payload is validated, stored as text and read again, and the result is checked and stored, by the code that workers use. What needs a
database or a worker is not there: no retries, timeouts, cancels or priorities, and no transaction: a job that joins one has run although
it may be rolled back. For those, ``drain``. ``Abort`` and ``RetryAfter`` fail a job as any exception does; a job that raises ``Snooze``
is recorded as SCHEDULED, as one for later is, and ``defer`` raises nothing.
"""

import asyncio
import contextlib
import functools
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Never, TypeVar, cast, overload

import msgspec
from typing_extensions import override

from pqrun.app import App
from pqrun.errors import ConfigurationError, JobNotFound, NotOpenError, PqrunError, ResultTimeout, RetryRefused
from pqrun.job.outcome import CancelOutcome
from pqrun.job.progress import Progress, Report, check_every
from pqrun.job.record import Claim, Enqueued, Job, NewJob
from pqrun.job.signals import HandlerSignal, Snooze, sole_exception
from pqrun.job.state import Status
from pqrun.job.storable import error_summary, error_text, one_line
from pqrun.portal import cross
from pqrun.run.context import JobContext
from pqrun.run.handler import Handler
from pqrun.run.middleware import Middleware
from pqrun.run.threads import run_in_thread
from pqrun.store import PgJobStore
from pqrun.store.ports import AnyConnection, AnySyncConnection, Connection
from pqrun.store.waiter import End
from pqrun.task import Task
from pqrun.testing.matching import payload_of
from pqrun.testing.report import Ran

__all__ = ["InlineJobs", "InlineStore", "inline"]

M = TypeVar("M")

DEPTH_MAX = 50
"""Jobs that run inside one another before that is called endless."""


class InlineJobs:
    """What ``with inline(jobs) as done:`` gives: what ran, and what was deferred, in order."""

    def __init__(self, rows: Mapping[int, Job]) -> None:
        self.ran: list[Ran] = []
        """Each run, when it ended: a job that defers another ends after it."""
        self._rows = rows

    @property
    def jobs(self) -> list[Job]:
        """All jobs that were deferred: DONE, FAILED, or SCHEDULED for later, which never run here."""
        return list(self._rows.values())

    @overload
    def payloads(self, task: Task[..., Never, Any, Any]) -> list[dict[str, object]]: ...
    @overload
    def payloads(self, task: Task[..., M, Any, Any]) -> list[M]: ...
    def payloads(self, task: Task[..., Any, Any, Any]) -> list[Any]:
        """Return what this task was deferred with, oldest first: models, or the arguments by name."""
        return [payload_of(task.declared, job.payload_json) for job in self.jobs if job.job_type == task.name]


@contextmanager
def inline(jobs: App[Any]) -> Iterator[InlineJobs]:
    """Until the block ends, ``defer`` and ``defer_many`` of this app run the handlers at once; what one raises, ``defer`` raises.

    No database is needed, and the app need not be open. ``job.result()`` gives the result. A job for later is recorded, and does not run.
    ``resources=`` are opened for each job. See the module's docstring for what is not there.
    """
    try:
        real: PgJobStore | None = jobs.store
    except ConfigurationError:  # no DSN anywhere: then no handler can ask for a connection
        real = None
    store = InlineStore(jobs.handlers, jobs.around, jobs.resources, real)
    with jobs.bound(store=store):
        yield store.record


class InlineStore(PgJobStore):
    """Runs what is to be stored; the rows are in memory."""

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        around: Sequence[Middleware[Any]],
        resources: Callable[[], AbstractAsyncContextManager[Any]] | None,
        real: PgJobStore | None,
    ) -> None:
        super().__init__("postgresql://inline.invalid/never_opened")
        self._handlers = handlers
        self._around = around
        self._resources = resources
        self._real = real
        self._ids = itertools.count(1)
        self._rows: dict[int, Job] = {}
        self._reports = _InlineReports(self._rows)
        self._depth = 0
        self._loop: asyncio.AbstractEventLoop | None = (
            None  # while a handler runs: its thread may defer, and complete, through it
        )
        self.record = InlineJobs(self._rows)

    @property
    @override
    def is_open(self) -> bool:
        return True

    @property
    @override
    def is_open_here(self) -> bool:
        return self._real is not None and self._real.is_open_here

    @property
    @override
    def loop(self) -> asyncio.AbstractEventLoop | None:
        return self._loop

    @override
    def another(self) -> PgJobStore:
        return self  # for the thread of synchronous calls: it belongs to no loop

    @override
    async def start(self) -> None:
        """Nothing is to be opened."""

    @override
    async def close(self, timeout: float = 10.0) -> None:
        """Nothing is to be closed."""

    @override
    async def check_schema(self) -> None:
        raise ConfigurationError("inline mode runs jobs where they are deferred: start no worker inside it")

    @asynccontextmanager
    @override
    async def connection(self) -> AsyncIterator[Connection]:
        async with self._opened().connection() as connection:
            yield connection

    @asynccontextmanager
    @override
    async def transaction(self) -> AsyncIterator[Connection]:
        async with self._opened().transaction() as connection:
            yield connection

    def _opened(self) -> PgJobStore:
        if self._real is None or not self._real.is_open_here:
            raise NotOpenError(
                "inline mode runs without a database, and a connection was asked for: open the app around inline(jobs), or use drain"
            )
        return self._real

    @override
    async def enqueue_jobs(self, jobs: Sequence[NewJob], *, connection: AnyConnection | None = None) -> list[Enqueued]:
        if connection is not None:
            _ = self.join(connection)  # what joins a transaction runs at once too, if it could join it
        return [await self._take(new) for new in jobs]

    @override
    def enqueue_jobs_sync(self, jobs: Sequence[NewJob], connection: AnySyncConnection) -> list[Enqueued]:
        _ = self.join_sync(connection)
        if self._loop is not None:  # in the thread of a handler
            return cross(self._loop, lambda: self.enqueue_jobs(jobs), instead="await defer(...)")
        return asyncio.run(self.enqueue_jobs(jobs))

    async def _take(self, new: NewJob) -> Enqueued:
        if (holder := self._holder(new)) is not None:
            return Enqueued(holder, False)
        job = _row(next(self._ids), new)
        self._rows[job.id] = job
        if job.status is Status.READY and job.job_type in self._handlers:
            await self._run(job, self._handlers[job.job_type])
        return Enqueued(job.id, True)

    def _holder(self, new: NewJob) -> int | None:
        if new.dedupe_key is None:
            return None
        key = (new.job_type, new.dedupe_key)
        return next(
            (j.id for j in self._rows.values() if (j.job_type, j.dedupe_key) == key and not j.status.is_finished), None
        )

    async def _run(self, job: Job, handler: Handler) -> None:
        if self._depth >= DEPTH_MAX:
            raise PqrunError(f"{DEPTH_MAX} jobs run inside one another: does {job.job_type} defer itself without end?")
        now = datetime.now(UTC)
        job = self._write(job, status=Status.RUNNING, attempts=1, claim_id=job.id, locked_by="inline", _locked_at=now)
        self._depth += 1
        before, self._loop = self._loop, asyncio.get_running_loop()
        try:
            text = await self._call(job, handler)
        except BaseException as error:
            if isinstance(snooze := sole_exception(error), Snooze):
                self._put_off(job, snooze)
                return
            self._end(job, Status.FAILED, error=error)
            raise
        finally:
            self._depth -= 1
            self._loop = before
        self._end(job, Status.DONE, result=text)

    async def _call(self, job: Job, handler: Handler) -> str | None:
        completed: list[str | None] = []

        async def complete(result: str | None, connection: AnyConnection | None) -> None:
            del connection
            completed.append(result)

        def complete_sync(result: str | None, connection: AnySyncConnection) -> None:
            del connection
            completed.append(result)

        async with contextlib.AsyncExitStack() as stack:
            state = None if self._resources is None else await stack.enter_async_context(self._resources())
            context: JobContext[Any] = JobContext(
                job=job,
                store=self,
                worker_id="inline",
                state=state,
                encode=handler.encode,
                complete_claim=complete,
                complete_claim_sync=complete_sync,
                reports=self._reports,
            )
            context._payload = handler.read(job.payload_json, job.payload_version)
            try:
                value = await _called(handler.surrounded(self._around), context)
            except BaseException as error:
                if completed and isinstance(sole_exception(error), HandlerSignal):
                    return completed[0]  # what was completed counts, as it does where its transaction has committed
                raise
            return completed[0] if completed else handler.encode(value)

    def _end(self, job: Job, status: Status, *, result: str | None = None, error: BaseException | None = None) -> None:
        said = None if error is None else error_text(error)
        ended = {"result_json": result, "last_error": said, "finished_at": datetime.now(UTC)}
        self._write(job, status=status, claim_id=None, locked_by=None, _locked_at=None, **ended)
        short = None if said is None else one_line(error_summary(said))
        self.record.ran.append(Ran(job.job_type, job.id, 1, status, short, error))

    def _put_off(self, job: Job, snooze: Snooze) -> None:
        due = datetime.now(UTC) + timedelta(seconds=snooze.delay_seconds)
        waits = {"claim_id": None, "locked_by": None, "_locked_at": None, "attempts": 0, "_run_after": due}
        self._write(job, status=Status.SCHEDULED, snoozes=job.snoozes + 1, **waits)
        self.record.ran.append(Ran(job.job_type, job.id, 1, Status.SCHEDULED, is_snoozed=True))

    def _write(self, job: Job, **changes: Any) -> Job:  # noqa: ANN401  # fields of a row
        self._rows[job.id] = written = msgspec.structs.replace(job, **changes, _updated_at=datetime.now(UTC))
        return written

    @override
    async def get(self, job_id: int) -> Job | None:
        return self._rows.get(job_id)

    @override
    async def wait_end(self, job_id: int, timeout: float | None = None) -> End:
        del timeout
        job = self._rows.get(job_id)
        if job is None:
            raise JobNotFound(f"there is no job {job_id} in this inline mode", job_id)
        if not job.status.is_finished:
            raise ResultTimeout(f"job {job_id} is {job.status.value}, and never ends in inline mode: use drain", job_id)
        return End(job.status, job.result_json, job.last_error)

    @override
    async def progress(self, job_id: int) -> Progress | None:
        if job_id not in self._rows:
            raise JobNotFound(f"there is no job {job_id} in this inline mode", job_id)
        return self._reports.last.get(job_id)

    @override
    async def watch(
        self, job_id: int, *, timeout: float | None = None, every: float | timedelta = 0.5
    ) -> AsyncIterator[Progress]:
        _ = check_every(every)
        if (progress := await self.progress(job_id)) is not None:
            yield progress
        await self.wait_end(job_id, timeout)

    @override
    async def cancel(self, job_id: int) -> CancelOutcome:
        job = self._rows.get(job_id)
        if job is None:
            return CancelOutcome.NOT_FOUND
        if job.status.is_finished:
            return CancelOutcome.ALREADY_FINISHED
        if job.status is Status.RUNNING:
            return CancelOutcome.REQUESTED
        self._write(job, status=Status.CANCELLED, finished_at=datetime.now(UTC))
        return CancelOutcome.CANCELLED

    @override
    async def retry(self, job_id: int, *, force: bool = False) -> None:
        del force
        raise RetryRefused(f"job {job_id} is not retried: inline mode runs each job once, use drain", job_id)


class _InlineReports:
    """Keeps the last report of each job, at once."""

    def __init__(self, rows: Mapping[int, Job]) -> None:
        self.last: dict[int, Progress] = {}
        self._rows = rows

    def note(self, claim: Claim, report: Report) -> None:
        attempt = self._rows[claim.job_id].attempts
        self.last[claim.job_id] = Progress(report.value, report.message, attempt, datetime.now(UTC))

    def has_unwritten(self, claim: Claim) -> bool:
        del claim
        return False

    async def flush(self, claim: Claim) -> None:
        """All is kept already."""


async def _called(handler: Handler, context: JobContext[Any]) -> object:
    """Run a handler inside its middleware."""
    if handler.is_async:
        return await cast("Awaitable[object]", handler.call(context, context._payload))

    async def in_thread(ctx: JobContext[Any], /) -> object:
        return await run_in_thread(functools.partial(handler.call, ctx, ctx._payload))

    return await (in_thread if handler.around is None else handler.around(in_thread))(context)


def _row(job_id: int, new: NewJob) -> Job:
    now = datetime.now(UTC)
    due = new.run_after or now + timedelta(seconds=new.delay_seconds or 0.0)
    return Job(
        id=job_id,
        claim_id=None,
        queue=new.queue,
        job_type=new.job_type,
        payload_json=new.payload,
        payload_version=new.payload_version,
        priority=new.priority,
        attempts=0,
        max_attempts=new.max_attempts,
        _run_after=due,
        timeout_seconds=new.timeout_seconds,
        _locked_at=None,
        dedupe_key=new.dedupe_key,
        last_error=None,
        _created_at=now,
        lost=0,
        releases=0,
        snoozes=0,
        backoff_seconds=new.backoff_seconds,
        _scheduled_for=None,
        headers_json=new.headers,
        status=Status.SCHEDULED if due > now else Status.READY,
        locked_by=None,
        _updated_at=now,
    )
