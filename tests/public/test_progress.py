"""ctx.progress and who sees it, with real workers."""

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Never

import asyncpg
import psycopg
import pytest

from pqrun import (
    App,
    CallNext,
    JobCancelled,
    JobContext,
    JobFailed,
    JobHandle,
    JobNotFound,
    NotOpenError,
    OptionError,
    PgJobStore,
    Progress,
    ResultTimeout,
    Snooze,
    Status,
    Task,
    WrongLoopError,
)
from pqrun.run.progress import Reporter
from pqrun.testing import drain, inline
from tests.public.at_work import AtOnce, at_work, low_level
from tests.support.waiting import DEADLINE_SECONDS, wait_until


class Pages:
    """A handler that goes on when it is told to."""

    def __init__(self, jobs: App[None]) -> None:
        self.go = asyncio.Event()
        self.at_start = (0.25, "a quarter")
        self.at_end = (1.0, "all pages")

        @jobs.task
        async def render(ctx: JobContext) -> None:
            await ctx.progress(*self.at_start)
            await self.go.wait()
            await ctx.progress(*self.at_end)

        self.render = render


@pytest.fixture
def pages(jobs: App[None]) -> Pages:
    return Pages(jobs)


async def seen(job: JobHandle[None], value: float) -> Progress:
    """Wait until this value is seen."""
    found: list[Progress] = []

    async def is_seen() -> bool:
        progress = await job.progress()
        found.extend([progress] if progress is not None and progress.value == value else [])
        return bool(found)

    await wait_until(is_seen)
    return found[-1]


async def test_a_running_handler_is_seen_and_its_last_report_stays(jobs: App[None], pages: Pages) -> None:
    async with at_work(jobs):
        job = await pages.render.defer()
        early = await seen(job, 0.25)
        assert (early.message, early.attempt) == ("a quarter", 1)
        assert abs((datetime.now(UTC) - early.reported_at).total_seconds()) < 30
        pages.go.set()
        await job.result(timeout=DEADLINE_SECONDS)
        last = await job.progress()
        assert last is not None
        assert (last.value, last.message) == (1.0, "all pages")
    async with jobs:
        assert await pages.render.handle(job.id).progress() == last


async def test_watch_tells_each_and_ends(jobs: App[None], pages: Pages) -> None:
    told = []
    async with at_work(jobs), asyncio.timeout(DEADLINE_SECONDS):
        job = await pages.render.defer()
        async for progress in job.watch(every=0.05):
            told.append((progress.value, progress.message))
            pages.go.set()
        assert await job.status() is Status.DONE
    assert told == [(0.25, "a quarter"), (1.0, "all pages")]


async def test_watch_raises_nothing_for_a_job_that_fails(jobs: App[None]) -> None:
    @jobs.task(max_attempts=1)
    async def fail(ctx: JobContext) -> None:
        await ctx.progress(0.5)
        raise ValueError

    async with at_work(jobs), asyncio.timeout(DEADLINE_SECONDS):
        job = await fail.defer()
        assert [progress.value async for progress in job.watch()] == [0.5]
        with pytest.raises(JobFailed):
            await job.result()


async def test_watch_ends_with_a_cancel(jobs: App[None], pages: Pages) -> None:
    async with at_work(jobs), asyncio.timeout(DEADLINE_SECONDS):
        job = await pages.render.defer()
        async for _ in job.watch():
            await job.cancel()
        with pytest.raises(JobCancelled):
            await job.result()


async def test_a_job_that_reports_nothing_has_no_progress_and_one_that_is_not_there_is_not_found(
    jobs: App[None], pages: Pages
) -> None:
    async with jobs:
        job = await pages.render.defer()
        assert await job.progress() is None
        with pytest.raises(ResultTimeout):
            await anext(aiter(job.watch(timeout=0)))
        for unknown in (pages.render.handle(999).progress(), anext(aiter(pages.render.handle(999).watch()))):
            with pytest.raises(JobNotFound, match="999"):
                await unknown
        assert await jobs.store.progress(job.id) is None
        with pytest.raises(OptionError, match="timeout: "):
            job.watch(timeout=-1)
        with pytest.raises(OptionError, match="every: "):
            job.watch(every=0.001)
    with pytest.raises(NotOpenError):
        job.watch()


async def test_bad_reports_are_told_to_the_handler(jobs: App[None]) -> None:
    told = []

    @jobs.task
    async def careless(ctx: JobContext) -> None:
        for value, message in ((1.5, None), (0.5, "\x00")):
            with pytest.raises(OptionError) as caught:
                await ctx.progress(value, message)
            told.append(str(caught.value).partition(":")[0])

    async with at_work(jobs):
        job = await careless.defer()
        await job.result(timeout=DEADLINE_SECONDS)
        assert await job.progress() is None
    assert told == ["value", "message"]


async def test_each_attempt_reports_for_itself_and_the_last_report_of_each_is_kept(jobs: App[None]) -> None:
    @jobs.task(max_attempts=3, backoff=AtOnce())
    async def stumble(ctx: JobContext, stop_at: float = 0.3) -> None:
        await ctx.progress(stop_at * ctx.job.attempts)
        if ctx.job.attempts < 3:
            raise ValueError

    async with at_work(jobs), asyncio.timeout(DEADLINE_SECONDS):
        job = await stumble.defer()
        told = [(progress.attempt, round(progress.value, 1)) async for progress in job.watch(every=0.05)]
    assert told[-1] == (3, 0.9)
    assert told == sorted(told)


async def test_a_retry_by_hand_begins_without_a_report(jobs: App[None]) -> None:
    may_report = True

    @jobs.task(max_attempts=1)
    async def fail(ctx: JobContext) -> None:
        if may_report:
            await ctx.progress(0.5)
        raise ValueError

    async with at_work(jobs):
        job = await fail.defer()
        with pytest.raises(JobFailed):
            await job.result(timeout=DEADLINE_SECONDS)
        assert await job.progress() is not None
        may_report = False
        await job.retry()
        with pytest.raises(JobFailed):
            await job.result(timeout=DEADLINE_SECONDS)
        assert await job.progress() is None


async def test_a_snoozed_job_keeps_its_report(jobs: App[None]) -> None:
    @jobs.task
    async def wait_on(ctx: JobContext) -> None:
        await ctx.progress(0.5, "waiting for the bank")
        raise Snooze(timedelta(hours=1))

    async with at_work(jobs):
        job = await wait_on.defer()
        await seen(job, 0.5)
        await wait_until(lambda: _is_scheduled(job))


async def _is_scheduled(job: JobHandle[None]) -> bool:
    return await job.status() is Status.SCHEDULED


async def test_a_plain_function_reports_from_its_threads(jobs: App[None]) -> None:
    @jobs.task
    def resize(ctx: JobContext) -> None:
        helpers = [threading.Thread(target=ctx.progress_sync, args=(n / 10, f"{n} of 10")) for n in range(10)]
        for helper in helpers:
            helper.start()
            helper.join()
        ctx.progress_sync(1, "10 of 10")

    async with at_work(jobs):
        job = await resize.defer()
        await job.result(timeout=DEADLINE_SECONDS)
        last = await job.progress()
        assert last is not None
        assert (last.value, last.message) == (1.0, "10 of 10")


async def test_middleware_may_report(jobs: App[None]) -> None:
    @jobs.middleware
    async def around(ctx: JobContext, call_next: CallNext) -> object:
        value = await call_next(ctx)
        await ctx.progress(1.0, "by middleware")
        return value

    @jobs.task
    async def quiet(ctx: JobContext) -> None: ...

    async with at_work(jobs):
        job = await quiet.defer()
        await job.result(timeout=DEADLINE_SECONDS)
        assert (await seen(job, 1.0)).message == "by middleware"


async def test_low_level_handlers_have_it_too(store: PgJobStore) -> None:
    async def handler(ctx: JobContext) -> Mapping[str, object] | None:
        await ctx.progress(0.75, "low")
        return None

    job_id = await store.enqueue("t", {})
    async with low_level(store, {"t": handler}):
        await store.wait_end(job_id, DEADLINE_SECONDS)
    last = await store.progress(job_id)
    assert last is not None
    assert (last.value, last.message) == (0.75, "low")


@pytest.mark.parametrize("commits", [True, False])
async def test_the_last_report_before_complete_is_kept(jobs: App[None], commits: bool) -> None:
    @jobs.task(max_attempts=1)
    async def book(ctx: JobContext) -> None:
        async with ctx.store.transaction() as connection:
            await ctx.progress(0.9, "before complete")
            await ctx.complete(connection=connection)
            await ctx.progress(0.95, "too late where it commits")
            if not commits:
                raise ValueError

    async with at_work(jobs):
        job = await book.defer()
        end = await jobs.store.wait_end(job.id, DEADLINE_SECONDS)
        assert end.status is (Status.DONE if commits else Status.FAILED)
        last = await job.progress()
        assert last is not None
        assert last.value == 0.9 if commits else last.value in (0.9, 0.95)


async def test_so_is_that_before_complete_in_a_thread(jobs: App[None], dsn: str) -> None:
    @jobs.task
    def book(ctx: JobContext) -> None:
        with psycopg.connect(dsn, gssencmode="disable") as connection:
            connection.execute("SELECT 1")
            ctx.progress_sync(0.9, "before complete")
            ctx.complete_sync(connection=connection)

    async with at_work(jobs):
        job = await book.defer()
        await job.result(timeout=DEADLINE_SECONDS)
        assert (await seen(job, 0.9)).message == "before complete"


async def test_a_report_after_the_job_was_lost_is_dropped_without_a_word(
    jobs: App[None], connection: asyncpg.Connection
) -> None:
    reported = asyncio.Event()

    @jobs.task
    async def stubborn(ctx: JobContext) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            assert ctx.cancel_reason == "claim_lost"
            await ctx.progress(0.99, "too late")
            reported.set()
            raise

    async with at_work(jobs):
        job = await stubborn.defer()
        await wait_until(lambda: _is_running(job))
        await connection.execute("DELETE FROM pqrun.jobs")
        await asyncio.wait_for(reported.wait(), DEADLINE_SECONDS)
    assert await connection.fetchval("SELECT count(*) FROM pqrun.progress") == 0


async def _is_running(job: JobHandle[None]) -> bool:
    return await job.status() is Status.RUNNING


async def test_two_workers_report_for_the_jobs_that_each_has(jobs: App[None]) -> None:
    together = asyncio.Barrier(8)

    @jobs.task
    async def share(ctx: JobContext, number: int) -> None:
        await ctx.progress(number / 10, ctx.worker_id)
        await together.wait()

    async with (
        at_work(jobs, concurrency=4, worker_id="one"),
        jobs.worker(concurrency=4, worker_id="two", environ={}).lifespan(),
    ):
        handles = await jobs.defer_many([share.call(number) for number in range(8)])
        await asyncio.gather(*(handle.result(timeout=DEADLINE_SECONDS) for handle in handles))
        reports = [await handle.progress() for handle in handles]
    assert [report.value for report in reports if report] == [number / 10 for number in range(8)]
    assert {report.message for report in reports if report} == {"one", "two"}


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many reports each write had."""
    counted: list[int] = []
    write = Reporter._write

    async def counting(reporter: Reporter) -> None:
        counted.append(len(reporter._in_flight))
        await write(reporter)

    monkeypatch.setattr(Reporter, "_write", counting)
    return counted


async def test_a_thousand_jobs_that_report_all_the_time_make_a_handful_of_statements(
    jobs: App[None], connection: asyncpg.Connection, writes: list[int]
) -> None:
    together = asyncio.Barrier(1000)

    @jobs.task
    async def chatter(ctx: JobContext) -> None:
        await together.wait()
        for n in range(101):
            await ctx.progress(n / 100, f"step {n}")
            await asyncio.sleep(0)

    async with at_work(jobs, concurrency=1000):
        handles = await jobs.defer_many([chatter.call() for _ in range(1000)])
        await asyncio.gather(*(handle.result(timeout=2 * DEADLINE_SECONDS) for handle in handles))
    assert (
        await connection.fetchval("SELECT count(*) FROM pqrun.progress WHERE value = 1 AND message = 'step 100'")
        == 1000
    )
    assert sum(writes) < 20_000  # of 101,000 reports
    assert len(writes) < 100


# Synchronous code.


@contextmanager
def worker_elsewhere(dsn: str) -> Iterator[None]:
    """A worker in a thread, with a loop and an app of its own, as of another process."""
    started, stop = threading.Event(), threading.Event()

    async def work() -> None:
        jobs = App(dsn=dsn)
        make_step(jobs)
        async with at_work(jobs):
            started.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    try:
        assert started.wait(DEADLINE_SECONDS)
        yield
    finally:
        stop.set()
        thread.join(DEADLINE_SECONDS)


def make_step(jobs: App[None]) -> Task[[], Never, None, None]:
    @jobs.task
    async def step(ctx: JobContext[None]) -> None:
        await ctx.progress(0.5, "half")

    return step


def test_scripts_and_threads_see_it_too(dsn: str) -> None:
    jobs = App(dsn=dsn)
    step = make_step(jobs)
    with worker_elsewhere(dsn):
        job = step.defer_sync()
        assert [progress.value for progress in job.watch_sync(timeout=DEADLINE_SECONDS)] == [0.5]
        last = job.progress_sync()
    assert last is not None
    assert last.message == "half"
    with pytest.raises(JobNotFound):
        next(step.handle(999).watch_sync())
    with pytest.raises(OptionError):
        job.watch_sync(every=0)  # at the call, not at the first look
    jobs.close_sync()


async def test_synchronous_calls_are_refused_where_a_loop_runs(jobs: App[None], pages: Pages) -> None:
    async with jobs:
        job = await pages.render.defer()
        with pytest.raises(WrongLoopError, match=r"await job\.progress\(\)"):
            job.progress_sync()
        with pytest.raises(WrongLoopError, match=r"job\.watch\(\)"):
            next(job.watch_sync())


# Tests of an application.


async def test_inline_mode_keeps_the_last_report() -> None:
    jobs = App(dsn="postgresql://localhost/never_opened")

    @jobs.task
    async def render(ctx: JobContext, pages: int) -> None:
        for page in range(1, pages + 1):
            await ctx.progress(page / pages, f"page {page}")

    @jobs.task
    def plain(ctx: JobContext) -> None:
        ctx.progress_sync(0.5)

    @jobs.task
    async def quiet(ctx: JobContext) -> None: ...

    with inline(jobs):
        job = await render.defer(4)
        last = await job.progress()
        assert last is not None
        assert (last.value, last.message, last.attempt) == (1.0, "page 4", 1)
        assert [progress async for progress in job.watch()] == [last]
        assert (await anext(aiter((await plain.defer()).watch()))).value == 0.5
        silent = await quiet.defer()
        assert await silent.progress() is None
        assert [progress async for progress in silent.watch()] == []
        later = await render.options(run_after=datetime(9000, 1, 1, tzinfo=UTC)).defer(1)
        with pytest.raises(ResultTimeout):
            await anext(aiter(later.watch()))
        with pytest.raises(JobNotFound):
            await render.handle(99).progress()


async def test_after_a_drain_the_last_report_is_there(jobs: App[None]) -> None:
    @jobs.task
    async def render(ctx: JobContext) -> None:
        await ctx.progress(0.5)
        await ctx.progress(1.0, "done")

    async with jobs:
        job = await render.defer()
        await drain(jobs)
        last = await job.progress()
        assert last is not None
        assert last.message == "done"
