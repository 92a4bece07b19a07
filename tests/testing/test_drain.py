"""``drain`` runs everything due with a real worker, and says what happened."""

import asyncio
import threading
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from pqrun import (
    Abort,
    App,
    HandlerSignal,
    JobContext,
    OptionError,
    RetryAfter,
    Snooze,
    Status,
    WrongLoopError,
)
from pqrun.testing import DrainFailed, DrainStopped, advance, advance_sync, drain, drain_sync, fail_attempt
from tests.public.at_work import at_work
from tests.support.rows import make_job, make_worker
from tests.testing.shop import Shop, till


async def test_it_runs_what_is_due_and_what_that_defers_and_leaves_the_rest(shop: Shop) -> None:
    async with shop.jobs:
        await shop.sign_up.defer(user_id=7)
        report = await drain(shop.jobs)
        assert shop.did == ["sign up 7", "email 7"]
        assert report.counts == {"sign_up": 1, "send_email": 1}
        assert [(ran.status, ran.attempt, ran.error) for ran in report.ran] == [(Status.DONE, 1, None)] * 2
        (later,) = report.scheduled
        assert (later.job_type, later.status, later.attempts) == ("send_email", Status.SCHEDULED, 0)
        assert 86_000 < later.in_seconds <= 86_400
        assert (await shop.send_email.handle(later.id).job()).run_after == later.run_after
        assert report.unserved == ()


async def test_what_it_runs_is_claimed_and_settled_in_the_database(shop: Shop, connection: asyncpg.Connection) -> None:
    async with shop.jobs:
        job = await shop.send_email.defer(user_id=7)
        await drain(shop.jobs)
        assert (await job.result(timeout=0)).message_id == "welcome-7"
    row = await connection.fetchrow("SELECT status, attempts, locked_by FROM pqrun.jobs")
    assert row is not None
    assert (row["status"], row["attempts"], row["locked_by"] is not None) == ("DONE", 1, True)


async def test_the_app_need_not_be_open_and_is_not_after_it(shop: Shop, connection: asyncpg.Connection) -> None:
    await connection.execute("""SELECT pqrun.enqueue('send_email', '{"user_id": 7}')""")
    assert (await drain(shop.jobs)).counts == {"send_email": 1}
    assert not shop.jobs.store.is_open


async def test_with_nothing_due_nothing_starts(shop: Shop, connection: asyncpg.Connection) -> None:
    report = await drain(shop.jobs)
    assert (report.ran, str(report)) == ((), "nothing ran")
    assert await connection.fetchval("SELECT count(*) FROM pqrun.workers") == 0


async def test_it_keeps_the_order_of_priorities_and_runs_one_at_a_time(shop: Shop) -> None:
    async with shop.jobs:
        for order, priority in ((1, 0), (2, 5), (3, 0)):
            await shop.pay.options(priority=priority).defer(order=order)
        await drain(shop.jobs)
    assert shop.did == ["pay 2 attempt 1", "pay 1 attempt 1", "pay 3 attempt 1"]


async def test_a_failed_attempt_raises_from_what_the_handler_raised(shop: Shop) -> None:
    async with shop.jobs:
        await shop.pay.defer(order=-1)
        await shop.pay.defer(order=1)
        with pytest.raises(DrainFailed, match="1 of 2 attempts failed") as caught:
            await drain(shop.jobs)
    assert "pay id=1 attempt 1: SCHEDULED, to be tried again: ValueError: no such order: -1" in str(caught.value)
    assert isinstance(caught.value.__cause__, ValueError)
    assert isinstance(caught.value, AssertionError)
    assert [ran.id for ran in caught.value.report.failed] == [1]
    assert shop.did == ["pay -1 attempt 1", "pay 1 attempt 1"]


async def test_failures_can_be_looked_at_instead_and_run_again_when_their_time_has_come(shop: Shop) -> None:
    async with shop.jobs:
        await shop.pay.defer(order=-1)
        first = await drain(shop.jobs, raise_errors=False)
        assert [(ran.status, ran.attempt) for ran in first.failed] == [(Status.SCHEDULED, 1)]
        assert [(one.id, one.attempts) for one in first.scheduled] == [(1, 1)]
        assert (await drain(shop.jobs)).ran == ()
        await advance(shop.jobs, hours=6)
        second = await drain(shop.jobs, raise_errors=False)
        assert [(ran.status, ran.attempt) for ran in second.ran] == [(Status.SCHEDULED, 2)]
        await advance(shop.jobs, hours=6)
        last = await drain(shop.jobs, raise_errors=False)
        assert [(ran.status, ran.attempt) for ran in last.ran] == [(Status.FAILED, 3)]
        assert last.scheduled == ()
        with pytest.raises(DrainFailed):
            last.raise_for_failures()


async def test_a_plain_function_runs_in_its_thread_and_its_exception_is_kept(dsn: str) -> None:
    jobs = App(dsn=dsn)
    threads = []

    @jobs.task(max_attempts=1)
    def divide(ctx: JobContext, by: int) -> dict[str, float]:
        threads.append(threading.current_thread())
        return {"it": 1 / by}

    async with jobs:
        await divide.defer(by=2)
        await divide.defer(by=0)
        report = await drain(jobs, raise_errors=False)
    assert threading.main_thread() not in threads
    (failed,) = report.failed
    assert (failed.status, type(failed.exception)) == (Status.FAILED, ZeroDivisionError)


async def test_attempts_that_are_due_at_once_run_in_one_drain(shop: Shop, dsn: str) -> None:
    async with shop.jobs:
        await shop.resize.defer(path="a")
        with fail_attempt(shop.resize, 1, OSError("no disk")):
            report = await drain(shop.jobs, raise_errors=False)
    assert [(ran.attempt, ran.status) for ran in report.ran] == [(1, Status.SCHEDULED), (2, Status.DONE)]


async def test_a_task_that_defers_itself_without_end_is_told(shop: Shop) -> None:
    async with shop.jobs:
        await shop.echo.defer()
        with pytest.raises(
            DrainStopped, match="more than max_jobs=5 attempts started: does a task defer itself"
        ) as caught:
            await drain(shop.jobs, max_jobs=5)
        assert caught.value.report.counts["echo"] >= 5
        assert "echo id=" in str(caught.value)


async def test_a_handler_that_does_not_end_is_told_and_its_job_given_back(dsn: str) -> None:
    jobs = App(dsn=dsn)

    @jobs.task
    async def wait(ctx: JobContext) -> None:
        await asyncio.Event().wait()

    async with jobs:
        job = await wait.defer()
        with pytest.raises(DrainStopped, match=r"still due or running after timeout=0\.3 s") as caught:
            await drain(jobs, timeout=timedelta(seconds=0.3))
        (ran,) = caught.value.report.ran
        assert (ran.status, ran.error) == (Status.READY, "stopped, and given back")
        assert ((await job.job()).status, (await job.job()).attempts) == (Status.READY, 0)


async def test_all_queues_are_served_unless_some_are_named(shop: Shop) -> None:
    async with shop.jobs:
        await shop.pay.options(queue="slow").defer(order=1)
        await shop.pay.options(queue="quick").defer(order=2)
        report = await drain(shop.jobs, queues=["quick"])
        assert ([ran.id for ran in report.ran], [one.id for one in report.unserved]) == ([2], [1])
        assert [ran.id for ran in (await drain(shop.jobs)).ran] == [1]


async def test_jobs_of_other_programs_are_left_and_told(shop: Shop, connection: asyncpg.Connection) -> None:
    await connection.execute("SELECT pqrun.enqueue('of_another_program', '{}')")
    async with shop.jobs:
        await shop.pay.defer(order=1)
        report = await drain(shop.jobs)
    assert report.counts == {"pay": 1}
    assert [(one.job_type, one.status) for one in report.unserved] == [("of_another_program", Status.READY)]


async def test_jobs_of_a_dead_worker_are_recovered_first(shop: Shop, connection: asyncpg.Connection) -> None:
    dead = await make_worker(connection, "dead", dead=True)
    held: dict[str, Any] = {"status": Status.RUNNING, "job_type": "pay", "worker": dead, "payload": '{"order": 1}'}
    last = await make_job(connection, **held, max_attempts=1)
    first = await make_job(connection, **held, max_attempts=3)
    report = await drain(shop.jobs, raise_errors=False)
    assert {(ran.id, ran.status, ran.attempt) for ran in report.ran} == {
        (last, Status.FAILED, 1),
        (first, Status.DONE, 2),
    }
    assert report.failed[0].error == "lost its worker once (last: dead) at attempt 1 of 1"


async def test_a_worker_of_the_application_may_run_beside_it(shop: Shop) -> None:
    async with at_work(shop.jobs):
        handles = await shop.jobs.defer_many([shop.pay.call(n) for n in range(20)])
        await drain(shop.jobs)
        assert [await handle.status() for handle in handles] == [Status.DONE] * 20


@pytest.mark.parametrize("queues", ["mail", []])
async def test_what_is_no_list_of_queues_is_told(shop: Shop, queues: list[str]) -> None:
    with pytest.raises(OptionError, match="queues must be a list"):
        await drain(shop.jobs, queues=queues)


async def test_resources_are_opened_for_it(dsn: str) -> None:
    jobs = App(dsn=dsn, resources=till)
    states = []

    @jobs.task
    async def sell(ctx: JobContext[str]) -> None:
        states.append(ctx.state)

    async with jobs:
        await sell.defer()
        await drain(jobs)
    assert states == ["the till"]


def test_a_sync_test_drains_beside_an_event_loop_that_has_the_app_open(dsn_for_loops: str) -> None:
    shop = Shop(dsn_for_loops)
    ready, done = threading.Event(), threading.Event()

    async def serve() -> None:
        async with shop.jobs:
            await shop.sign_up.defer(user_id=7)
            ready.set()
            await asyncio.to_thread(done.wait, 30)
            await shop.pay.defer(order=1)  # its own opening is untouched

    server = threading.Thread(target=asyncio.run, args=(serve(),))
    server.start()
    try:
        assert ready.wait(30)
        assert drain_sync(shop.jobs).counts == {"sign_up": 1, "send_email": 1}
        assert advance_sync(shop.jobs, days=2) == 3
        assert drain_sync(shop.jobs).counts == {"send_email": 1}
    finally:
        done.set()
        server.join(30)
    assert drain_sync(shop.jobs).counts == {"pay": 1}


async def test_the_sync_form_inside_a_loop_says_what_to_await(shop: Shop) -> None:
    with pytest.raises(WrongLoopError, match=r"write 'await drain\(\.\.\.\)'"):
        drain_sync(shop.jobs)


async def test_it_neither_stores_nor_fires_schedules(shop: Shop, connection: asyncpg.Connection) -> None:
    @shop.jobs.task
    async def count_down(ctx: JobContext, left: int) -> None:
        if left:
            await count_down.defer(left - 1)

    shop.jobs.schedule("declared", shop.pay.call(order=1), cron="* * * * *")
    async with shop.jobs:
        await shop.jobs.schedules.add("due", shop.pay.call(order=2), every=timedelta(hours=1))
        await advance(shop.jobs, hours=2)
        await count_down.defer(100)  # longer than a worker takes to look for schedules
        assert (await drain(shop.jobs)).counts == {"count_down": 101}
        assert [one.name for one in await shop.jobs.schedules.list()] == ["due"]
        assert (await shop.jobs.schedules.get("due")).last_job_id is None
        await shop.jobs.schedules.run("due")
        assert (await drain(shop.jobs)).counts == {"pay": 1}


async def test_a_snooze_is_no_failure_and_its_job_is_left_for_later(shop: Shop) -> None:
    @shop.jobs.task
    async def wait(ctx: JobContext) -> None:
        if ctx.job.snoozes < 2:
            raise Snooze(timedelta(hours=1))

    async with shop.jobs:
        job = await wait.defer()
        report = await drain(shop.jobs)
        (ran,) = report.ran
        assert (ran.status, ran.is_snoozed, ran.is_failure, ran.error, ran.exception) == (
            Status.SCHEDULED,
            True,
            False,
            None,
            None,
        )
        assert str(ran) == f"wait id={job.id} attempt 1: SCHEDULED, snoozed"
        assert [(one.id, one.attempts) for one in report.scheduled] == [(job.id, 0)]
        await advance(shop.jobs, hours=1)
        await drain(shop.jobs)
        await advance(shop.jobs, hours=1)
        assert [one.status for one in (await drain(shop.jobs)).done] == [Status.DONE]


async def test_a_job_that_snoozes_for_no_time_is_run_until_it_ends(shop: Shop) -> None:
    @shop.jobs.task
    async def wait(ctx: JobContext) -> None:
        if ctx.job.snoozes < 3:
            raise Snooze(timedelta(0))

    async with shop.jobs:
        await wait.defer()
        report = await drain(shop.jobs)
    assert [ran.is_snoozed for ran in report.ran] == [True, True, True, False]


@pytest.mark.parametrize("signal", [Abort("no such user"), RetryAfter(timedelta(hours=1))])
async def test_an_abort_and_a_retry_after_are_failures(shop: Shop, signal: HandlerSignal) -> None:
    @shop.jobs.task
    async def choose(ctx: JobContext) -> None:
        raise signal

    async with shop.jobs:
        await choose.defer()
        with pytest.raises(DrainFailed, match=type(signal).__name__) as failed:
            await drain(shop.jobs)
    assert failed.value.__cause__ is signal


async def test_a_job_that_needs_newer_code_does_not_hold_up_the_drain(
    shop: Shop, connection: asyncpg.Connection
) -> None:
    await make_job(connection, job_type="pay", payload='{"order": 1}', payload_version=9)
    report = await drain(shop.jobs, timeout=30)
    assert report.ran == ()
    assert [one.job_type for one in report.scheduled] == ["pay"]
