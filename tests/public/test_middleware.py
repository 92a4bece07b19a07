"""Middleware: code of the user's around each execution, of async handlers and plain functions, with and without an app."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from pydantic import BaseModel

from pqrun import App, CallNext, DeclarationError, JobCancelled, JobContext, JobFailed, OptionError, PgJobStore, Status
from pqrun.run import events
from pqrun.run.context import CancelReason
from tests.public.at_work import AtOnce, InAnHour, at_work, low_level, running

TENANT: ContextVar[str] = ContextVar("TENANT", default="nobody")


class Order(BaseModel):
    tenant: str = "t1"
    number: int = 1


class Sent(BaseModel):
    by: str


class Journal:
    """What happened, in order, and whether it did."""

    def __init__(self) -> None:
        self.lines: list[object] = []
        self._new = asyncio.Event()

    def add(self, line: object) -> None:
        self.lines.append(line)
        self._new.set()

    async def wait_for(self, line: object) -> None:
        async with asyncio.timeout(30):
            while line not in self.lines:
                self._new.clear()
                await self._new.wait()


async def forever() -> None:
    await asyncio.Event().wait()


# Around both kinds of handlers.


async def test_the_first_registered_is_outermost_and_gets_what_the_inner_ones_return(jobs: App[None]) -> None:
    seen: list[object] = []

    @jobs.middleware
    async def outer(ctx: JobContext, call_next: CallNext) -> object:
        seen.append("outer in")
        result = await call_next(ctx)
        seen.append(result)
        return result

    @jobs.middleware
    async def inner(ctx: JobContext, call_next: CallNext) -> object:
        seen.append("inner in")
        try:
            return await call_next(ctx)
        finally:
            seen.append("inner out")

    @jobs.task(payload=Order)
    async def ship(ctx: JobContext, payload: Order) -> Sent:
        seen.append("handler")
        return Sent(by="handler")

    async with at_work(jobs):
        assert await (await ship.defer()).result(30) == Sent(by="handler")
    assert seen == ["outer in", "inner in", "handler", "inner out", Sent(by="handler")]


async def test_it_sees_job_state_logger_and_the_payload_of_the_handler(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    @asynccontextmanager
    async def resources() -> AsyncIterator[dict[str, str]]:
        yield {"name": "shared"}

    jobs = App(dsn=dsn, resources=resources)
    seen: list[object] = []

    @jobs.middleware
    async def look(ctx: JobContext[dict[str, str]], call_next: CallNext) -> object:
        ctx.logger.info("around")
        seen.extend([ctx.job.job_type, ctx.state["name"], ctx.payload])
        return await call_next(ctx)

    @jobs.task(payload=Order)
    async def ship(ctx: JobContext[dict[str, str]], payload: Order) -> None:
        assert payload is ctx.payload

    @jobs.task
    def bill(ctx: JobContext[dict[str, str]], number: int, note: str = "x") -> None:
        assert ctx.payload == {"number": number, "note": note}

    async with at_work(jobs):
        first = await ship.defer(number=7)
        await first.result(30)
        await (await bill.defer(8)).result(30)
    assert seen == ["ship", "shared", Order(number=7), "bill", "shared", {"number": 8, "note": "x"}]
    assert f"[ship id={first.id} attempt=1] around" in caplog.messages


async def test_context_variables_set_before_reach_the_handler_in_its_task_or_thread_and_no_other_job(
    jobs: App[None],
) -> None:
    before: list[str] = []

    @jobs.middleware
    async def tenant(ctx: JobContext, call_next: CallNext) -> object:
        before.append(TENANT.get())
        assert isinstance(ctx.payload, Order)
        TENANT.set(ctx.payload.tenant)
        return await call_next(ctx)

    @jobs.task(payload=Order)
    async def on_the_loop(ctx: JobContext, payload: Order) -> Sent:
        return Sent(by=TENANT.get())

    @jobs.task(payload=Order)
    def in_a_thread(ctx: JobContext, payload: Order) -> Sent:
        assert threading.current_thread() is not threading.main_thread()
        return Sent(by=TENANT.get())

    async with at_work(jobs):
        for task in (on_the_loop, in_a_thread):
            for name in ("a", "b"):
                assert await (await task.defer(tenant=name)).result(30) == Sent(by=name)
    assert before == ["nobody"] * 4


@pytest.mark.parametrize("is_async", [True, False])
async def test_it_may_catch_what_the_handler_raises_and_answer_in_its_place(jobs: App[None], is_async: bool) -> None:
    @jobs.middleware
    async def fallback(ctx: JobContext, call_next: CallNext) -> object:
        try:
            return await call_next(ctx)
        except ValueError as error:
            return {"caught": str(error)}

    @jobs.task
    async def fails(ctx: JobContext) -> dict[str, str]:
        raise ValueError("no stock")

    @jobs.task
    def fails_in_thread(ctx: JobContext) -> dict[str, str]:
        raise ValueError("no stock")

    async with at_work(jobs):
        job = await (fails if is_async else fails_in_thread).defer()
        assert await job.result(30) == {"caught": "no stock"}


@pytest.mark.parametrize("error", [RuntimeError("no session"), SystemExit(3)])
async def test_what_it_raises_is_an_ordinary_failure_of_the_attempt(jobs: App[None], error: BaseException) -> None:
    starts: list[int] = []

    @jobs.middleware
    async def broken_once(ctx: JobContext, call_next: CallNext) -> object:
        starts.append(ctx.job.attempts)
        if ctx.job.attempts == 1:
            raise error
        return await call_next(ctx)

    @jobs.task(backoff=AtOnce())
    async def ship(ctx: JobContext) -> None: ...

    async with at_work(jobs) as told:
        job = await ship.defer()
        await job.result(30)
        assert type(error).__name__ in told.of(events.Retrying)[0].error
    assert starts == [1, 2]


async def test_it_may_answer_without_running_the_handler(jobs: App[None]) -> None:
    @jobs.middleware
    async def cached(ctx: JobContext, call_next: CallNext) -> object:
        return Sent(by="cache")

    ran: list[int] = []

    @jobs.task(payload=Order)
    async def ship(ctx: JobContext, payload: Order) -> Sent:
        ran.append(1)
        return Sent(by="handler")

    async with at_work(jobs):
        assert await (await ship.defer()).result(30) == Sent(by="cache")
    assert not ran


@pytest.mark.parametrize("answer", [5, {"wrong": 1}, None])
async def test_its_answer_is_checked_like_any_result(jobs: App[None], answer: object) -> None:
    @jobs.middleware
    async def changed(ctx: JobContext, call_next: CallNext) -> object:
        await call_next(ctx)
        return answer

    @jobs.task(payload=Order)
    async def ship(ctx: JobContext, payload: Order) -> Sent:
        return Sent(by="handler")

    async with at_work(jobs):
        job = await ship.defer()
        with pytest.raises(JobFailed, match="ResultError"):
            await job.result(30)
        assert (await job.job()).attempts == 1


@pytest.mark.parametrize("is_async", [True, False])
async def test_it_may_run_the_handler_again_within_the_attempt(jobs: App[None], is_async: bool) -> None:
    runs: list[int] = []

    @jobs.middleware
    async def twice(ctx: JobContext, call_next: CallNext) -> object:
        try:
            return await call_next(ctx)
        except ConnectionError:
            return await call_next(ctx)

    def run() -> dict[str, int]:
        runs.append(1)
        if len(runs) == 1:
            raise ConnectionError
        return {"runs": len(runs)}

    @jobs.task
    async def fetch(ctx: JobContext) -> dict[str, int]:
        return run()

    @jobs.task
    def fetch_in_thread(ctx: JobContext) -> dict[str, int]:
        return run()

    async with at_work(jobs):
        job = await (fetch if is_async else fetch_in_thread).defer()
        assert await job.result(30) == {"runs": 2}
        assert (await job.job()).attempts == 1


# Timeouts, cancelling, stopping.


@pytest.mark.parametrize("is_async", [True, False])
async def test_the_timeout_counts_its_time_and_interrupts_it_before_the_handler(
    jobs: App[None], is_async: bool
) -> None:
    reasons: list[CancelReason | None] = []

    @jobs.middleware
    async def waits_for_a_lock(ctx: JobContext, call_next: CallNext) -> object:
        try:
            await forever()
        except asyncio.CancelledError:
            reasons.append(ctx.cancel_reason)
            raise
        return await call_next(ctx)

    @jobs.task(timeout=0.05, max_attempts=1)
    async def ship(ctx: JobContext) -> None: ...

    @jobs.task(timeout=0.05, max_attempts=1)
    def ship_in_thread(ctx: JobContext) -> None: ...

    async with at_work(jobs):
        job = await (ship if is_async else ship_in_thread).defer()
        with pytest.raises(JobFailed, match="HandlerTimeout"):
            await job.result(30)
    assert reasons == ["timeout"]


async def test_the_stop_of_a_handler_passes_through_it_and_its_cleanup_runs(jobs: App[None]) -> None:
    seen: list[str] = []

    @jobs.middleware
    async def session(ctx: JobContext, call_next: CallNext) -> object:
        try:
            result = await call_next(ctx)
            seen.append("commit")
            return result
        except asyncio.CancelledError:
            seen.append(f"rollback: {ctx.cancel_reason}")
            raise
        finally:
            await asyncio.sleep(0)
            seen.append("closed")

    @jobs.task(timeout=0.05, max_attempts=1)
    async def ship(ctx: JobContext) -> None:
        await forever()

    async with at_work(jobs):
        with pytest.raises(JobFailed, match="HandlerTimeout"):
            await (await ship.defer()).result(30)
    assert seen == ["rollback: timeout", "closed"]


@pytest.mark.parametrize("is_async", [True, False])
async def test_no_value_of_a_handler_that_ignored_its_timeout_reaches_it(jobs: App[None], is_async: bool) -> None:
    seen: list[str] = []

    @jobs.middleware
    async def session(ctx: JobContext, call_next: CallNext) -> object:
        try:
            result = await call_next(ctx)
        except asyncio.CancelledError:
            seen.append("rollback")
            raise
        seen.append("commit")
        return result

    @jobs.task(timeout=0.05, max_attempts=1)
    async def ignores_it(ctx: JobContext) -> dict[str, int]:
        with suppress(asyncio.CancelledError):
            await forever()
        return {"late": 1}

    @jobs.task(timeout=0.05, max_attempts=1)
    def ends_late(ctx: JobContext) -> dict[str, int]:
        pause = threading.Event()
        while not ctx.cancelled:
            pause.wait(0.01)
        return {"late": 1}

    async with at_work(jobs):
        job = await (ignores_it if is_async else ends_late).defer()
        with pytest.raises(JobFailed, match="HandlerTimeout"):
            await job.result(30)
        assert (await job.job()).result is None
    assert seen == ["rollback"]


async def test_one_that_swallows_its_cancellation_has_failed_by_the_timeout_all_the_same(jobs: App[None]) -> None:
    started: list[str] = []

    @jobs.middleware
    async def swallows(ctx: JobContext, call_next: CallNext) -> object:
        try:
            await forever()
        except asyncio.CancelledError:
            started.append("swallowed")
        with pytest.raises(asyncio.CancelledError):
            await call_next(ctx)
        return {"late": 1}

    @jobs.task(timeout=0.05, max_attempts=1)
    async def ship(ctx: JobContext) -> dict[str, int]:
        started.append("handler")
        return {}

    async with at_work(jobs):
        job = await ship.defer()
        with pytest.raises(JobFailed, match="HandlerTimeout"):
            await job.result(30)
    assert started == ["swallowed"]


async def test_one_that_never_ends_loses_its_slot_and_the_worker_stops_in_time(jobs: App[None]) -> None:
    journal = Journal()
    go = asyncio.Event()

    @jobs.middleware
    async def hangs(ctx: JobContext, call_next: CallNext) -> object:
        while ctx.job.job_type == "ship" and not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                journal.add("ignored")
        journal.add("ended")
        return await call_next(ctx)

    @jobs.task(timeout=0.05, max_attempts=2, backoff=InAnHour())
    def ship(ctx: JobContext) -> None: ...

    @jobs.task
    async def other(ctx: JobContext) -> None: ...

    async with at_work(jobs, shutdown_grace=0.05, shutdown_timeout=2.0):
        job = await ship.defer()
        await journal.wait_for("ignored")
        await (await other.defer()).result(30)
        stored = await job.job()
        assert (stored.status, stored.attempts) == (Status.SCHEDULED, 1)
    go.set()
    await journal.wait_for("ended")


async def test_cancelling_the_job_reaches_it(jobs: App[None]) -> None:
    journal = Journal()

    @jobs.middleware
    async def waits(ctx: JobContext, call_next: CallNext) -> object:
        journal.add("started")
        try:
            await forever()
            return await call_next(ctx)
        finally:
            journal.add(ctx.cancel_reason)

    @jobs.task
    async def ship(ctx: JobContext) -> None: ...

    async with at_work(jobs):
        job = await ship.defer()
        await journal.wait_for("started")
        await job.cancel()
        with pytest.raises(JobCancelled):
            await job.result(30)
    assert journal.lines == ["started", "cancelled"]


async def test_a_plain_function_that_ends_within_the_grace_of_a_shutdown_is_done(jobs: App[None]) -> None:
    journal = Journal()
    loop, go = asyncio.get_running_loop(), threading.Event()

    @jobs.middleware
    async def session(ctx: JobContext, call_next: CallNext) -> object:
        result = await call_next(ctx)
        await asyncio.sleep(0)
        journal.add("commit")
        return result

    @jobs.task
    def ship(ctx: JobContext) -> dict[str, str]:
        loop.call_soon_threadsafe(journal.add, "started")
        while not ctx.cancelled:
            go.wait(0.01)
        return {"reason": str(ctx.cancel_reason)}

    async with jobs:
        async with running(jobs.worker(environ={}, shutdown_grace=0.05)):
            job = await ship.defer()
            await journal.wait_for("started")
        assert await job.result(30) == {"reason": "shutdown"}
    assert journal.lines == ["started", "commit"]


@contextmanager
def released(event: threading.Event) -> Iterator[None]:
    """Let threads go on when the test ends, however it does."""
    try:
        yield
    finally:
        event.set()


async def test_a_job_lasts_until_its_plain_function_has_ended_even_if_the_middleware_left_it(jobs: App[None]) -> None:
    journal, go = Journal(), threading.Event()

    @jobs.middleware
    async def impatient(ctx: JobContext, call_next: CallNext) -> object:
        try:
            return await asyncio.wait_for(call_next(ctx), 0.01)
        except TimeoutError:
            with pytest.raises(Exception, match="called again while ship still runs"):
                await call_next(ctx)
            journal.add("left")
            return {"by": "impatient"}

    @jobs.task
    def ship(ctx: JobContext) -> dict[str, str]:
        go.wait(30)
        raise ValueError("nobody hears this")

    with released(go):
        async with at_work(jobs) as told:
            job = await ship.defer()
            await journal.wait_for("left")
            assert await job.status() is Status.RUNNING
            assert not told.of(events.Done)
            go.set()
            assert await job.result(30) == {"by": "impatient"}


# ctx.complete.


@pytest.mark.parametrize("by_handler", [True, False])
async def test_the_job_may_be_completed_inside_of_it(
    jobs: App[None], connection: asyncpg.Connection, by_handler: bool
) -> None:
    await connection.execute("CREATE TABLE effects (job bigint)")

    async def complete(ctx: JobContext) -> None:
        async with ctx.store.transaction() as transaction:
            await transaction.execute("INSERT INTO effects VALUES ($1)", ctx.job.id)
            await ctx.complete(Sent(by="transaction"), connection=transaction)

    @jobs.middleware
    async def around(ctx: JobContext, call_next: CallNext) -> object:
        result = await call_next(ctx)
        if not by_handler:
            await complete(ctx)
        return result

    @jobs.task(payload=Order)
    async def ship(ctx: JobContext, payload: Order) -> Sent:
        if by_handler:
            await complete(ctx)
        return Sent(by="not stored")

    async with at_work(jobs) as told:
        job = await ship.defer()
        assert await job.result(30) == Sent(by="transaction")
        await told.wait_for(events.Done)
    assert await connection.fetchval("SELECT count(*) FROM effects") == 1


async def test_what_it_raises_after_a_completion_changes_nothing(jobs: App[None]) -> None:
    @jobs.middleware
    async def around(ctx: JobContext, call_next: CallNext) -> object:
        await call_next(ctx)
        raise RuntimeError("too late")

    @jobs.task(payload=Order)
    async def ship(ctx: JobContext, payload: Order) -> Sent:
        await ctx.complete(Sent(by="handler"))
        return Sent(by="not stored")

    async with at_work(jobs) as told:
        job = await ship.defer()
        assert await job.result(30) == Sent(by="handler")
        await told.wait_for(events.Done)
        assert not told.of(events.Retrying)


# Where it does not run, and when it counts.


async def test_a_payload_that_does_not_decode_never_reaches_it(jobs: App[None], connection: asyncpg.Connection) -> None:
    ran: list[int] = []

    @jobs.middleware
    async def counted(ctx: JobContext, call_next: CallNext) -> object:
        ran.append(ctx.job.id)
        return await call_next(ctx)

    @jobs.task(payload=Order)
    async def ship(ctx: JobContext, payload: Order) -> None: ...

    async with at_work(jobs) as told:
        await connection.execute("""SELECT pqrun.enqueue('ship', '{"number": "many"}')""")
        assert "PayloadDecodeError" in (await told.wait_for(events.Failed)).error
    assert not ran


async def test_jobs_of_pqruns_own_do_not_reach_it(jobs: App[None]) -> None:
    @jobs.middleware
    async def refuses(ctx: JobContext, call_next: CallNext) -> object:
        raise AssertionError

    async with at_work(jobs):
        job_id = await jobs.store.enqueue("__cleanup", {"older_than_seconds": 1})
        assert (await jobs.store.wait_end(job_id, 30)).status is Status.DONE


async def test_a_worker_takes_what_was_registered_when_it_started(jobs: App[None]) -> None:
    @jobs.task
    async def ship(ctx: JobContext) -> dict[str, str]:
        return {"by": "handler"}

    async with jobs:
        worker = jobs.worker(environ={})
        async with running(worker):

            @jobs.middleware
            async def late(ctx: JobContext, call_next: CallNext) -> object:
                return {"by": "middleware"}

            assert await (await ship.defer()).result(30) == {"by": "handler"}
        async with running(worker):
            assert await (await ship.defer()).result(30) == {"by": "middleware"}


async def test_a_task_that_is_called_runs_without_it(jobs: App[None]) -> None:
    @jobs.middleware
    async def refuses(ctx: JobContext, call_next: CallNext) -> object:
        raise AssertionError

    ctx: Any = object()

    @jobs.task
    async def ship(ctx: JobContext, number: int) -> dict[str, int]:
        return {"number": number}

    assert await ship(ctx, 7) == {"number": 7}


async def test_a_worker_may_have_its_own_inside_that_of_the_app(jobs: App[None]) -> None:
    seen: list[str] = []

    def named(name: str) -> Any:
        async def middleware(ctx: JobContext, call_next: CallNext) -> object:
            seen.append(name)
            return await call_next(ctx)

        return middleware

    jobs.middleware(named("app"))

    @jobs.task
    async def ship(ctx: JobContext) -> None: ...

    async with at_work(jobs, middleware=[named("first"), named("second")]):
        await (await ship.defer()).result(30)
    assert seen == ["app", "first", "second"]


async def test_it_goes_around_handlers_without_decorators_too(store: PgJobStore) -> None:
    seen: list[object] = []

    async def look(ctx: JobContext, call_next: CallNext) -> object:
        seen.append(ctx.payload)
        return await call_next(ctx)

    async def ship(ctx: JobContext) -> dict[str, object]:
        return {"by": "loop"}

    def ship_in_thread(ctx: JobContext) -> dict[str, object]:
        return {"by": "thread"}

    async with low_level(store, {"a": ship, "b": ship_in_thread}, middleware=[look]):
        ends = [await store.wait_end(await store.enqueue(name, {"for": name}), 30) for name in "ab"]
    assert [end.result for end in ends] == ['{"by": "loop"}', '{"by": "thread"}']
    assert seen == [{"for": "a"}, {"for": "b"}]


def test_without_any_a_handler_is_left_as_it_is(jobs: App[None]) -> None:
    @jobs.task
    async def ship(ctx: JobContext) -> None: ...

    handler = ship.handler
    assert handler.surrounded(()) is handler


# What is refused.


async def without_call_next(ctx: JobContext) -> object:
    return None


async def loses_results(ctx: JobContext, call_next: CallNext) -> None:
    await call_next(ctx)


def not_async(ctx: JobContext, call_next: CallNext) -> object:
    return None


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (without_call_next, "without_call_next.* does not take these two"),
        (loses_results, "loses_results returns None, so every result would be lost"),
        (not_async, "not_async is not async"),
        (5, "got int"),
    ],
)
def test_what_cannot_be_one_is_refused_where_it_is_registered(
    jobs: App[None], store: PgJobStore, function: Any, reason: str
) -> None:
    with pytest.raises(DeclarationError, match=reason):
        jobs.middleware(function)
    with pytest.raises(DeclarationError, match=reason):
        jobs.worker(middleware=[function])
    with pytest.raises(OptionError, match="middleware must be a list"):
        jobs.worker(middleware=function)


def test_a_refusal_names_file_and_line(jobs: App[None]) -> None:
    line = not_async.__code__.co_firstlineno
    with pytest.raises(DeclarationError, match=rf"\[not_async \(test_middleware.py:{line}\)\]"):
        jobs.middleware(not_async)  # type: ignore[arg-type]  # the point


async def test_an_object_with_an_async_call_may_be_one(jobs: App[None]) -> None:
    class Tag:
        async def __call__(self, ctx: JobContext, call_next: CallNext) -> object:
            await call_next(ctx)
            return {"by": "object"}

    jobs.middleware(Tag())

    @jobs.task(timeout=timedelta(seconds=30))
    async def ship(ctx: JobContext) -> dict[str, str]:
        return {"by": "handler"}

    async with at_work(jobs):
        assert await (await ship.defer()).result(30) == {"by": "object"}


async def test_call_next_takes_the_context_and_says_so(jobs: App[None]) -> None:
    @jobs.middleware
    async def wrong(ctx: JobContext, call_next: CallNext) -> object:
        return await call_next(ctx.job)  # type: ignore[arg-type]  # the point

    @jobs.task(max_attempts=1)
    async def ship(ctx: JobContext) -> None: ...

    async with at_work(jobs):
        with pytest.raises(JobFailed, match="call_next takes the context that the middleware was given; got Job"):
            await (await ship.defer()).result(30)
