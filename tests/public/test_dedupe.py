"""Keys: one active job per type and key, whoever asks and how many at once."""

import asyncio
from typing import Any

import asyncpg
import pytest
from pydantic import BaseModel

from pqrun import App, DedupeKeyError, JobContext, JobFailed, PgJobStore, RetryRefused, Status
from pqrun.run.events import Picked
from tests.public.at_work import at_work, count_jobs


class Sync(BaseModel):
    user_id: int = 0
    name: str | None = None
    rev: int = 1


async def test_a_duplicate_gives_the_active_job_and_says_that_it_made_none(
    jobs: App[None], connection: asyncpg.Connection
) -> None:
    @jobs.task(payload=Sync, dedupe_key="sync:{user_id}")
    async def sync(ctx: JobContext, payload: Sync) -> None: ...

    async with jobs:
        first, again, other = (
            await sync.defer(user_id=1),
            await sync.defer(user_id=1, rev=2),
            await sync.defer(user_id=2),
        )
        assert (first.created, again.created, other.created) == (True, False, True)
        assert again.id == first.id != other.id
        assert (await again.job()).payload["rev"] == 1
        assert (await first.job()).dedupe_key == "sync:1"
    assert await count_jobs(connection) == 2


async def test_duplicates_deferred_at_the_same_moment_make_one_row(dsn: str, connection: asyncpg.Connection) -> None:
    pools = [await asyncpg.create_pool(dsn, min_size=0, max_size=10) for _ in range(2)]
    apps: list[App[None]] = [App(pool=pool) for pool in pools]

    async def sync(ctx: JobContext, user_id: int) -> None: ...

    tasks = [app.task(dedupe_key="sync:{user_id}")(sync) for app in apps]
    async with apps[0], apps[1]:
        for user_id in range(20):
            handles = await asyncio.gather(*(tasks[i % 2].defer(user_id=user_id) for i in range(50)))
            assert len({handle.id for handle in handles}) == 1
            assert sum(handle.created for handle in handles) == 1
            assert await count_jobs(connection) == user_id + 1
            job = await handles[0].job()
            assert (job.status, job.attempts) == (Status.READY, 0)
    for pool in pools:
        await pool.close()


async def test_a_running_job_keeps_its_payload_and_its_key(jobs: App[None], connection: asyncpg.Connection) -> None:
    may_end = asyncio.Event()
    seen: list[int] = []

    @jobs.task(payload=Sync, dedupe_key="report:{user_id}")
    async def report(ctx: JobContext, payload: Sync) -> None:
        await may_end.wait()
        seen.append(payload.rev)

    async with at_work(jobs) as told:
        job = await report.defer(user_id=1, rev=1)
        await told.wait_for(Picked)
        again = [await report.defer(user_id=1, rev=2) for _ in range(3)]
        assert {(handle.id, handle.created) for handle in again} == {(job.id, False)}
        assert await count_jobs(connection) == 1
        may_end.set()
        await job.result(timeout=30)
        assert (await job.job()).attempts == 1
        assert seen == [1]
        after = await report.defer(user_id=1, rev=3)
        assert after.created
        await after.result(timeout=30)
    assert seen == [1, 3]


async def test_a_key_is_free_again_however_the_job_ended(jobs: App[None]) -> None:
    @jobs.task(dedupe_key="k", max_attempts=1)
    async def ends(ctx: JobContext, well: bool) -> None:
        if not well:
            raise ValueError

    async with at_work(jobs):
        done = await ends.defer(well=True)
        await done.result(timeout=30)
        failed = await ends.defer(well=False)
        with pytest.raises(JobFailed):
            await failed.result(timeout=30)
    async with jobs:
        cancelled = await ends.defer(well=True)
        await cancelled.cancel()
        last = await ends.defer(well=True)
        assert last.created
        assert len({done.id, failed.id, cancelled.id, last.id}) == 4


async def test_two_types_do_not_share_a_key(jobs: App[None]) -> None:
    @jobs.task(dedupe_key="k")
    async def one(ctx: JobContext) -> None: ...

    @jobs.task(dedupe_key="k")
    async def other(ctx: JobContext) -> None: ...

    async with jobs:
        assert (await one.defer()).id != (await other.defer()).id


async def test_a_call_may_have_a_key_of_its_own_or_none(jobs: App[None]) -> None:
    @jobs.task(dedupe_key="sync:{user_id}")
    async def sync(ctx: JobContext, user_id: int) -> None: ...

    async with jobs:
        first = await sync.defer(1)
        finished = await sync.options(dedupe_key="sync:1").defer(2)
        literal = await sync.options(dedupe_key="{user_id}").defer(3)
        free = [await sync.options(dedupe_key=None).defer(1) for _ in range(2)]
        assert (finished.id, finished.created) == (first.id, False)
        assert (await literal.job()).dedupe_key == "{user_id}"
        assert len({first.id, *(handle.id for handle in free)}) == 3
        assert (await free[0].job()).dedupe_key is None


async def test_a_function_makes_the_key_from_the_payload(jobs: App[None]) -> None:
    @jobs.task(payload=Sync, dedupe_key=lambda payload: f"w:{payload.user_id % 2}")
    async def sync(ctx: JobContext, payload: Sync) -> None: ...

    async with jobs:
        first, same, other = [await sync.defer(user_id=user_id) for user_id in (1, 3, 2)]
        assert first.id == same.id != other.id


async def test_a_missing_value_makes_no_key_and_is_not_its_own_name(
    jobs: App[None], connection: asyncpg.Connection
) -> None:
    @jobs.task(payload=Sync, dedupe_key="x:{name}")
    async def sync(ctx: JobContext, payload: Sync) -> None: ...

    async with jobs, connection.transaction():
        inside = sync.options(connection=connection)
        with pytest.raises(DedupeKeyError, match="name"):
            await inside.defer()
        assert (await inside.defer(name="None")).created
        assert (await inside.defer(name="{user_id}")).created  # a value is text, never expanded again
        keys = await connection.fetch("SELECT dedupe_key FROM pqrun.jobs ORDER BY id")
        assert [key["dedupe_key"] for key in keys] == ["x:None", "x:{user_id}"]


async def test_values_around_a_separator_are_not_confused(jobs: App[None]) -> None:
    @jobs.task(dedupe_key="{a}:{b}")
    async def pair(ctx: JobContext, a: str, b: str) -> None: ...

    async with jobs:
        assert (await pair.defer("1:2", "3")).id != (await pair.defer("1", "2:3")).id


@pytest.mark.parametrize("key", ["k" * 5000, "ключ" * 200])
async def test_a_long_key_is_the_same_key_for_every_way_to_enqueue(
    store: PgJobStore, connection: asyncpg.Connection, key: str
) -> None:
    jobs: App[None] = App(store=store)

    @jobs.task
    async def sync(ctx: JobContext) -> None: ...

    job = await sync.options(dedupe_key=key).defer()
    assert await store.enqueue("sync", {}, dedupe_key=key) == job.id
    (row,) = await connection.fetch("SELECT * FROM pqrun.enqueue('sync', '{}', dedupe_key => $1)", key)
    assert tuple(row) == (job.id, False)
    assert await store.enqueue("sync", {}, dedupe_key=key + "!") != job.id


async def test_retry_by_hand_is_refused_while_another_job_has_the_key(jobs: App[None]) -> None:
    @jobs.task(dedupe_key="k", max_attempts=1)
    async def fail(ctx: JobContext) -> None:
        raise ValueError

    async with at_work(jobs):
        failed = await fail.defer()
        with pytest.raises(JobFailed):
            await failed.result(timeout=30)
    async with jobs:
        active = await fail.defer()
        before: list[Any] = [await failed.job(), await active.job()]
        with pytest.raises(RetryRefused, match=str(active.id)) as caught:
            await failed.retry()
        assert caught.value.conflicting_id == active.id
        assert [await failed.job(), await active.job()] == before
