"""Options of a task and of a call: what they do to the job, and what is refused before anything is written."""

import asyncio
import time
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import asyncpg
import pytest

from pqrun import App, HandlerTimeout, IdlePollPolicy, JobContext, JobFailed, OptionError, PgJobStore, Status
from pqrun.run.events import Done
from tests.public.at_work import AtOnce, InAnHour, at_work, count_jobs, low_level

NAIVE = datetime(2026, 1, 1, 12, 0)  # noqa: DTZ001  # what is refused
FAR_WEST = timezone(timedelta(hours=-5))


async def test_options_of_a_call_win_over_the_declared_ones_and_add_up(jobs: App[None]) -> None:
    @jobs.task(name="mail", queue="net", priority=1, max_attempts=2, timeout=timedelta(minutes=5))
    async def send_email(ctx: JobContext) -> None: ...

    async with jobs:
        declared = await (await send_email.defer()).job()
        assert (declared.job_type, declared.queue, declared.priority) == ("mail", "net", 1)
        assert (declared.max_attempts, declared.timeout_seconds) == (2, 300)
        changed = await send_email.options(priority=9, queue="a").options(queue="b", timeout=None).defer()
        job = await changed.job()
        assert (job.queue, job.priority, job.max_attempts, job.timeout_seconds) == ("b", 9, 2, None)


async def test_the_higher_priority_starts_first_and_equals_in_order(jobs: App[None]) -> None:
    seen: list[str] = []

    @jobs.task
    async def note(ctx: JobContext, name: str) -> None:
        seen.append(name)

    async with jobs:
        for name, priority in (("low", -5), ("first", 0), ("second", 0), ("top", 32767), ("high", 10)):
            await note.options(priority=priority).defer(name)
    async with at_work(jobs) as told:
        await told.wait_for(Done, count=5)
    assert seen == ["top", "high", "first", "second", "low"]


@pytest.mark.parametrize("kind", ["timedelta", "instant"])
async def test_a_job_for_later_starts_when_it_is_due_without_being_polled_for(jobs: App[None], kind: str) -> None:
    @jobs.task
    async def sweep(ctx: JobContext) -> None: ...

    never = IdlePollPolicy(base_seconds=3600, max_seconds=3600)
    delay = timedelta(milliseconds=300)
    async with at_work(jobs, idle_policy=never) as told:
        await (await sweep.defer()).result(timeout=30)
        job = await sweep.options(run_after=delay if kind == "timedelta" else datetime.now(UTC) + delay).defer()
        assert await job.status() is Status.SCHEDULED
        await told.wait_for(Done, count=2)
        row = await job.job()
        assert row.locked_at is not None
        assert row.locked_at >= row.run_after


async def test_a_job_that_was_due_long_ago_starts_at_once(jobs: App[None]) -> None:
    @jobs.task
    async def sweep(ctx: JobContext) -> None: ...

    async with at_work(jobs):
        for past in (datetime.min.replace(tzinfo=UTC), datetime(1969, 1, 1, tzinfo=UTC), timedelta(0)):
            await (await sweep.options(run_after=past).defer()).result(timeout=30)


async def test_a_date_in_the_far_future_reads_back_and_disturbs_nobody(
    jobs: App[None], connection: asyncpg.Connection
) -> None:
    @jobs.task
    async def sweep(ctx: JobContext) -> None: ...

    last = datetime(9999, 12, 30, tzinfo=UTC)
    async with at_work(jobs):
        job = await sweep.options(run_after=last).defer()
        row = await job.job()
        assert row.run_after == last
        assert row.run_after > datetime.now(UTC)
        for beyond in (datetime.max.replace(tzinfo=UTC), datetime.max.replace(tzinfo=FAR_WEST)):
            with pytest.raises(OptionError, match="run_after"):
                await sweep.options(run_after=beyond).defer()
        await (await sweep.defer()).result(timeout=30)
    assert await count_jobs(connection) == 2


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Kolkata"])
async def test_a_datetime_without_a_zone_is_refused_wherever_the_host_stands(
    jobs: App[None], monkeypatch: pytest.MonkeyPatch, zone: str, connection: asyncpg.Connection
) -> None:
    @jobs.task
    async def sweep(ctx: JobContext) -> None: ...

    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        async with jobs:
            with pytest.raises(OptionError, match=r"run_after.*time zone"):
                await sweep.options(run_after=NAIVE).defer()
            with pytest.raises(OptionError, match=r"run_after.*time zone"):
                await jobs.store.enqueue("sweep", {}, run_after=NAIVE)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert await count_jobs(connection) == 0


IMPOSSIBLE: dict[str, list[Any]] = {
    "max_attempts": [0, -1, 1.5, "3", True, 2**31],
    "timeout": [0, -1, float("nan"), float("inf"), "3", timedelta(0)],
    "priority": [2**15, -(2**15) - 1, 0.5, "1"],
    "queue": ["", "x" * 201, "a\x00", None],
    "run_after": [timedelta(seconds=-1), timedelta.max, 5],
}


async def test_an_impossible_option_is_named_and_nothing_is_written(
    jobs: App[None], connection: asyncpg.Connection
) -> None:
    @jobs.task
    async def sweep(ctx: JobContext) -> None: ...

    async with jobs:
        for option, values in IMPOSSIBLE.items():
            for value in values:
                given: dict[str, Any] = {option: value}
                with pytest.raises(OptionError, match=option):
                    await sweep.options(**given).defer()
                given = {"timeout_seconds": value} if option == "timeout" else given
                with pytest.raises(OptionError, match=option):
                    await jobs.store.enqueue("sweep", {}, **given)
        given = {"backoff": 3}
        with pytest.raises(OptionError, match="backoff"):
            await sweep.options(**given).defer()
    assert await count_jobs(connection) == 0


@pytest.mark.parametrize("max_attempts", [1, 3])
async def test_a_job_starts_as_often_as_it_may_and_then_fails(jobs: App[None], max_attempts: int) -> None:
    starts: list[int] = []

    @jobs.task(max_attempts=max_attempts, backoff=AtOnce())
    async def fail(ctx: JobContext) -> None:
        starts.append(ctx.job.attempts)
        raise ValueError("again")

    async with at_work(jobs):
        job = await fail.defer()
        with pytest.raises(JobFailed, match="ValueError: again"):
            await job.result(timeout=30)
        assert (await job.job()).attempts == max_attempts
    assert starts == list(range(1, max_attempts + 1))


async def test_a_backoff_of_the_call_wins_over_that_of_the_task_wherever_the_job_runs(
    jobs: App[None], store: PgJobStore
) -> None:
    @jobs.task(max_attempts=2, backoff=InAnHour())
    async def fail(ctx: JobContext) -> None: ...

    async def elsewhere(ctx: JobContext) -> None:
        raise ValueError("again")

    async with jobs, low_level(store, {"fail": elsewhere}, backoff=InAnHour()):
        with pytest.raises(JobFailed):
            await (await fail.options(backoff=AtOnce()).defer()).result(timeout=30)


async def test_a_timeout_counts_from_the_start_of_the_handler(jobs: App[None]) -> None:
    reasons: list[str | None] = []

    @jobs.task(timeout=0.2, max_attempts=1)
    async def hang(ctx: JobContext) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            reasons.append(ctx.cancel_reason)

    async with at_work(jobs):
        job = await hang.defer()
        with pytest.raises(JobFailed, match=HandlerTimeout.__name__):
            await job.result(timeout=30)
        assert ((await job.job()).duration_ms or 0) >= 200
    assert reasons == ["timeout"]
