"""Another time, by moving the rows."""

from datetime import timedelta

import asyncpg
import pytest

from pqrun import OptionError, Status
from pqrun.run.events import Done, ScheduleChanged
from pqrun.testing import advance, assert_enqueued, drain
from tests.public.at_work import at_work
from tests.support.rows import make_job
from tests.testing.shop import Shop


async def test_jobs_due_within_it_become_due(shop: Shop) -> None:
    async with shop.jobs:
        await shop.pay.options(run_after=timedelta(hours=1)).defer(order=1)
        await shop.pay.options(run_after=timedelta(hours=3)).defer(order=2)
        assert await advance(shop.jobs, hours=2) == 2
        assert (await drain(shop.jobs)).counts == {"pay": 1}
        await assert_enqueued(shop.pay, order=2, due_before=timedelta(hours=1))
        await advance(shop.jobs, timedelta(minutes=30), minutes=29, seconds=60)
        assert shop.did == ["pay 1 attempt 1"]
        await drain(shop.jobs)
    assert shop.did == ["pay 1 attempt 1", "pay 2 attempt 1"]


async def test_every_time_of_every_job_moves_by_the_same(shop: Shop, connection: asyncpg.Connection) -> None:
    for status in Status:
        await make_job(connection, status=status)
    times = "run_after, locked_at, finished_at, cancel_requested_at, created_at, updated_at, scheduled_for"
    query = f"SELECT id, {times} FROM pqrun.jobs ORDER BY id"
    before = await connection.fetch(query)
    assert await advance(shop.jobs, days=1) == len(Status)
    day = timedelta(days=1)
    moved = [tuple(v if v is None or isinstance(v, int) else v - day for v in row.values()) for row in before]
    assert [tuple(row.values()) for row in await connection.fetch(query)] == moved


async def test_a_running_worker_is_told(shop: Shop) -> None:
    async with at_work(shop.jobs) as told:
        job = await shop.pay.options(run_after=timedelta(days=30)).defer(order=1)
        await advance(shop.jobs, days=31)
        await told.wait_for(Done)
        assert await job.result(timeout=30) == {"order": 1}


@pytest.mark.parametrize("hours", [0, -1, 24 * 36_501])
async def test_a_time_that_is_none_is_told(shop: Shop, hours: float) -> None:
    with pytest.raises(OptionError, match="advance: expected a time over 0"):
        await advance(shop.jobs, hours=hours)


async def test_the_plans_of_schedules_move_and_a_running_worker_fires_them(
    shop: Shop, connection: asyncpg.Connection
) -> None:
    shop.jobs.schedule("yearly", shop.pay.call(order=1), cron="0 0 1 1 *")
    async with at_work(shop.jobs) as told:
        await told.wait_for(ScheduleChanged)
        planned = (await shop.jobs.schedules.get("yearly")).next_at
        assert planned is not None
        await advance(shop.jobs, days=367)
        await told.wait_for(Done)
    assert shop.did == ["pay 1 attempt 1"]
    query = "SELECT last_at, (SELECT scheduled_for FROM pqrun.jobs) FROM pqrun.schedules"
    before = await connection.fetchrow(query)
    assert before is not None
    assert before[0] == before[1]
    await advance(shop.jobs, days=1)
    assert tuple(await connection.fetchrow(query) or ()) == (before[0] - timedelta(days=1),) * 2
