"""Traces by OpenTelemetry: ``pip install 'pqrun[otel]'`` (the API; your program brings the SDK).

::

    from pqrun.contrib.opentelemetry import instrument

    instrument(jobs)

``defer`` makes a span "publish QUEUE" (PRODUCER), whose context travels in the job's headers; each execution makes a span "process QUEUE"
(CONSUMER) that belongs to it, in whatever process it runs. Names and attributes are those of the semantic conventions for messaging.
Without an SDK, or where the caller is not sampled and has no context, nothing is stored. Payloads and results are in no span.
"""

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

from pqrun.app import App
from pqrun.deferral import Deferral
from pqrun.errors import MissingExtraError, OptionError
from pqrun.handle import JobHandle
from pqrun.job.signals import Snooze, sole_exception
from pqrun.run.context import JobContext
from pqrun.run.middleware import CallNext

try:
    from opentelemetry import propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.propagators.textmap import Setter, TextMapPropagator
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
except ImportError:
    raise MissingExtraError("pqrun.contrib.opentelemetry", "otel") from None

__all__ = ["Relation", "instrument"]

Relation: TypeAlias = Literal["parent", "link"]
"""How an execution belongs to the ``defer`` that asked for it."""

OPEN_MAX = 1_000
"""Producer spans that wait for the row to be written: those of calls that fail there never hear of it."""

_SYSTEM: Final = "pqrun"

_Attributes: TypeAlias = dict[str, str | int | bool]


def instrument(
    jobs: App[Any],
    *,
    tracer_provider: TracerProvider | None = None,
    propagator: TextMapPropagator | None = None,
    relation: Relation = "parent",
    record_exceptions: bool = True,
) -> None:
    """Trace what the app defers and what its workers run, from now on; once, before workers start.

    ``tracer_provider`` and ``propagator``: the global ones by default. ``relation``: "parent" makes one trace of ``defer`` and all
    executions; "link" begins a trace of its own for each execution, with a link to the span of ``defer``: for jobs that run hours later,
    or fan out by thousands. ``record_exceptions``: False leaves messages and tracebacks out, which may hold what was in a payload; the
    type is told all the same. Raises OptionError.
    """
    if relation not in ("parent", "link"):
        raise OptionError(f"relation: expected 'parent' or 'link'; got {relation!r:.80}")
    traces = _Traces(tracer_provider, propagator, is_linked=relation == "link", records=record_exceptions)
    jobs.before_defer(traces.begin_publish)
    jobs.after_defer(traces.end_publish)
    jobs.middleware(traces.process)


class _Traces:
    """The hooks and the middleware of one app."""

    def __init__(
        self, provider: TracerProvider | None, propagator: TextMapPropagator | None, *, is_linked: bool, records: bool
    ) -> None:
        self._tracer = trace.get_tracer("pqrun", tracer_provider=provider)
        self._propagator = propagator or propagate.get_global_textmap()
        self._is_linked = is_linked
        self._records = records
        self._open: OrderedDict[object, tuple[Span, int]] = OrderedDict()  # by what was injected
        self._lock = threading.Lock()  # defer_sync may be called in any thread

    def begin_publish(self, deferral: Deferral) -> Deferral | None:
        """Start the span, and let its context travel with the job."""
        span = self._tracer.start_span(
            f"publish {deferral.queue}",
            kind=SpanKind.PRODUCER,
            attributes={
                **_attributes(deferral.queue, deferral.job_type),
                "messaging.operation.name": "publish",
                "messaging.operation.type": "send",
            },
        )
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, trace.set_span_in_context(span), _INTO_HEADERS)
        if not carrier:  # no SDK, and no context to pass on
            return None
        try:
            traced = deferral.replace(headers={**deferral.headers, **carrier})
        except OptionError:  # baggage beyond what headers may be: a trace must refuse no job
            span.end()
            return None
        with self._lock:
            self._open[_key(traced.headers)] = span, time.time_ns()
            refused = self._open.popitem(last=False)[1] if len(self._open) > OPEN_MAX else None
        if refused is not None:
            refused[0].end(refused[1])
        return traced

    def end_publish(self, deferral: Deferral, handle: JobHandle[object]) -> None:
        """The row is written: the span gets its id, and ends."""
        with self._lock:
            found = self._open.pop(_key(deferral.headers), None)
        if found is not None:
            span = found[0]
            span.set_attribute("messaging.message.id", str(handle.id))
            span.set_attribute("pqrun.job.created", handle.created)
            span.end()

    async def process(self, ctx: JobContext[Any], call_next: CallNext) -> object:
        """Run the rest within a span that belongs to the one of the job's ``defer``."""
        job = ctx.job
        headers = job.headers
        context = self._propagator.extract(headers, context=Context()) if headers else Context()
        links: list[Link] = []
        if self._is_linked:
            producer = trace.get_current_span(context).get_span_context()
            links = [Link(producer)] if producer.is_valid else []
            context = Context()
        with self._tracer.start_as_current_span(
            f"process {job.queue}",
            context=context,
            kind=SpanKind.CONSUMER,
            links=links,
            attributes={
                **_attributes(job.queue, job.job_type),
                "messaging.operation.name": "process",
                "messaging.operation.type": "process",
                "messaging.message.id": str(job.id),
                "pqrun.job.attempt": job.attempts,
                "pqrun.job.max_attempts": job.max_attempts,
                "pqrun.worker.id": ctx.worker_id,
            },
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                return await call_next(ctx)
            except BaseException as error:
                self._record(span, ctx, error)
                raise

    def _record(self, span: Span, ctx: JobContext[Any], error: BaseException) -> None:
        if ctx.cancel_reason is not None:
            span.set_attribute("pqrun.cancel_reason", ctx.cancel_reason)
            if isinstance(error, asyncio.CancelledError):
                if ctx.cancel_reason == "timeout":
                    span.set_attribute("error.type", "timeout")
                    span.set_status(Status(StatusCode.ERROR, "timeout"))
                return  # what else stops a handler is no error of its
        if isinstance(sole_exception(error), Snooze):
            span.set_attribute("pqrun.job.snoozed", True)
            return
        span.set_attribute("error.type", type(error).__qualname__)
        span.set_status(Status(StatusCode.ERROR, type(error).__name__))
        if self._records:
            span.record_exception(error)


class _IntoHeaders(Setter[dict[str, str]]):
    """The default setter is typed for other mappings."""

    def set(self, carrier: dict[str, str], key: str, value: str) -> None:
        carrier[key] = value


_INTO_HEADERS: Final = _IntoHeaders()


def _attributes(queue: str, job_type: str) -> _Attributes:
    return {"messaging.system": _SYSTEM, "messaging.destination.name": queue, "pqrun.job.type": job_type}


def _key(headers: Mapping[str, str]) -> object:
    """What names a span among those that are open; ``traceparent`` alone where it is there, in case a later hook adds to the headers."""
    return headers.get("traceparent") or frozenset(headers.items())
