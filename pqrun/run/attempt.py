"""One start of one job: decode, call, encode, and what becomes of it. Not a loop; the executor owns and stops attempts.

Three kinds of failure are told apart: a payload that does not decode and a result that is refused end the job at once (another try
cannot help, or would repeat side effects); what the handler raises is an ordinary failure, unless the rules of its task say that another
try cannot help, or it is a signal by which the handler chooses; what we interrupted ourselves is judged by the reason. A payload of a
newer version than ours is no failure: it is left to newer workers, unread, since even one that decodes may mean something else now.
Whatever user code raises, SystemExit and KeyboardInterrupt included, ends here.
"""

import asyncio
import functools
import logging
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol, cast

import msgspec

from pqrun.errors import HandlerTimeout, PayloadDecodeError, PayloadVersionError, PqrunError, ResultError, StoreError
from pqrun.job.failure import Failure, FailureKind, failure_of
from pqrun.job.outcome import (
    SNOOZES_MAX,
    Cancelled,
    Counts,
    Done,
    Failed,
    Outcome,
    Retrying,
    Snoozed,
    decide_after_failure,
    decide_release,
    decide_snooze,
)
from pqrun.job.policy import BackoffPolicy, judge_retry_delay
from pqrun.job.record import Claim, Job
from pqrun.job.signals import Abort, HandlerSignal, RetryAfter, Snooze, sole_exception
from pqrun.job.state import Status
from pqrun.job.storable import error_text, one_line
from pqrun.run.context import CancelReason, JobContext, Reports
from pqrun.run.handler import Handler
from pqrun.run.middleware import CallNext, refuse_start, refuse_value
from pqrun.run.newer import NewerJobs
from pqrun.run.threads import ThreadCall, start_in_thread
from pqrun.store import PgJobStore
from pqrun.store.ports import AnyConnection, AnySyncConnection

__all__ = ["Attempt", "Completed", "Completions", "Surroundings", "delay_before_next", "is_ran_out"]

VERIFY_SECONDS = 0.5
"""Pause between looks for a completion while the database does not answer."""

_LOGGER = logging.getLogger("pqrun")


class Completions(Protocol):
    """What ``ctx.complete`` needs of the store."""

    async def complete(
        self, claim: Claim, result: str | None, connection: AnyConnection | None, *, duration_ms: int
    ) -> None:
        """Write DONE on the connection; raise ClaimLost or CompletionRefused where that cannot be."""
        ...

    def complete_sync(
        self, claim: Claim, result: str | None, connection: AnySyncConnection, *, duration_ms: int
    ) -> None:
        """Do the same on a synchronous connection, in whatever thread."""
        ...

    async def find_claim(self, claim: Claim) -> Status | None:
        """Return the state that this claim finished its job with, if it did."""
        ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all attempts of a worker share."""

    store: PgJobStore
    worker_id: str
    state: Any
    completions: Completions
    backoff: BackoffPolicy
    newer: NewerJobs
    reports: Reports


class Completed:
    """The handler recorded its own end by ``ctx.complete``: nothing is left to write."""


def delay_before_next(job: Job, policy: BackoffPolicy) -> float:
    """Return the seconds before the next start of a job that failed: its own delays first, then the policy's."""
    if job.backoff_seconds:
        return job.backoff_seconds[min(job.attempts, len(job.backoff_seconds)) - 1]
    judged = judge_retry_delay(policy, job.attempts)
    if judged.complaint is not None:
        _LOGGER.warning("backoff of %s replaced by the default: %s", one_line(job.job_type), judged.complaint)
    return judged.value


async def _complete(
    completions: Completions, claim: Claim, started: float, result: str | None, connection: AnyConnection | None
) -> None:
    await completions.complete(claim, result, connection, duration_ms=_milliseconds_since(started))


def _complete_sync(
    completions: Completions, claim: Claim, started: float, result: str | None, connection: AnySyncConnection
) -> None:
    completions.complete_sync(claim, result, connection, duration_ms=_milliseconds_since(started))


def _milliseconds_since(started: float) -> int:
    return int((time.monotonic() - started) * 1000)


class Attempt:
    """One start; ``run`` returns the outcome, None where the claim was lost."""

    __slots__ = (
        "_around",
        "_handler",
        "claim",
        "context",
        "deadline",
        "giving_up",
        "has_begun",
        "is_abandoned",
        "is_given_up",
        "is_over",
        "job",
        "started",
        "task",
        "thread",
    )

    def __init__(self, job: Job, handler: Handler, around: Surroundings) -> None:
        self.job = job
        self.claim = Claim(job.id, job.claim_id or 0)
        self.started = time.monotonic()
        self.task: asyncio.Task[None] | None = None  # set by the executor right after the start
        self.thread: ThreadCall[object] | None = None
        self.deadline = math.inf  # the executor's: when it is told to stop by its timeout, monotonic
        self.giving_up: asyncio.TimerHandle | None = None  # the executor's: once it was told to stop
        # The task has had its first step: before that a cancellation would end it without any outcome.
        self.has_begun = False
        self.is_given_up = False  # the executor has decided without waiting any longer
        self.is_abandoned = False  # the worker has ended: whatever comes, nobody looks or writes any more
        self.is_over = False  # the handler has ended; its outcome is on its way
        self._handler = handler
        self._around = around
        self.context: JobContext[Any] = JobContext(
            job=job,
            store=around.store,
            worker_id=around.worker_id,
            state=around.state,
            encode=handler.encode,
            # Not methods of this attempt: a cycle of references would leave each of them to the garbage collector.
            complete_claim=functools.partial(_complete, around.completions, self.claim, self.started),
            complete_claim_sync=functools.partial(_complete_sync, around.completions, self.claim, self.started),
            reports=around.reports,
        )

    async def run(self) -> Outcome | Completed | None:
        """Run the handler to its end and decide."""
        if (reason := self.context.cancel_reason) is not None:  # stopped between its start and this first step
            return self._interrupted(reason, None)
        self.has_begun = True
        try:
            if self.job.payload_version == self._handler.version:
                payload = self._handler.decode(self.job.payload_json)
            else:
                payload = self._handler.read(self.job.payload_json, self.job.payload_version)
        except PayloadVersionError as error:
            delay = self._around.newer.put_aside(self.job, known=self._handler.version or 1)
            return Snoozed(self.claim, f"PayloadVersionError: {error}", delay)
        except PayloadDecodeError as error:
            return Failed(self.claim, self.duration_ms, f"PayloadDecodeError: {error}", failure_of(error))
        except BaseException as error:  # noqa: BLE001  # user code in validators: it says that this payload cannot be had
            return self._refused(error)
        self.context._payload = payload
        value: object = None
        failure: BaseException | None = None
        try:
            if self._handler.is_async:
                value = await cast("Awaitable[object]", self._handler.call(self.context, payload))
            elif self._handler.around is not None:
                value = await self._surrounded(self._handler.around)
            else:
                self.thread = start_in_thread(self._handler.call, self.context, payload)
                value = await self.thread.future
        except BaseException as error:  # noqa: BLE001  # the border to user code: SystemExit must not end the worker
            failure = error
        # Before anything is awaited: a stop that comes now must not cancel the look at the database.
        self.is_over = True
        if self.is_completed and not self.is_abandoned:
            return await self._after_complete(failure)
        if self.is_given_up:
            return None
        return self._after_return(value) if failure is None else self._after_exception(failure)

    async def _surrounded(self, around: Callable[[CallNext], CallNext]) -> object:
        """Run a plain function inside its middleware; the attempt lasts until its thread has ended, even if the middleware left it."""
        try:
            return await around(self._in_thread)(self.context)
        finally:
            if self.thread is not None:
                if not self._is_torn_down:
                    await asyncio.wait({self.thread.future})
                if self.thread.future.done():
                    self.thread.future.exception()  # looked at: a middleware that left it does not

    async def _in_thread(self, ctx: JobContext[Any], /) -> object:
        refuse_start(ctx)
        if self.thread is not None and not self.thread.future.done():
            raise PqrunError(f"call_next was called again while {one_line(self.job.job_type)} still runs in its thread")
        self.thread = start_in_thread(self._handler.call, ctx, ctx._payload)
        await asyncio.wait({self.thread.future})  # a middleware that is cancelled leaves the thread to be waited for
        value = self.thread.future.result()
        refuse_value(ctx)
        return value

    def give_up(self) -> Outcome | None:
        """Decide for a handler that ignores being stopped; what it returns later is not written."""
        self.is_given_up = True
        if self.is_completed:
            return None  # its own transaction decides; when the handler ends at last, ``run`` looks how
        return self._interrupted(self.context.cancel_reason or "shutdown", None)

    def leave_behind(self) -> None:
        """Let the task be: ``asyncio.run`` cancels and awaits all of its loop; one that ignores that would keep the process."""
        if self.is_async and self.task is not None and not self.task.done():
            asyncio.tasks._unregister_task(self.task)
            self.task._log_destroy_pending = False  # type: ignore[attr-defined]  # what asyncio.gather does; it was told as given up

    @property
    def is_thread_alive(self) -> bool:
        """Whether a plain function still runs in its thread."""
        return self.thread is not None and self.thread.is_alive

    @property
    def is_alive(self) -> bool:
        """Whether code of its handler may still run, in its thread or its task."""
        return self.is_thread_alive or (self.task is not None and not self.task.done())

    @property
    def is_completed(self) -> bool:
        """Whether ``ctx.complete`` was called: the row may be gone at any moment, rightly."""
        return self.context._completion  # the context is the handler's face of this attempt

    @property
    def is_async(self) -> bool:
        """Whether code of the user's runs in the task, where it can be cancelled: the handler, or the middleware of a plain function."""
        return self._handler.is_async or self._handler.around is not None

    @property
    def duration_ms(self) -> int:
        """Milliseconds since the start, by the worker's monotonic clock."""
        return _milliseconds_since(self.started)

    def _after_return(self, value: object) -> Outcome | None:
        reason = self.context.cancel_reason
        if reason is not None and reason != "shutdown":
            return self._interrupted(reason, None)
        try:
            text = self._handler.encode(value)
        except ResultError as error:
            return Failed(self.claim, self.duration_ms, f"ResultError: {error}", failure_of(error))
        except BaseException as error:  # noqa: BLE001  # user code in serializers: the result is refused
            return self._refused(error)
        return Done(self.claim, self.duration_ms, text)

    def _after_exception(self, error: BaseException) -> Outcome | None:
        reason = self.context.cancel_reason
        if isinstance(error, asyncio.CancelledError) and self._is_torn_down:
            reason = "shutdown"
        signal = sole_exception(error)
        # A signal answers a shutdown as a value would; of any other interruption it may be but an effect.
        if isinstance(signal, HandlerSignal) and reason in (None, "shutdown"):
            return self._after_signal(signal, error)
        if reason is not None:
            return self._interrupted(reason, error)
        return self._after_failure(error)

    def _after_signal(self, signal: HandlerSignal, error: BaseException) -> Outcome:
        """The handler has chosen; ``error`` is the signal, or a group that holds it alone."""
        match signal:
            case Snooze():
                chosen = decide_snooze(
                    self.claim, self._counts, delay_seconds=signal.delay_seconds, reason=signal.reason
                )
                text = f"Snooze: snoozed {SNOOZES_MAX} times before, the most that a job may be: this one counts as a failure"
                return chosen or self._failed(text, msgspec.structs.replace(failure_of(signal), message=None))
            case Abort():
                return self._refused(signal)
            case RetryAfter():
                return self._failed(error_text(signal), failure_of(signal), signal.delay_seconds)
        return self._after_failure(error)  # a subclass of the user's own: it says nothing that we know

    def _after_failure(
        self,
        error: BaseException,
        *,
        judged_by: BaseException | None = None,
        kind: FailureKind = FailureKind.ERROR,
    ) -> Retrying | Failed:
        """An ordinary failure; ``judged_by``: what the rules look at, where it is not the error itself."""
        rules = self._handler.rules
        if rules is not None and not rules.allow(judged_by or error):
            return self._refused(error, kind)
        return self._failed(error_text(error), failure_of(error, kind))

    def _refused(self, error: BaseException, kind: FailureKind = FailureKind.ERROR) -> Failed:
        """The end: another attempt cannot help."""
        return Failed(self.claim, self.duration_ms, error_text(error), failure_of(error, kind))

    @property
    def _is_torn_down(self) -> bool:
        """Whether the event loop is being torn down around us: it was not the worker who cancelled the task."""
        return self.context.cancel_reason is None and self.task is not None and self.task.cancelling() > 0

    def _interrupted(self, reason: CancelReason, error: BaseException | None) -> Outcome | None:
        if reason == "claim_lost":
            return None
        if reason == "cancelled":
            return Cancelled(self.claim, self.duration_ms)
        if reason == "shutdown":
            return decide_release(self.claim, self._counts, started=self.has_begun)
        timeout = HandlerTimeout(f"{self.job.job_type} ran longer than its timeout of {self.job.timeout_seconds:g} s")
        timeout.__cause__ = error
        return self._after_failure(timeout, kind=FailureKind.TIMEOUT)

    async def _after_complete(self, error: BaseException | None) -> Outcome | Completed | None:
        """``complete`` was called: its transaction has committed, or what undid it decides; if that was not us, it is a failure."""
        if await self._is_recorded():
            return Completed()
        refused = PqrunError("ctx.complete() was called, but its transaction did not commit: nothing of it is stored")
        refused.__cause__ = error
        reason = self.context.cancel_reason
        signal = None if error is None else sole_exception(error)
        if isinstance(signal, HandlerSignal) and reason in (None, "shutdown"):  # it is what has rolled it back
            return self._after_signal(signal, signal)
        if reason is not None and reason != "claim_lost":  # of a lost claim the settle tells
            return self._interrupted(reason, refused)
        return self._after_failure(refused, judged_by=error)

    async def _is_recorded(self) -> bool:
        while True:
            try:
                return await self._around.completions.find_claim(self.claim) is Status.DONE
            except StoreError:
                await asyncio.sleep(VERIFY_SECONDS)

    def _failed(self, text: str, failure: Failure, delay_seconds: float | None = None) -> Retrying | Failed:
        """Count the attempt; the next comes after ``delay_seconds``, by default after the backoff."""
        delay = delay_seconds
        if delay is None:
            delay = delay_before_next(self.job, self._handler.backoff or self._around.backoff)
        return decide_after_failure(
            self.claim, self._counts, error=text, failure=failure, delay_seconds=delay, duration_ms=self.duration_ms
        )

    @property
    def _counts(self) -> Counts:
        job = self.job
        return Counts(job.attempts, job.max_attempts, job.lost, job.releases, job.snoozes)


def is_ran_out(outcome: Outcome | Completed | None) -> bool:
    """Whether the handler ran to an end of its own: then its time is a measure of its task, also where it chose to come back."""
    return isinstance(outcome, (Done, Completed, Retrying, Failed)) or (
        isinstance(outcome, Snoozed) and outcome.is_chosen
    )
