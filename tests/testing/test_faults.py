"""Faults on purpose, and what pqrun does about them."""

import asyncio

import asyncpg
import pytest

from pqrun import App, ConfigurationError, DatabaseUnavailableError, JobContext, OptionError, Status
from pqrun.run.events import ClaimLost, Done, LoopFailed, Retrying
from pqrun.testing import drain, drop_connections, fail_attempt, lose_worker
from tests.public.at_work import at_work
from tests.support.waiting import Recorder, wait_until
from tests.testing.shop import Shop


async def test_dropped_connections_are_gone_and_made_again(shop: Shop, connection: asyncpg.Connection) -> None:
    async with at_work(shop.jobs) as told:
        first = await shop.pay.defer(order=1)
        await first.result(timeout=30)
        pids = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        before = {row["pid"] for row in await connection.fetch(pids)}
        assert await drop_connections(shop.jobs) == len(before) > 1
        assert not before & {row["pid"] for row in await connection.fetch(pids)}
        await told.wait_for(LoopFailed)
        assert await connection.fetchval("SELECT 1") == 1  # not one of pqrun's

        async def is_deferred() -> bool:
            try:
                await shop.pay.defer(order=2)
            except DatabaseUnavailableError:
                return False
            return True

        await wait_until(is_deferred)
        await told.wait_for(Done, count=2)


async def test_a_drain_goes_on_when_a_handler_drops_the_connections(dsn: str) -> None:
    jobs = App(dsn=dsn)

    @jobs.task
    async def saw(ctx: JobContext) -> dict[str, bool]:
        return {"fell": await drop_connections(jobs) > 0}

    async with jobs:
        job = await saw.defer()
        report = await drain(jobs)
        assert report.counts == {"saw": 1}
        assert (await job.job()).result == {"fell": True}


async def test_connections_of_a_pool_of_the_users_are_not_ours_to_drop(dsn: str) -> None:
    async with asyncpg.create_pool(dsn, min_size=0, max_size=2) as pool, App(pool=pool) as jobs:
        with pytest.raises(ConfigurationError, match="handed-in pool"):
            await drop_connections(jobs)


async def test_a_lost_workers_jobs_are_recovered_and_it_records_nothing(dsn: str) -> None:
    jobs = App(dsn=dsn)
    started, reasons = asyncio.Event(), []

    @jobs.task(max_attempts=3)
    async def work(ctx: JobContext) -> dict[str, int]:
        if ctx.job.attempts > 1:
            return {"attempt": ctx.job.attempts}
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            reasons.append(ctx.cancel_reason)
        raise AssertionError

    worker = jobs.worker(environ={})
    told = Recorder(worker.events)
    async with jobs, worker.lifespan():
        job = await work.defer()
        await asyncio.wait_for(started.wait(), 30)
        async with lose_worker(worker) as lost:
            assert [(ran.id, ran.status, ran.attempt) for ran in lost] == [(job.id, Status.READY, 1)]
            await told.wait_for(ClaimLost)
            assert reasons == ["claim_lost"]
            row = await job.job()
            assert (row.status, row.lost, row.attempts) == (Status.READY, 1, 1)  # a lost worker claims nothing
            assert (await drain(jobs)).counts == {"work": 1}
            assert await job.result(timeout=0) == {"attempt": 2}
        again = await work.options(max_attempts=1).defer()
        started.clear()
        await asyncio.wait_for(started.wait(), 30)  # it goes on
        async with lose_worker(worker) as lost:
            assert [(ran.id, ran.status) for ran in lost] == [(again.id, Status.FAILED)]


async def test_a_worker_that_does_not_run_cannot_be_lost(shop: Shop) -> None:
    with pytest.raises(ConfigurationError, match="this worker does not run"):
        async with lose_worker(shop.jobs.worker(environ={})):
            pass


async def test_the_nth_attempt_of_one_job_fails_and_the_others_run(shop: Shop) -> None:
    async with shop.jobs:
        for path in ("a", "b"):
            await shop.resize.defer(path=path)
        with (
            fail_attempt(shop.resize, 2, OSError("never")) as second,
            fail_attempt(shop.resize, 1, OSError("full")) as first,
        ):
            report = await drain(shop.jobs, raise_errors=False)
        assert [(ran.id, ran.attempt, ran.status) for ran in report.failed] == [
            (1, 1, Status.SCHEDULED),
            (1, 2, Status.SCHEDULED),
        ]
        assert ([job.id for job in first], [job.id for job in second]) == ([1], [1])
        assert report.failed[0].error == "OSError: full"
        assert sorted(shop.did) == ["resize a attempt 3", "resize b attempt 1"]
        await shop.resize.defer(path="c")
        await drain(shop.jobs)  # nothing is left of it


async def test_an_attempt_fails_in_a_worker_that_runs_already(shop: Shop) -> None:
    async with at_work(shop.jobs) as told:
        with fail_attempt(shop.pay, 1, TimeoutError("the bank")):
            await shop.pay.options(queue="default").defer(order=1)
            failed = await told.wait_for(Retrying)
        assert failed.error == "TimeoutError: the bank"
        await shop.pay.defer(order=2)
        await told.wait_for(Done)
    assert shop.did == ["pay 2 attempt 1"]


@pytest.mark.parametrize("n", [0, -1, True, 1.0])
def test_what_is_no_number_of_an_attempt_is_told(shop: Shop, n: int) -> None:
    with pytest.raises(OptionError, match="from 1"), fail_attempt(shop.pay, n, OSError()):
        pass
