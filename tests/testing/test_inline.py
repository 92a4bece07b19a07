"""Inline mode: handlers run where they are deferred, through the same codecs."""

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from pqrun import (
    Abort,
    App,
    CallNext,
    CancelOutcome,
    ConfigurationError,
    DatabaseUnavailableError,
    HandlerSignal,
    JobContext,
    JobFailed,
    JobNotFound,
    NotOpenError,
    PayloadError,
    PqrunError,
    ResultError,
    ResultTimeout,
    RetryAfter,
    RetryRefused,
    Snooze,
    Status,
)
from pqrun.testing import drain, enqueued, inline
from tests.testing.shop import Sent, Shop, Welcome, till

NOWHERE = "postgresql://localhost:1/no_database_is_needed"


@pytest.fixture
def offline() -> Shop:
    """A shop whose database nobody may ask."""
    return Shop(NOWHERE)


async def test_defer_runs_the_handler_and_what_that_defers(offline: Shop) -> None:
    with inline(offline.jobs) as done:
        job = await offline.sign_up.defer(user_id=7)
        assert offline.did == ["sign up 7", "email 7"]
        await job.result()
    assert [(ran.job_type, ran.status) for ran in done.ran] == [("send_email", Status.DONE), ("sign_up", Status.DONE)]
    assert done.payloads(offline.send_email) == [Welcome(user_id=7), Welcome(user_id=1007, template="reminder")]
    assert done.payloads(offline.sign_up) == [{"user_id": 7}]
    assert [job.status for job in done.jobs] == [Status.DONE, Status.DONE, Status.SCHEDULED]


async def test_the_payload_and_the_result_are_checked_and_stored(offline: Shop) -> None:
    with inline(offline.jobs):
        job = await offline.send_email.defer(user_id=7)
        assert await job.result(timeout=5) == Sent(message_id="welcome-7")
        assert (await job.job()).result == {"message_id": "welcome-7"}
        with pytest.raises(PayloadError):
            await offline.send_email.defer(user_id="seven")  # type: ignore[call-overload]  # wrong on purpose


async def test_the_handler_gets_what_was_read_back_and_a_bad_result_raises() -> None:
    jobs = App(dsn=NOWHERE)

    class Box(BaseModel):
        items: list[int]

    given = Box(items=[1])
    got: list[Box] = []

    @jobs.task(payload=Box)
    async def keep(ctx: JobContext, payload: Box) -> dict[str, Any]:
        got.append(payload)
        return {"it": object()}

    with inline(jobs), pytest.raises(ResultError):
        await keep.defer(given)
    assert got == [given]
    assert got[0] is not given


async def test_what_the_handler_raises_defer_raises(offline: Shop) -> None:
    with inline(offline.jobs) as done:
        with pytest.raises(ValueError, match="no such order: -1"):
            await offline.pay.defer(order=-1)
        (ran,) = done.ran
        assert (ran.status, ran.error, ran.attempt) == (Status.FAILED, "ValueError: no such order: -1", 1)
        with pytest.raises(JobFailed, match="no such order"):
            await offline.pay.handle(ran.id).result()


async def test_many_at_once_plain_functions_and_names_work_too(offline: Shop) -> None:
    with inline(offline.jobs) as done:
        calls = [offline.resize.call("a"), offline.resize.call("b", width=5)]
        handles = await offline.jobs.defer_many(calls)
        assert [await handle.result() for handle in handles] == [{"width": 100}, {"width": 5}]
        await offline.jobs.store.enqueue("pay", {"order": 1})
    assert [ran.job_type for ran in done.ran] == ["resize", "resize", "pay"]


async def test_a_plain_function_runs_in_a_thread() -> None:
    jobs = App(dsn=NOWHERE)
    threads = []

    @jobs.task
    def note(ctx: JobContext) -> None:
        threads.append(threading.current_thread())

    with inline(jobs):
        await note.defer()
    assert threads
    assert threading.main_thread() not in threads


async def test_a_job_for_later_is_recorded_and_can_be_cancelled(offline: Shop) -> None:
    later = offline.send_email.options(run_after=datetime.now(UTC) + timedelta(hours=1))
    with inline(offline.jobs) as done:
        job = await later.defer(user_id=1)
        again = await later.defer(user_id=1)
        assert ((again.id, again.created), offline.did) == ((job.id, False), [])
        with pytest.raises(ResultTimeout, match="never ends in inline mode: use drain"):
            await job.result()
        assert await job.cancel() is CancelOutcome.CANCELLED
        assert await job.cancel() is CancelOutcome.ALREADY_FINISHED
        with pytest.raises(RetryRefused, match="runs each job once"):
            await job.retry()
        assert await offline.pay.handle(99).cancel() is CancelOutcome.NOT_FOUND
        with pytest.raises(JobNotFound):
            await offline.pay.handle(99).result()
    assert [one.status for one in done.jobs] == [Status.CANCELLED]


async def test_complete_counts_as_the_result_and_resources_are_opened() -> None:
    jobs = App(dsn=NOWHERE, resources=till)

    @jobs.task
    async def sell(ctx: JobContext[str]) -> dict[str, str]:
        await ctx.complete({"by": ctx.state})
        return {"by": "nobody"}

    with inline(jobs):
        assert await (await sell.defer()).result() == {"by": "the till"}


async def test_a_task_that_defers_itself_is_told(offline: Shop) -> None:
    with (
        inline(offline.jobs),
        pytest.raises(PqrunError, match="50 jobs run inside one another: does echo defer itself"),
    ):
        await offline.echo.defer()


async def test_what_needs_a_database_is_told_or_gets_the_one_that_is_open(shop: Shop) -> None:
    with inline(shop.jobs):
        with pytest.raises(NotOpenError, match="inline mode runs without a database"):
            async with shop.jobs.store.transaction():
                pass
        with pytest.raises(ConfigurationError, match="start no worker inside it"):
            async with shop.jobs.worker(environ={}).lifespan():
                pass
    async with shop.jobs:
        with inline(shop.jobs):
            async with shop.jobs.store.transaction() as connection:
                assert len(await connection.fetch("SELECT 1")) == 1
                await shop.pay.options(connection=connection).defer(order=1)
        assert shop.did == ["pay 1 attempt 1"]


async def test_the_app_is_as_it_was_afterwards(shop: Shop) -> None:
    async with shop.jobs:
        with pytest.raises(KeyError), inline(shop.jobs):
            async with shop.jobs:  # as a lifespan does
                raise KeyError
        await shop.pay.defer(order=1)
        assert shop.did == []
        assert (await drain(shop.jobs)).counts == {"pay": 1}


async def test_no_database_need_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PQRUN_DSN", "DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    jobs = App()

    @jobs.task
    async def add(ctx: JobContext, a: int) -> dict[str, int]:
        return {"a": a}

    with inline(jobs):
        assert await (await add.defer(1)).result() == {"a": 1}


def test_synchronous_defers_run_at_once_as_well_and_in_a_thread_of_their_own() -> None:
    jobs = App(dsn=NOWHERE)
    ran: list[tuple[int, str]] = []

    @jobs.task
    def leaf(ctx: JobContext, number: int) -> None:
        ran.append((number, threading.current_thread().name))
        ctx.complete_sync()

    @jobs.task
    def root(ctx: JobContext, number: int) -> dict[str, int]:
        leaf.defer_sync(number + 1)
        ran.append((number, ""))
        return {"number": number}

    with inline(jobs) as done:
        job = root.defer_sync(1)
        assert job.result_sync() == {"number": 1}
        (other,) = jobs.defer_many_sync([leaf.call(5)])
        assert other.status_sync() is Status.DONE
    assert [number for number, _ in ran] == [2, 1, 5]
    assert threading.current_thread().name not in {name for _, name in ran}
    assert [each.job_type for each in done.ran] == ["leaf", "root", "leaf"]
    with pytest.raises(DatabaseUnavailableError):  # nothing of inline mode is left
        root.defer_sync(1)
    jobs.close_sync()


async def test_middleware_lies_around_inline_runs() -> None:
    jobs = App(dsn=NOWHERE)
    told: list[object] = []

    @jobs.middleware
    async def watch(ctx: JobContext, call_next: CallNext) -> object:
        told.append(ctx.payload)
        value = await call_next(ctx)
        told.append(value)
        return value

    @jobs.task
    async def double(ctx: JobContext, number: int) -> dict[str, int]:
        return {"number": 2 * number}

    @jobs.task(payload=Welcome)
    def plain(ctx: JobContext, payload: Welcome) -> Sent:
        return Sent(message_id=f"{payload.template}-{payload.user_id}")

    with inline(jobs):
        assert await (await double.defer(2)).result() == {"number": 4}
        assert await (await plain.defer(user_id=7)).result() == Sent(message_id="welcome-7")
    assert told == [{"number": 2}, {"number": 4}, Welcome(user_id=7), Sent(message_id="welcome-7")]


async def test_inline_mode_refuses_to_be_looked_at_as_a_database(offline: Shop) -> None:
    with inline(offline.jobs), pytest.raises(ConfigurationError, match="no database to look at"):
        await enqueued(offline.sign_up)


async def test_a_snoozed_job_is_recorded_for_later_and_defer_raises_nothing(offline: Shop) -> None:
    @offline.jobs.task
    async def wait(ctx: JobContext) -> None:
        raise Snooze(timedelta(hours=1))

    with inline(offline.jobs) as done:
        job = await wait.defer()
        row = await job.job()
        with pytest.raises(ResultTimeout):
            await job.result()
    assert (row.status, row.attempts, row.snoozes, row.locked_by) == (Status.SCHEDULED, 0, 1, None)
    assert row.run_after > datetime.now(UTC) + timedelta(minutes=59)
    assert [(ran.status, ran.is_snoozed, ran.is_failure) for ran in done.ran] == [(Status.SCHEDULED, True, False)]


@pytest.mark.parametrize("signal", [Abort("no such user"), RetryAfter(timedelta(hours=1))])
async def test_an_abort_and_a_retry_after_fail_the_job_and_are_raised(offline: Shop, signal: HandlerSignal) -> None:
    @offline.jobs.task
    async def choose(ctx: JobContext) -> None:
        raise signal

    with inline(offline.jobs) as done, pytest.raises(type(signal)):
        await choose.defer()
    assert [job.status for job in done.jobs] == [Status.FAILED]


@pytest.mark.parametrize("signal", [Snooze(timedelta(hours=1)), Abort("x"), RetryAfter(timedelta(hours=1))])
async def test_after_complete_a_signal_changes_nothing(offline: Shop, signal: HandlerSignal) -> None:
    @offline.jobs.task
    async def book(ctx: JobContext) -> dict[str, bool]:
        await ctx.complete({"booked": True})
        raise signal

    with inline(offline.jobs):
        job = await book.defer()
        assert await job.result() == {"booked": True}
