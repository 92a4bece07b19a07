"""Jobs inside of transactions: written, completed and announced with the commit, or not at all."""

import asyncio
from datetime import timedelta

import asyncpg
import pytest

from pqrun import App, CompletionRefused, IdlePollPolicy, JobCancelled, JobContext, JobFailed, Status
from pqrun.run.events import Done, Picked, Retrying
from tests.public.at_work import AtOnce, at_work, count_jobs
from tests.support.database import connected


@pytest.fixture
async def business(connection: asyncpg.Connection) -> None:
    """A table of the application's."""
    await connection.execute("CREATE TABLE business (id serial PRIMARY KEY, note text NOT NULL UNIQUE)")


async def notes(connection: asyncpg.Connection) -> list[str]:
    return [row["note"] for row in await connection.fetch("SELECT note FROM business ORDER BY id")]


async def insert(connection: object, note: str) -> None:
    assert isinstance(connection, asyncpg.Connection | asyncpg.pool.PoolConnectionProxy)
    await connection.execute("INSERT INTO business (note) VALUES ($1)", note)


async def test_a_duplicate_leaves_the_callers_transaction_usable(
    jobs: App[None], business: None, connection: asyncpg.Connection
) -> None:
    @jobs.task(dedupe_key="k")
    async def sweep(ctx: JobContext) -> None: ...

    async with at_work(jobs):
        first = await sweep.options(run_after=timedelta(hours=1)).defer()
        async with jobs.store.transaction() as inside:
            await insert(inside, "before")
            again = await sweep.options(connection=inside).defer()
            await insert(inside, "after")
        assert (again.id, again.created) == (first.id, False)
    assert await notes(connection) == ["before", "after"]
    assert await count_jobs(connection) == 1


@pytest.mark.parametrize("commits", [True, False])
async def test_a_job_of_a_transaction_starts_after_its_commit_or_never(
    jobs: App[None], dsn: str, connection: asyncpg.Connection, commits: bool
) -> None:
    seen: list[str] = []

    @jobs.task
    async def note(ctx: JobContext, name: str) -> None:
        seen.append(name)

    async with at_work(jobs), connected(dsn) as own:
        transaction = own.transaction()
        await transaction.start()
        inside = await note.options(connection=own).defer("inside")
        # Jobs that come and go meanwhile: the worker looks, and sees nothing of the open transaction.
        for _ in range(3):
            await (await note.defer("outside")).result(timeout=30)
        assert seen == ["outside"] * 3
        if commits:
            await transaction.commit()
            await inside.result(timeout=30)
        else:
            await transaction.rollback()
            await (await note.defer("outside")).result(timeout=30)
            assert await jobs.store.get(inside.id) is None
    assert seen == ["outside"] * 3 + (["inside"] if commits else ["outside"])


async def test_a_commit_wakes_an_idle_worker(jobs: App[None], dsn: str) -> None:
    @jobs.task
    async def sweep(ctx: JobContext) -> None: ...

    async with at_work(jobs, idle_policy=IdlePollPolicy(3600, 3600)), connected(dsn) as own:
        await (await sweep.defer()).result(timeout=30)
        async with own.transaction():
            job = await sweep.options(connection=own).defer()
        await job.result(timeout=30)


async def test_an_exception_in_the_stores_transaction_rolls_everything_back(
    jobs: App[None], business: None, connection: asyncpg.Connection
) -> None:
    @jobs.task
    async def sweep(ctx: JobContext) -> None: ...

    async def write_and_raise() -> None:
        async with jobs.store.transaction() as inside:
            await insert(inside, "never")
            await sweep.options(connection=inside).defer()
            raise ZeroDivisionError

    async with jobs:
        with pytest.raises(ZeroDivisionError):
            await write_and_raise()
    assert await notes(connection) == []
    assert await count_jobs(connection) == 0


async def test_a_job_deferred_by_a_handler_runs_too(jobs: App[None]) -> None:
    seen: list[int] = []

    @jobs.task
    async def count_down(ctx: JobContext, n: int) -> None:
        seen.append(n)
        if n:
            await count_down.defer(n - 1)

    async with at_work(jobs) as told:
        await count_down.defer(3)
        await told.wait_for(Done, count=4)
    assert seen == [3, 2, 1, 0]


async def test_what_a_handler_completes_in_its_transaction_is_stored_with_it(
    jobs: App[None], business: None, connection: asyncpg.Connection
) -> None:
    @jobs.task
    async def book(ctx: JobContext, note: str) -> dict[str, str]:
        async with ctx.store.transaction() as inside:
            await insert(inside, note)
            await ctx.complete({"booked": note}, connection=inside)
        return {"booked": "not what is stored"}

    async with at_work(jobs):
        job = await book.defer("one")
        assert await job.result(timeout=30) == {"booked": "one"}
        row = await job.job()
        assert (row.status, row.attempts) == (Status.DONE, 1)
    assert await notes(connection) == ["one"]


async def test_a_completion_that_is_rolled_back_is_a_failed_attempt_and_leaves_nothing(
    jobs: App[None], business: None, connection: asyncpg.Connection
) -> None:
    @jobs.task(backoff=AtOnce())
    async def book(ctx: JobContext) -> dict[str, int]:
        async with ctx.store.transaction() as inside:
            await insert(inside, "one")
            await ctx.complete({"attempt": ctx.job.attempts}, connection=inside)
            if ctx.job.attempts == 1:
                raise ValueError("after the completion")
        return {}

    async with at_work(jobs) as told:
        job = await book.defer()
        assert await job.result(timeout=30) == {"attempt": 2}
        assert "did not commit" in (await told.wait_for(Retrying)).error
        assert (await job.job()).attempts == 2
    assert await notes(connection) == ["one"]


async def test_a_completion_after_a_cancel_request_is_refused(
    jobs: App[None], business: None, connection: asyncpg.Connection
) -> None:
    may_complete = asyncio.Event()
    refused: list[str] = []

    @jobs.task
    async def book(ctx: JobContext) -> None:
        await may_complete.wait()
        async with ctx.store.transaction() as inside:
            await insert(inside, "never")
            try:
                await ctx.complete(connection=inside)
            except CompletionRefused as error:
                refused.append(str(error))
                raise

    async with at_work(jobs) as told:
        job = await book.defer()
        await told.wait_for(Picked)
        # As an operator on another host would: this worker has not heard of it when its handler goes on.
        await connection.execute("UPDATE pqrun.jobs SET cancel_requested_at = now() WHERE id = $1", job.id)
        may_complete.set()
        with pytest.raises(JobCancelled):
            await job.result(timeout=30)
    assert len(refused) == 1
    assert await notes(connection) == []


async def test_a_failing_handler_leaves_nothing_of_its_open_transaction(
    jobs: App[None], business: None, connection: asyncpg.Connection
) -> None:
    @jobs.task(max_attempts=1)
    async def book(ctx: JobContext) -> None:
        async with ctx.store.transaction() as inside:
            await insert(inside, "never")
            raise ValueError("before the commit")

    async with at_work(jobs):
        with pytest.raises(JobFailed, match="before the commit"):
            await (await book.defer()).result(timeout=30)
    assert await notes(connection) == []
