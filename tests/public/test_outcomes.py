"""What a handler chooses, against a real worker and a real database: snooze, abort, retry after; and the rules of a task."""

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from pqrun import (
    Abort,
    App,
    CallNext,
    ExponentialBackoff,
    HandlerSignal,
    HandlerTimeout,
    JobCancelled,
    JobContext,
    JobFailed,
    OptionError,
    PgJobStore,
    RetryAfter,
    Snooze,
    Status,
)
from pqrun.job.outcome import SNOOZES_MAX
from pqrun.run import events
from pqrun.testing import advance
from tests.public.at_work import AtOnce, InAnHour, at_work, low_level

HOUR = timedelta(hours=1)


async def test_a_snoozed_job_comes_back_with_all_its_attempts(jobs: App[None]) -> None:
    starts: list[tuple[int, int]] = []

    @jobs.task(max_attempts=1)
    async def wait(ctx: JobContext) -> dict[str, int]:
        starts.append((ctx.job.attempts, ctx.job.snoozes))
        if len(starts) < 4:
            raise Snooze(timedelta(milliseconds=20))
        return {"starts": len(starts)}

    async with at_work(jobs) as told:
        job = await wait.defer()
        assert await job.result(30) == {"starts": 4}
        row = await job.job()
    assert starts == [(1, 0), (1, 1), (1, 2), (1, 3)]
    assert (row.status, row.attempts, row.snoozes, row.last_error) == (Status.DONE, 1, 3, None)
    assert [(e.delay_seconds, e.snoozes) for e in told.of(events.Snoozed)] == [(0.02, 1), (0.02, 2), (0.02, 3)]


async def test_a_snooze_waits_by_the_clock_of_the_database(jobs: App[None], connection: asyncpg.Connection) -> None:
    @jobs.task
    async def wait(ctx: JobContext) -> None:
        raise Snooze(HOUR, "the bank is closed")

    async with at_work(jobs) as told:
        job = await wait.defer()
        await told.wait_for(events.Snoozed)
        row = await job.job()
        left = await connection.fetchval("SELECT extract(epoch FROM $1 - clock_timestamp())", row.run_after)
    assert (row.status, row.attempts, row.snoozes) == (Status.SCHEDULED, 0, 1)
    assert (row.locked_by, row.locked_at, row.claim_id, row.last_error) == (None, None, None, None)
    assert 3_500 < left <= 3_600


async def test_the_log_tells_why(jobs: App[None], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="pqrun")

    @jobs.task
    async def wait(ctx: JobContext) -> None:
        raise Snooze(HOUR, "the bank\nis closed")

    async with at_work(jobs) as told:
        job = await wait.defer()
        await told.wait_for(events.Snoozed)
    line = f"snoozed wait id={job.id} attempt=1/5, snooze 1 of {SNOOZES_MAX}, again in 3.6e+03 s: the bank\\nis closed"
    assert line in caplog.messages


async def test_one_snooze_too_many_is_a_failure_and_a_retry_by_hand_begins_anew(
    jobs: App[None], connection: asyncpg.Connection
) -> None:
    @jobs.task(max_attempts=2, backoff=AtOnce())
    async def wait(ctx: JobContext) -> None:
        raise Snooze(timedelta(0) if ctx.job.snoozes else HOUR)

    async with at_work(jobs) as told:
        job = await wait.defer()
        await told.wait_for(events.Snoozed)
        await connection.execute("UPDATE pqrun.jobs SET snoozes = $1", SNOOZES_MAX - 1)
        await advance(jobs, HOUR)
        with pytest.raises(JobFailed, match="snoozed 1000 times before"):
            await job.result(30)
        row = await job.job()
        assert (row.status, row.attempts, row.snoozes) == (Status.FAILED, 2, SNOOZES_MAX)
        assert len(told.of(events.Retrying)) == 1
        await job.retry()
        await told.wait_for(events.Snoozed, count=3)
        assert (await job.job()).snoozes == 1


async def test_an_abort_leaves_attempts_unused(jobs: App[None]) -> None:
    @jobs.task(backoff=AtOnce())
    async def greet(ctx: JobContext) -> None:
        raise Abort("there is no user 7")

    async with at_work(jobs) as told:
        job = await greet.defer()
        with pytest.raises(JobFailed, match="Abort: there is no user 7"):
            await job.result(30)
        row = await job.job()
    assert (row.status, row.attempts, row.error_summary) == (Status.FAILED, 1, "pqrun.Abort: there is no user 7")
    assert [e.error for e in told.of(events.Failed)] == ["pqrun.Abort: there is no user 7"]


async def test_a_retry_after_counts_attempts_and_takes_the_place_of_every_backoff(jobs: App[None]) -> None:
    @jobs.task(max_attempts=3, backoff=InAnHour())
    async def call(ctx: JobContext) -> None:
        raise RetryAfter(timedelta(milliseconds=10), "429")

    async with at_work(jobs) as told:
        job = await call.options(backoff=InAnHour()).defer()
        with pytest.raises(JobFailed, match=r"RetryAfter: in 0:00:00\.010000: 429"):
            await job.result(30)
        row = await job.job()
    assert (row.status, row.attempts) == (Status.FAILED, 3)
    assert [e.delay_seconds for e in told.of(events.Retrying)] == [0.01, 0.01]


@pytest.mark.parametrize(
    ("make", "event", "status", "attempts"),
    [
        (lambda: Snooze(HOUR), events.Snoozed, Status.SCHEDULED, 0),
        (lambda: RetryAfter(HOUR), events.Retrying, Status.SCHEDULED, 1),
        (lambda: Abort("x"), events.Failed, Status.FAILED, 1),
    ],
)
async def test_plain_functions_and_low_level_handlers_choose_too(
    dsn: str, make: Callable[[], HandlerSignal], event: type[events.Event], status: Status, attempts: int
) -> None:
    jobs = App(dsn=dsn)

    @jobs.task
    def plain(ctx: JobContext) -> None:
        raise make()

    @jobs.middleware
    async def around(ctx: JobContext, call_next: CallNext) -> object:
        return await call_next(ctx)

    async def low(ctx: JobContext[Any]) -> None:
        raise make()

    async with at_work(jobs) as told:
        of_thread = await plain.defer()
        await told.wait_for(event)
        row = await of_thread.job()
        assert (row.status, row.attempts) == (status, attempts)
    async with PgJobStore(dsn) as store, low_level(store, {"low": low}) as told:
        job_id = await store.enqueue("low", {})
        await told.wait_for(event)
        found = await store.get(job_id)
        assert found is not None
        assert (found.status, found.attempts) == (status, attempts)


async def test_a_middleware_may_turn_an_error_into_a_signal_and_sees_signals_pass(jobs: App[None]) -> None:
    seen: list[str] = []

    @jobs.middleware
    async def outer(ctx: JobContext, call_next: CallNext) -> object:
        try:
            return await call_next(ctx)
        except HandlerSignal as signal:
            seen.append(type(signal).__name__)
            raise

    @jobs.middleware
    async def rate_limited(ctx: JobContext, call_next: CallNext) -> object:
        try:
            return await call_next(ctx)
        except ConnectionError as error:
            raise RetryAfter(HOUR) from error

    @jobs.task(no_retry_on=ConnectionError)
    async def call(ctx: JobContext) -> None:
        raise ConnectionError("429")

    async with at_work(jobs) as told:
        job = await call.defer()
        await told.wait_for(events.Retrying)
        row = await job.job()
    assert seen == ["RetryAfter"]
    assert (row.status, row.attempts) == (Status.SCHEDULED, 1)
    assert "ConnectionError: 429" in (row.last_error or "")


@pytest.mark.parametrize("make", [lambda: Snooze(HOUR), lambda: Abort("x"), lambda: RetryAfter(HOUR)])
async def test_a_completion_that_has_committed_counts_more_than_a_signal(
    jobs: App[None], make: Callable[[], HandlerSignal]
) -> None:
    @jobs.task
    async def book(ctx: JobContext) -> dict[str, bool]:
        async with ctx.store.transaction() as connection:
            await ctx.complete({"booked": True}, connection=connection)
        raise make()

    async with at_work(jobs):
        job = await book.defer()
        assert await job.result(30) == {"booked": True}
        assert ((await job.job()).attempts, (await job.job()).snoozes) == (1, 0)


async def test_a_signal_that_rolls_the_completion_back_counts(jobs: App[None]) -> None:
    @jobs.task
    async def book(ctx: JobContext) -> dict[str, bool]:
        async with ctx.store.transaction() as connection:
            await ctx.complete({"booked": True}, connection=connection)
            raise Snooze(HOUR)

    async with at_work(jobs) as told:
        job = await book.defer()
        await told.wait_for(events.Snoozed)
        row = await job.job()
    assert (row.status, row.attempts, row.snoozes, row.result) == (Status.SCHEDULED, 0, 1, None)


async def test_a_cancel_counts_more_than_any_signal(jobs: App[None]) -> None:
    running, go = asyncio.Event(), asyncio.Event()

    @jobs.task
    async def wait(ctx: JobContext) -> None:
        running.set()
        try:
            await go.wait()
        except asyncio.CancelledError:
            raise Snooze(HOUR) from None

    async with at_work(jobs):
        job = await wait.defer()
        await running.wait()
        await job.cancel()
        with pytest.raises(JobCancelled):
            await job.result(30)
    assert running.is_set()


async def test_a_snoozed_job_keeps_its_dedupe_key_and_can_be_cancelled(jobs: App[None]) -> None:
    @jobs.task(dedupe_key="only")
    async def wait(ctx: JobContext) -> None:
        raise Snooze(HOUR)

    async with at_work(jobs) as told:
        job = await wait.defer()
        await told.wait_for(events.Snoozed)
        assert (await wait.defer()).id == job.id
        await job.cancel()
        row = await job.job()
    assert (row.status, row.snoozes) == (Status.CANCELLED, 1)


# Rules.


async def test_rules_decide_which_exceptions_are_worth_another_attempt(jobs: App[None]) -> None:
    @jobs.task(retry_on=OSError, no_retry_on=(FileNotFoundError, HandlerTimeout), backoff=InAnHour())
    async def call(ctx: JobContext, how: str) -> None:
        raise {"os": OSError, "file": FileNotFoundError, "value": ValueError}[how]("as told")

    async with at_work(jobs, concurrency=3) as told:
        found = {how: await call.defer(how) for how in ("os", "file", "value")}
        await told.wait_for(events.Failed, count=2)
        await told.wait_for(events.Retrying)
        rows = {how: await job.job() for how, job in found.items()}
    assert {how: (row.status, row.attempts) for how, row in rows.items()} == {
        "os": (Status.SCHEDULED, 1),
        "file": (Status.FAILED, 1),
        "value": (Status.FAILED, 1),
    }
    assert rows["value"].error_summary == "ValueError: as told"


async def test_a_timeout_counts_as_a_handler_timeout(jobs: App[None]) -> None:
    @jobs.task(timeout=0.05, no_retry_on=HandlerTimeout)
    async def hang(ctx: JobContext) -> None:
        await asyncio.Event().wait()

    async with at_work(jobs):
        job = await hang.defer()
        with pytest.raises(JobFailed, match="HandlerTimeout"):
            await job.result(30)
        assert (await job.job()).attempts == 1


@pytest.mark.parametrize("option", ["retry_on", "no_retry_on"])
@pytest.mark.parametrize("value", ["ValueError", (), (int,), Abort])
def test_bad_rules_are_refused_where_the_task_is_declared(jobs: App[None], option: str, value: object) -> None:
    options: Any = {option: value}

    async def never(ctx: JobContext) -> None: ...

    with pytest.raises(OptionError, match=f"^{option}: "):
        jobs.task(**options)(never)


def test_rules_are_not_an_option_of_a_call(jobs: App[None]) -> None:
    @jobs.task
    async def t(ctx: JobContext) -> None: ...

    options: Any = {"retry_on": ValueError}
    with pytest.raises(TypeError, match="retry_on"):
        t.options(**options)


async def test_an_exponential_backoff_is_a_policy_like_any_other(jobs: App[None]) -> None:
    policy = ExponentialBackoff(timedelta(milliseconds=10), factor=2, cap=1, jitter=0)

    @jobs.task(max_attempts=4, backoff=policy)
    async def fail(ctx: JobContext) -> None:
        raise ValueError

    async with at_work(jobs) as told:
        job = await fail.defer()
        with pytest.raises(JobFailed):
            await job.result(30)
        await fail.options(backoff=policy).defer()
        await told.wait_for(events.Failed, count=2)
    assert [e.delay_seconds for e in told.of(events.Retrying)] == [0.01, 0.02, 0.04] * 2
