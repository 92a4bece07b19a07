"""What a handler gets beside its payload: the job, the store, the worker's resources, and the wish to stop.

A context is made per start of a job, so it is cheap: slots, and a logger that is built when first asked for. Its flags are plain
attribute reads and writes, each atomic, so that a handler in a thread may poll ``cancelled`` without a lock.
"""

import contextlib
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from datetime import datetime
from typing import Any, Generic, Literal, Protocol, TypeAlias

from typing_extensions import TypeVar

from pqrun.errors import CompletionRefused, NotOpenError, StoreError, WrongLoopError
from pqrun.job.progress import Report, check_report
from pqrun.job.record import Claim, Job
from pqrun.job.storable import one_line
from pqrun.portal import cross
from pqrun.store import PgJobStore
from pqrun.store.ports import AnyConnection, AnySyncConnection

__all__ = ["CancelReason", "JobContext", "JobLogger", "Reports"]

CancelReason: TypeAlias = Literal["timeout", "cancelled", "shutdown", "claim_lost"]
"""Why a running handler is asked to stop: its timeout, ``cancel()``, the worker's end, or a claim that is no longer ours."""

S_co = TypeVar("S_co", covariant=True, default=Any)

_LOGGER = logging.getLogger("pqrun.job")


class Reports(Protocol):
    """Where reports of progress go: all contexts of a worker share one."""

    def note(self, claim: Claim, report: Report) -> None:
        """Keep the claim's latest report until it is written; from any thread, at once."""
        ...

    def has_unwritten(self, claim: Claim) -> bool:
        """Whether a report of this claim is not written yet; from any thread."""
        ...

    async def flush(self, claim: Claim) -> None:
        """Wait until it is, for a limited time; on the event loop of the worker."""
        ...


class JobLogger(logging.LoggerAdapter[logging.Logger]):
    """The logger ``pqrun.job``: each record starts with the job, and has ``job_id``, ``job_type``, ``queue``, ``attempt`` as attributes.

    ``extra=`` of a call is kept beside them.
    """

    def __init__(self, job: Job) -> None:
        named = {"job_id": job.id, "job_type": job.job_type, "queue": job.queue, "attempt": job.attempts}
        super().__init__(_LOGGER, named)
        # One line without conversions: a name must forge no second record, and its percent signs are none of the caller's.
        name = one_line(job.job_type).replace("%", "\\x25")
        self._prefix = f"[{name} id={job.id} attempt={job.attempts}] "

    def process(self, msg: object, kwargs: MutableMapping[str, Any]) -> tuple[str, MutableMapping[str, Any]]:
        """Put the job before the message, and its attributes into ``extra``."""
        kwargs["extra"] = {**(kwargs.get("extra") or {}), **(self.extra or {})}
        return f"{self._prefix}{msg}", kwargs


class JobContext(Generic[S_co]):
    """One start of one job, as its handler sees it.

    ``JobContext[State]`` types ``state``, what the app's ``resources=`` opened; a bare ``JobContext`` leaves it unchecked.
    """

    __slots__ = (
        "_cancel_reason",
        "_complete_claim",
        "_complete_claim_sync",
        "_completion",
        "_encode",
        "_has_reported",
        "_logger",
        "_payload",
        "_reports",
        "job",
        "state",
        "store",
        "worker_id",
    )

    job: Job
    """The row as it was claimed; ``job.attempts`` counts this start."""
    store: PgJobStore
    """The store of the worker, for deferring by name, or ``store.transaction()``."""
    worker_id: str
    """The readable name of the worker that runs this job; it need not be unique."""
    state: S_co
    """What ``resources=`` opened for this worker; None without."""

    def __init__(
        self,
        *,
        job: Job,
        store: PgJobStore,
        worker_id: str,
        state: S_co,
        encode: Callable[[object], str | None],
        complete_claim: Callable[[str | None, AnyConnection | None], Awaitable[None]],
        complete_claim_sync: Callable[[str | None, AnySyncConnection], None],
        reports: Reports,
    ) -> None:
        self.job = job
        self.store = store
        self.worker_id = worker_id
        self.state = state
        self._encode = encode
        self._complete_claim = complete_claim
        self._complete_claim_sync = complete_claim_sync
        self._reports = reports
        self._has_reported = False  # read by the executor: who never reports is asked nothing further
        self._logger: JobLogger | None = None
        self._payload: object = (
            None  # written by the attempt before any code of the user's runs; stays None for low-level handlers
        )
        # Written by the worker's loop, read by the handler in whatever thread it runs.
        self._cancel_reason: CancelReason | None = None
        # Written here, read by the executor: after it, a row that is still RUNNING means a transaction that did not commit.
        self._completion = False

    @property
    def cancelled(self) -> bool:
        """Whether the handler was asked to stop; to be polled by handlers that run in a thread."""
        return self._cancel_reason is not None

    @property
    def cancel_reason(self) -> CancelReason | None:
        """Why the handler was asked to stop (the first reason stays), or None; also tells what a CancelledError means."""
        return self._cancel_reason

    @property
    def scheduled_for(self) -> datetime | None:
        """The planned time of the firing that made this job, in UTC, however late it runs; None for a job that no schedule made."""
        return self.job.scheduled_for

    @property
    def payload(self) -> object:
        """The very object that the handler gets, for middleware and for what a handler calls: its model, decoded and validated.

        A dict by parameter where the function's own parameters are the payload; ``job.payload`` for handlers without decorators.
        """
        return self.job.payload if self._payload is None else self._payload

    @property
    def logger(self) -> JobLogger:
        """A logger whose records name this job."""
        if self._logger is None:
            self._logger = JobLogger(self.job)
        return self._logger

    async def progress(self, value: float, message: str | None = None) -> None:
        """Say how far the job has come: ``value`` from 0 to 1, and a word about it, of which 500 characters are kept.

        As cheap as a function call, so as often as you like: it only keeps the latest report, which the worker writes within a second,
        with those of all its jobs. It never waits for the database and never fails because of it; the last report of a start is written
        before its outcome. ``await job.progress()`` and ``job.watch()`` see it. A report made after the job was taken away from this
        worker, or completed, is dropped without a word. Raises OptionError for a value or message that cannot be stored.
        """
        self.progress_sync(value, message)

    def progress_sync(self, value: float, message: str | None = None) -> None:
        """Do the same in a plain function, from any thread."""
        report = check_report(value, message)
        self._has_reported = True
        self._reports.note(self._claim, report)

    async def complete(self, result: object = None, *, connection: AnyConnection | None = None) -> None:
        """Record the job as DONE with ``result`` now, inside the open transaction of ``connection`` (asyncpg, SQLAlchemy, psycopg).

        What that transaction writes and the completion then happen together or not at all: exactly-once effects in this
        database. The value that the handler returns later is not stored. Without ``connection`` the completion is committed at
        once. If the transaction is rolled back, the job counts as failed and is tried again.

        Raises CompletionRefused after a cancel request or timeout and when called a second time, ClaimLost when this worker no
        longer owns the job, ResultError when the result does not satisfy the declared type, and OptionError for a connection that
        is synchronous.
        """
        self._refuse_completion()
        text = self._encode(result)
        # Set before the await: two calls at once must not both pass the check above.
        self._completion = True
        try:
            if self._reports.has_unwritten(self._claim):  # afterwards the row is this transaction's, or gone
                await self._reports.flush(self._claim)
            await self._complete_claim(text, connection)
        except BaseException:
            self._completion = False
            raise

    def complete_sync(self, result: object = None, *, connection: AnySyncConnection | None = None) -> None:
        """Do the same in a plain function: within the open transaction of a Session, psycopg's Connection or Django's connection.

        Without ``connection`` the completion is committed at once. Raises what ``complete`` raises, OptionError where a connection
        would block an event loop, and WrongLoopError where the call without one would.
        """
        if connection is None:
            cross(self.store.loop, lambda: self.complete(result), instead="await ctx.complete(...)")
            return
        self._refuse_completion()
        text = self._encode(result)
        self._completion = True
        try:
            self._flush_sync()
            self._complete_claim_sync(text, connection)
        except BaseException:
            self._completion = False
            raise

    def _flush_sync(self) -> None:
        if self._reports.has_unwritten(self._claim):
            # Where it cannot be waited for, the report may be lost; the completion is not.
            with contextlib.suppress(NotOpenError, StoreError, WrongLoopError):
                cross(self.store.loop, lambda: self._reports.flush(self._claim), instead="await ctx.complete(...)")

    @property
    def _claim(self) -> Claim:
        return Claim(self.job.id, self.job.claim_id or 0)

    def _refuse_completion(self) -> None:
        if self._completion:
            raise CompletionRefused(
                f"job {self.job.id} was already completed by ctx.complete(); call it once per start, last in its transaction",
                self.job.id,
            )
        # At a shutdown finishing the work is welcome: the completion keeps it from being repeated.
        if self._cancel_reason is not None and self._cancel_reason != "shutdown":
            raise CompletionRefused(
                f"job {self.job.id} cannot be completed any more: it was asked to stop ({self._cancel_reason}); "
                "roll the transaction back",
                self.job.id,
            )

    def _request_stop(self, reason: CancelReason) -> None:
        """Ask the handler to stop; called by the worker. The first reason stays."""
        if self._cancel_reason is None:
            self._cancel_reason = reason

    def __repr__(self) -> str:
        return f"JobContext({self.job!r})"
