"""Traces of real workers, by the real SDK: spans, what they belong to, and what stays out of them."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from pqrun import App, JobContext, OptionError, Snooze
from pqrun.contrib import opentelemetry
from pqrun.contrib.opentelemetry import instrument
from pqrun.testing import drain

SECRET = "hunter2"


class Traced:
    """A provider of the test's own, and what it exported."""

    def __init__(self, **options: Any) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False, **options)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]


@pytest.fixture
def traced() -> Iterator[Traced]:
    traced = Traced()
    yield traced
    traced.provider.shutdown()


def context_of(span: ReadableSpan) -> trace.SpanContext:
    found = span.get_span_context()
    assert found is not None
    return found


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_an_execution_belongs_to_the_span_of_its_defer_and_that_to_its_caller(dsn: str, traced: Traced) -> None:
    jobs = App(dsn=dsn)
    instrument(jobs, tracer_provider=traced.provider)

    @jobs.task(queue="mail")
    async def outer(ctx: JobContext, secret: str) -> None:
        await inner.defer(n=1)

    @jobs.task
    def inner(ctx: JobContext, n: int) -> dict[str, int]:
        return {"span": trace.get_current_span().get_span_context().span_id}

    async with jobs:
        with traced.provider.get_tracer("test").start_as_current_span("request") as request:
            job = await outer.defer(secret=SECRET)
        await drain(jobs)
    (publish,), (process,) = traced.named("publish mail"), traced.named("process mail")
    (publish_inner,), (process_inner,) = traced.named("publish default"), traced.named("process default")
    chain = [publish, process, publish_inner, process_inner]
    assert [parent_of(span) for span in chain] == [
        request.get_span_context().span_id,
        *(context_of(span).span_id for span in chain[:-1]),
    ]
    assert {context_of(span).trace_id for span in chain} == {request.get_span_context().trace_id}
    assert (publish.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert attributes(publish) == {
        "messaging.system": "pqrun",
        "messaging.destination.name": "mail",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.message.id": str(job.id),
        "pqrun.job.type": "outer",
        "pqrun.job.created": True,
    }
    found = attributes(process)
    assert found.pop("pqrun.worker.id")
    assert found == {
        "messaging.system": "pqrun",
        "messaging.destination.name": "mail",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.message.id": str(job.id),
        "pqrun.job.type": "outer",
        "pqrun.job.attempt": 1,
        "pqrun.job.max_attempts": 5,
    }
    assert SECRET not in "".join(span.to_json() for span in chain)


async def test_a_thread_of_a_plain_function_sees_the_span_of_its_execution(dsn: str, traced: Traced) -> None:
    jobs = App(dsn=dsn)
    instrument(jobs, tracer_provider=traced.provider)
    seen: list[int] = []

    @jobs.task
    def plain(ctx: JobContext) -> None:
        seen.append(trace.get_current_span().get_span_context().span_id)

    async with jobs:
        await plain.defer()
        await drain(jobs)
    (process,) = traced.named("process default")
    assert seen == [context_of(process).span_id]


async def test_links_begin_a_trace_of_their_own(dsn: str, traced: Traced) -> None:
    jobs = App(dsn=dsn)
    instrument(jobs, tracer_provider=traced.provider, relation="link")

    @jobs.task
    async def t(ctx: JobContext, n: int) -> None: ...

    async with jobs:
        await jobs.defer_many([t.call(n=n) for n in range(3)])
        await drain(jobs)
    published = {attributes(span)["messaging.message.id"]: context_of(span) for span in traced.named("publish default")}
    processed = traced.named("process default")
    assert len(published) == len(processed) == 3
    for span in processed:
        producer = published[attributes(span)["messaging.message.id"]]
        assert span.parent is None
        assert context_of(span).trace_id != producer.trace_id
        assert [link.context.span_id for link in span.links] == [producer.span_id]


async def test_failures_are_recorded_and_snoozes_are_none(dsn: str, traced: Traced) -> None:
    jobs = App(dsn=dsn)
    instrument(jobs, tracer_provider=traced.provider)

    @jobs.task(queue="bad", max_attempts=1)
    async def bad(ctx: JobContext) -> None:
        raise LookupError("no such card")

    @jobs.task(queue="later")
    async def later(ctx: JobContext) -> None:
        raise Snooze(timedelta(hours=1))

    @jobs.task(queue="slow", max_attempts=1, timeout=0.05)
    async def slow(ctx: JobContext) -> None:
        await asyncio.sleep(3600)

    async with jobs:
        for task in (bad, later, slow):
            await task.defer()
        await drain(jobs, raise_errors=False)
    (failed,), (snoozed,), (timed_out,) = (traced.named(f"process {queue}") for queue in ("bad", "later", "slow"))
    assert failed.status.status_code is StatusCode.ERROR
    assert attributes(failed)["error.type"] == "LookupError"
    (recorded,) = failed.events
    assert (recorded.attributes or {})["exception.message"] == "no such card"
    assert snoozed.status.status_code is StatusCode.UNSET
    assert (attributes(snoozed)["pqrun.job.snoozed"], snoozed.events) == (True, ())
    assert (timed_out.status.status_code, attributes(timed_out)["error.type"]) == (StatusCode.ERROR, "timeout")


async def test_messages_of_exceptions_can_be_left_out(dsn: str, traced: Traced) -> None:
    jobs = App(dsn=dsn)
    instrument(jobs, tracer_provider=traced.provider, record_exceptions=False)

    @jobs.task(max_attempts=1)
    async def bad(ctx: JobContext) -> None:
        raise LookupError(SECRET)

    async with jobs:
        await bad.defer()
        await drain(jobs, raise_errors=False)
    (failed,) = traced.named("process default")
    assert SECRET not in failed.to_json()
    assert attributes(failed)["error.type"] == "LookupError"


async def test_a_duplicate_has_a_span_that_says_so_and_what_is_stored_is_the_first(dsn: str, traced: Traced) -> None:
    jobs = App(dsn=dsn)
    instrument(jobs, tracer_provider=traced.provider)

    @jobs.task(dedupe_key="k")
    async def t(ctx: JobContext) -> None: ...

    async with jobs:
        first, second = await t.defer(), await t.defer()
        assert second.id == first.id
    assert [attributes(span)["pqrun.job.created"] for span in traced.named("publish default")] == [True, False]


async def test_without_an_sdk_nothing_is_stored(dsn: str) -> None:
    jobs = App(dsn=dsn)
    instrument(jobs, tracer_provider=trace.NoOpTracerProvider())

    @jobs.task
    async def t(ctx: JobContext) -> None: ...

    async with jobs:
        job = await t.defer()
        assert (await job.job()).headers == {}
        await drain(jobs)


async def test_a_caller_that_is_not_sampled_passes_that_on(dsn: str) -> None:
    traced = Traced(sampler=ALWAYS_OFF)
    jobs = App(dsn=dsn)
    instrument(jobs, tracer_provider=traced.provider)

    @jobs.task
    async def t(ctx: JobContext) -> None: ...

    async with jobs:
        job = await t.defer()
        flags = (await job.job()).headers["traceparent"].rpartition("-")[2]
        assert int(flags, 16) & 1 == 0
        await drain(jobs)
    assert traced.named("process default") == []
    traced.provider.shutdown()


async def test_baggage_that_headers_cannot_hold_refuses_no_job(dsn: str, traced: Traced) -> None:
    jobs = App(dsn=dsn)
    instrument(jobs, tracer_provider=traced.provider)

    @jobs.task
    async def t(ctx: JobContext) -> None: ...

    token = context.attach(baggage.set_baggage("k", "v"))
    try:
        async with jobs:
            job = await t.options(headers={"own": "x" * 16_300}).defer()
            assert set((await job.job()).headers) == {"own"}
            with_baggage = await t.defer()
            assert (await with_baggage.job()).headers["baggage"] == "k=v"
    finally:
        context.detach(token)
    assert len(traced.named("publish default")) == 2


async def test_calls_that_fail_leave_no_spans_behind(dsn: str, traced: Traced, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opentelemetry, "OPEN_MAX", 2)
    jobs = App(dsn=dsn)
    instrument(jobs, tracer_provider=traced.provider)

    @jobs.task
    async def t(ctx: JobContext) -> None: ...

    @jobs.before_defer
    def refuse(deferral: object) -> None:
        raise RuntimeError

    async with jobs:
        for _ in range(5):
            with pytest.raises(RuntimeError):
                await t.defer()
    assert len(traced.named("publish default")) == 3  # the oldest have ended, two may still be written


def test_an_unknown_relation_is_refused() -> None:
    with pytest.raises(OptionError, match="relation: expected 'parent' or 'link'"):
        instrument(App(dsn="postgresql://localhost/x"), relation="child")  # type: ignore[arg-type]  # on purpose


def test_without_the_extra_the_import_says_what_to_install() -> None:
    code = "import sys; sys.modules['opentelemetry'] = None\nimport pqrun.contrib.opentelemetry"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "pip install 'pqrun[otel]'" in done.stderr
