"""Jobs deferred and completed within the transactions of other libraries, as an application does it, with a worker beside it."""

import asyncio
from typing import Any

import asyncpg
import pytest

from pqrun import App, ArgumentsError, IdlePollPolicy, JobContext, JobHandle, OptionError, Status, Task
from pqrun.run.events import Done, Retrying
from tests.public.at_work import AtOnce, at_work, count_jobs
from tests.support.database import connected
from tests.support.doors import ASYNC_KINDS, KINDS, SYNC_KINDS, Door, open_door
from tests.support.waiting import wait_until

each_kind = pytest.mark.parametrize("kind", KINDS)

ASLEEP = IdlePollPolicy(3600, 3600)
"""Only a notification ends such a sleep."""


async def defer(
    task: "Task[[int], Any, dict[str, int], None]", door: Door, jobs: App[None], n: int
) -> JobHandle[dict[str, int]]:
    """Defer by the call that this kind of connection needs."""
    if not door.is_sync:
        return await task.options(connection=door.connection).defer(n)
    (enqueued,) = await door.enqueue(jobs.store, [task.call(n).job])
    return task.handle(enqueued.id)


@each_kind
async def test_the_commit_wakes_an_idle_worker_and_the_handle_gives_the_result(
    kind: str, jobs: App[None], dsn: str, connection: asyncpg.Connection
) -> None:
    @jobs.task
    async def double(ctx: JobContext, n: int) -> dict[str, int]:
        return {"twice": 2 * n}

    async with at_work(jobs, idle_policy=ASLEEP) as told, open_door(kind, dsn) as door:
        await (await double.defer(1)).result(timeout=30)  # the worker has started, and has found nothing since
        await door.begin()
        vanished = await defer(double, door, jobs, 2)
        await door.rollback()
        await door.begin()
        job = await defer(double, door, jobs, 3)
        assert await count_jobs(connection) == 1
        await door.commit()
        assert await job.result(timeout=30) == {"twice": 6}
        assert await jobs.store.get(vanished.id) is None
    assert len(told.of(Done)) == 2


@pytest.mark.parametrize("kind", ASYNC_KINDS)
async def test_a_batch_joins_the_transaction_and_gives_handles_in_order(
    kind: str, jobs: App[None], dsn: str, connection: asyncpg.Connection
) -> None:
    @jobs.task(dedupe_key="{n}")
    async def double(ctx: JobContext, n: int) -> dict[str, int]:
        return {"twice": 2 * n}

    async with at_work(jobs, idle_policy=ASLEEP), open_door(kind, dsn) as door:
        await door.begin()
        assert await jobs.defer_many([], connection=door.connection) == []
        handles = await jobs.defer_many([double.call(n) for n in (3, 1, 2, 1)], connection=door.connection)
        assert await count_jobs(connection) == 0
        await door.commit()
        assert [await job.result(timeout=30) for job in handles] == [{"twice": twice} for twice in (6, 2, 4, 2)]
        assert [job.created for job in handles] == [True, True, True, False]
        with pytest.raises(ArgumentsError, match="carries a connection"):
            await jobs.defer_many([double.options(connection=door.connection).call(1)])


@pytest.mark.parametrize("kind", SYNC_KINDS)
async def test_defer_and_complete_name_the_calls_that_take_a_synchronous_connection(
    kind: str, jobs: App[None], dsn: str
) -> None:
    refused: list[str] = []

    @jobs.task(max_attempts=1)
    async def sweep(ctx: JobContext) -> None:
        async with open_door(kind, dsn) as door:
            for call in (
                sweep.options(connection=door.connection).defer,
                lambda: ctx.complete(connection=door.connection),
            ):
                with pytest.raises(OptionError) as caught:
                    await call()
                refused.append(str(caught.value))

    async with at_work(jobs):
        await (await sweep.defer()).result(timeout=30)
    assert len(refused) == 2
    assert all("defer_sync" in said and "ctx.complete_sync" in said for said in refused)


async def test_complete_sync_on_the_event_loop_is_refused_and_may_be_done_right_after(
    jobs: App[None], dsn: str
) -> None:
    @jobs.task(max_attempts=1)
    async def sweep(ctx: JobContext) -> dict[str, int]:
        async with open_door("psycopg-sync", dsn) as door:
            with pytest.raises(OptionError, match="would block the event loop"):
                ctx.complete_sync({"a": 1}, connection=door.connection)
            await door.call(lambda: ctx.complete_sync({"a": 2}, connection=door.connection))
            await door.commit()
        return {"a": 3}

    async with at_work(jobs):
        assert await (await sweep.defer()).result(timeout=30) == {"a": 2}


@each_kind
async def test_a_completion_that_is_rolled_back_is_a_failed_attempt_that_says_so(
    kind: str, jobs: App[None], dsn: str
) -> None:
    @jobs.task(backoff=AtOnce())
    async def book(ctx: JobContext) -> dict[str, int]:
        result = {"attempt": ctx.job.attempts}
        async with open_door(kind, dsn) as door:
            await door.begin()
            if door.is_sync:
                await door.call(lambda: ctx.complete_sync(result, connection=door.connection))
            else:
                await ctx.complete(result, connection=door.connection)
            await (door.rollback() if ctx.job.attempts == 1 else door.commit())
        return {}

    async with at_work(jobs) as told:
        job = await book.defer()
        assert await job.result(timeout=30) == {"attempt": 2}
        assert "did not commit" in (await told.wait_for(Retrying)).error
        row = await job.job()
    assert (row.status, row.attempts) == (Status.DONE, 2)


async def test_a_plain_function_completes_in_its_own_transaction(jobs: App[None], dsn: str) -> None:
    import psycopg

    @jobs.task(backoff=AtOnce())
    def book(ctx: JobContext) -> dict[str, int]:
        with psycopg.connect(dsn) as connection:
            ctx.complete_sync({"attempt": ctx.job.attempts}, connection=connection)
            if ctx.job.attempts == 1:
                raise ValueError("after the completion")
        return {}

    async with at_work(jobs) as told:
        assert await (await book.defer()).result(timeout=30) == {"attempt": 2}
        assert "did not commit" in (await told.wait_for(Retrying)).error


async def test_a_stop_of_the_whole_task_while_it_defers_leaves_the_session_to_its_owner(
    jobs: App[None], dsn: str, connection: asyncpg.Connection
) -> None:
    """A request that is cancelled in the middle: its session is rolled back by its owner, and nothing is left."""

    @jobs.task(dedupe_key="k")
    async def sweep(ctx: JobContext) -> None: ...

    async def request() -> None:
        async with open_door("AsyncSession-asyncpg", dsn) as door:
            await sweep.options(dedupe_key=None, connection=door.connection).defer()
            await sweep.options(connection=door.connection).defer()  # waits for the other transaction

    async with jobs, connected(dsn) as watching, connection.transaction():
        await sweep.options(connection=connection).defer()
        task = asyncio.create_task(request())
        locked = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        await wait_until(lambda: watching.fetchval(locked))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert await count_jobs(connection) == 1
