"""Errors of handlers to Sentry: ``pip install 'pqrun[sentry]'``; your program calls ``sentry_sdk.init(...)``.

::

    from pqrun.contrib.sentry import instrument

    instrument(jobs)

Each failed attempt of a handler becomes an event, grouped by task, with the job as tags, and each execution a transaction of the trace in
which the job was deferred. What fails without an exception of a handler (a payload that does not decode, a worker that died) is logged by
pqrun at ERROR, and reaches Sentry by its own logging integration; the log line of a failure that was captured already is left out.

Payloads are not sent: no arguments, and no local variables of frames, which hold them. The message of an exception is.
"""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pqrun.app import App
from pqrun.deferral import Deferral
from pqrun.errors import HandlerTimeout, MissingExtraError, OptionError
from pqrun.job.record import Job
from pqrun.job.signals import Abort, RetryAfter, Snooze, sole_exception
from pqrun.run import events
from pqrun.run.context import JobContext
from pqrun.run.handler import Handler
from pqrun.run.middleware import CallNext

try:
    import sentry_sdk
    from sentry_sdk.tracing import TransactionSource
    from sentry_sdk.types import Event, Hint
    from sentry_sdk.utils import event_from_exception
except ImportError:
    raise MissingExtraError("pqrun.contrib.sentry", "sentry") from None

__all__ = ["instrument"]

CAPTURED_MAX = 10_000
"""Claims remembered because their failure was captured, until its line comes to the log."""

_HEADERS = ("sentry-trace", "baggage")


def instrument(jobs: App[Any], *, only_final: bool = False, payloads: bool = False, traces: bool = True) -> None:
    """Report the failures of the app's handlers from now on; once, before workers start, before or after ``sentry_sdk.init``.

    ``only_final``: no event for a failure after which the job is tried again. ``payloads``: send the payload as context, and the local
    variables of frames; think of what is in them. ``traces``: let the trace of ``defer`` go on in the job, as a transaction
    "queue.process". Without an active client nothing is done and nothing is stored.
    """
    reporting = _Reporting(jobs.handlers, only_final=only_final, payloads=payloads, traces=traces)
    if traces:
        jobs.before_defer(reporting.pass_on)
    jobs.middleware(reporting.report)
    sentry_sdk.get_global_scope().add_event_processor(reporting.drop_repeated)


class _Reporting:
    """The hook and the middleware of one app."""

    def __init__(self, handlers: Mapping[str, Handler], *, only_final: bool, payloads: bool, traces: bool) -> None:
        self._handlers = handlers
        self._only_final = only_final
        self._payloads = payloads
        self._traces = traces
        self._captured: OrderedDict[object, None] = OrderedDict()
        self._lock = threading.Lock()  # event processors run wherever something is logged

    def pass_on(self, deferral: Deferral) -> Deferral | None:
        """Let the trace of the caller travel with the job."""
        if not sentry_sdk.get_client().is_active():
            return None
        found = {"sentry-trace": sentry_sdk.get_traceparent(), "baggage": sentry_sdk.get_baggage()}
        trace = {name: text for name, text in found.items() if text}
        try:
            return deferral.replace(headers={**trace, **deferral.headers})  # baggage of another tracer stays
        except OptionError:  # beyond what headers may be: a trace must refuse no job
            return None

    async def report(self, ctx: JobContext[Any], call_next: CallNext) -> object:
        """Run the rest in a scope of its own, and capture what it raises."""
        if not sentry_sdk.get_client().is_active():
            return await call_next(ctx)
        with sentry_sdk.isolation_scope() as scope:
            scope.clear_breadcrumbs()
            self._describe(scope, ctx)
            with self._transaction(ctx.job):
                try:
                    return await call_next(ctx)
                except BaseException as error:
                    self._consider(ctx, error)
                    raise

    def _describe(self, scope: sentry_sdk.Scope, ctx: JobContext[Any]) -> None:
        job = ctx.job
        scope.set_transaction_name(job.job_type, source=TransactionSource.TASK)
        scope.set_tags(
            {
                "pqrun.job_type": job.job_type,
                "pqrun.queue": job.queue,
                "pqrun.job_id": str(job.id),
                "pqrun.attempt": str(job.attempts),
                "pqrun.worker_id": ctx.worker_id,
            }
        )
        scope.fingerprint = ["{{ default }}", f"pqrun:{job.job_type}"]
        described = {"id": job.id, "attempt": job.attempts, "max_attempts": job.max_attempts, "priority": job.priority}
        scope.set_context("pqrun job", described | ({"payload": job.payload} if self._payloads else {}))

    @contextmanager
    def _transaction(self, job: Job) -> Iterator[None]:
        if not self._traces:
            yield
            return
        headers = {name: text for name, text in job.headers.items() if name in _HEADERS}
        transaction = sentry_sdk.continue_trace(
            headers, op="queue.process", name=job.job_type, source=TransactionSource.TASK, origin="auto.queue.pqrun"
        )
        with sentry_sdk.start_transaction(transaction) as span:
            span.set_data("messaging.system", "pqrun")
            span.set_data("messaging.destination.name", job.queue)
            span.set_data("messaging.message.id", str(job.id))
            span.set_data("messaging.message.retry.count", job.attempts - 1)
            waited = job.waited_seconds
            if waited is not None:
                span.set_data("messaging.message.receive.latency", round(waited * 1000))
            yield

    def _consider(self, ctx: JobContext[Any], error: BaseException) -> None:
        """Capture a failure of the attempt; a snooze and a job that was stopped from outside are none."""
        signal = sole_exception(error)
        if isinstance(signal, Snooze) or ctx.cancel_reason not in (None, "timeout"):
            return
        if ctx.cancel_reason == "timeout":
            timeout = HandlerTimeout(f"{ctx.job.job_type} ran longer than its timeout of {ctx.job.timeout_seconds:g} s")
            timeout.__cause__ = error
            error = signal = timeout
        elif isinstance(error, asyncio.CancelledError):
            return  # the event loop is being torn down
        if self._only_final and not self._is_final(ctx.job, error, signal):
            return
        self._capture(ctx.job, error)

    def _is_final(self, job: Job, error: BaseException, signal: BaseException) -> bool:
        """What the worker will decide."""
        if isinstance(signal, Abort) or job.attempts >= job.max_attempts:
            return True
        handler = self._handlers.get(job.job_type)
        rules = None if handler is None else handler.rules
        return rules is not None and not isinstance(signal, RetryAfter) and not rules.allow(error)

    def _capture(self, job: Job, error: BaseException) -> None:
        options = {**sentry_sdk.get_client().options}
        if not self._payloads:
            options["include_local_variables"] = False
        event, hint = event_from_exception(error, client_options=options, mechanism={"type": "pqrun", "handled": False})
        sentry_sdk.capture_event(event, hint)
        with self._lock:
            self._captured[_start_of(job)] = None
            if len(self._captured) > CAPTURED_MAX:
                self._captured.popitem(last=False)

    def drop_repeated(self, event: Event, hint: Hint) -> Event | None:
        """Leave out the line of the log about a failure that was captured: it says less."""
        told = getattr(hint.get("log_record"), "pqrun_event", None)
        if not isinstance(told, events.Failed | events.Retrying):
            return event
        with self._lock:
            is_repeated = _start_of(told.job) in self._captured
        return None if is_repeated else event


def _start_of(job: Job) -> object:
    """What names one start of one job, among apps on several databases too."""
    return job.id, job.claim_id, job.created_at
