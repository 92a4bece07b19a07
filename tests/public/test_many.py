"""Many jobs in one transaction."""

import asyncio
from typing import Any

import asyncpg
import pytest
from pydantic import BaseModel

from pqrun import App, ArgumentsError, JobContext, PayloadError, Status
from tests.public.at_work import at_work, count_jobs


class Welcome(BaseModel):
    user_id: int


async def test_a_mix_of_tasks_runs_and_its_handles_are_in_order(jobs: App[None]) -> None:
    @jobs.task(payload=Welcome)
    async def welcome(ctx: JobContext, payload: Welcome) -> dict[str, int]:
        return {"welcome": payload.user_id}

    @jobs.task
    async def add(ctx: JobContext, a: int, b: int) -> dict[str, int]:
        return {"sum": a + b}

    async with at_work(jobs):
        calls = [welcome.call(user_id=1), add.call(1, b=2), welcome.call(Welcome(user_id=2)), add.call(3, 4)]
        handles = await jobs.defer_many(calls)
        results = [await handle.result(timeout=30) for handle in handles]
    assert results == [{"welcome": 1}, {"sum": 3}, {"welcome": 2}, {"sum": 7}]


async def test_each_call_keeps_its_own_options(jobs: App[None]) -> None:
    @jobs.task(queue="net")
    async def ping(ctx: JobContext) -> None: ...

    async with jobs:
        plain, urgent = await jobs.defer_many([ping.call(), ping.options(priority=9, queue="fast", timeout=3).call()])
        assert ((await plain.job()).queue, (await plain.job()).priority) == ("net", 0)
        job = await urgent.job()
        assert (job.queue, job.priority, job.timeout_seconds) == ("fast", 9, 3)


async def test_duplicates_inside_a_batch_share_one_job(jobs: App[None], connection: asyncpg.Connection) -> None:
    @jobs.task(dedupe_key="sync:{user_id}")
    async def sync(ctx: JobContext, user_id: int) -> None: ...

    async with jobs:
        before = await sync.defer(7)
        handles = await jobs.defer_many([sync.call(user_id) for user_id in (2, 1, 2, 7, 1, 2)])
        two, one, two_again, seven, one_again, two_third = handles
        assert two.id == two_again.id == two_third.id
        assert one.id == one_again.id
        assert seven.id == before.id
        assert [handle.created for handle in handles] == [True, True, False, False, False, False]
        assert (await one.job()).payload == {"user_id": 1}
    assert await count_jobs(connection) == 3


async def test_nothing_is_written_when_one_call_is_wrong(jobs: App[None], connection: asyncpg.Connection) -> None:
    @jobs.task
    async def sync(ctx: JobContext, user_id: int) -> None: ...

    unchecked: Any = sync
    calls: list[Any] = [sync.call(1), "no call"]
    async with jobs:
        with pytest.raises(ArgumentsError, match="item 1"):
            await jobs.defer_many(calls)
        with pytest.raises(ArgumentsError, match=r"item 1.*connection"):
            await jobs.defer_many([sync.call(1), sync.options(connection=connection).call(2)])
        with pytest.raises(PayloadError, match="user_id"):
            await jobs.defer_many([sync.call(1), unchecked.call("x")])
        assert await jobs.defer_many([]) == []
    assert await count_jobs(connection) == 0


async def test_a_batch_joins_the_transaction_it_is_given(jobs: App[None], connection: asyncpg.Connection) -> None:
    @jobs.task
    async def sync(ctx: JobContext, user_id: int) -> None: ...

    calls = [sync.call(user_id) for user_id in range(3)]
    async with jobs:
        transaction = connection.transaction()
        await transaction.start()
        handles = await jobs.defer_many(calls, connection=connection)
        assert await jobs.store.get(handles[0].id) is None
        await transaction.rollback()
        assert await count_jobs(connection) == 0
        async with connection.transaction():
            handles = await jobs.defer_many(calls, connection=connection)
        assert [await handle.status() for handle in handles] == [Status.READY] * 3


async def test_batches_in_opposite_orders_do_not_deadlock(jobs: App[None], connection: asyncpg.Connection) -> None:
    @jobs.task(dedupe_key="sync:{user_id}")
    async def sync(ctx: JobContext, user_id: int) -> None: ...

    calls = [sync.call(user_id) for user_id in range(100)]
    async with jobs:
        batches = await asyncio.gather(*(jobs.defer_many(calls[::step]) for step in (1, -1) * 5))
    assert await count_jobs(connection) == 100
    assert {tuple(handle.id for handle in batch[::step]) for batch, step in zip(batches, (1, -1) * 5, strict=True)} == {
        tuple(handle.id for handle in batches[0])
    }


async def test_a_thousand_jobs_run_once_each(jobs: App[None], connection: asyncpg.Connection) -> None:
    seen: list[int] = []

    @jobs.task
    async def count(ctx: JobContext, n: int) -> None:
        seen.append(n)

    async with at_work(jobs, concurrency=10):
        handles = await jobs.defer_many(count.call(n) for n in range(1000))
        await asyncio.gather(*(handle.result(timeout=60) for handle in handles))
    assert sorted(seen) == list(range(1000))
    ends = await connection.fetch("SELECT status, attempts, count(*) FROM pqrun.jobs GROUP BY status, attempts")
    assert [tuple(end) for end in ends] == [("DONE", 1, 1000)]
