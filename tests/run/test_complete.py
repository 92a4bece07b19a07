"""ctx.complete inside the handler's own transaction, on a real database: exactly once, or not at all."""

import asyncio
from typing import Any

import asyncpg
import pytest

from pqrun.errors import ClaimLost, CompletionRefused, ResultError
from pqrun.job.state import Status
from pqrun.run import events
from pqrun.run.context import JobContext
from pqrun.store import PgJobStore
from tests.run.working import AtOnce, Crew, stored, wait_finished, working
from tests.store.listening import hearing
from tests.support.waiting import wait_until

Context = JobContext[Any]


@pytest.fixture
async def effects(connection: asyncpg.Connection) -> asyncpg.Connection:
    """A table of the user's, for what handlers do."""
    await connection.execute("CREATE TABLE effects (job_id bigint)")
    return connection


async def count(effects: asyncpg.Connection) -> int:
    return int(await effects.fetchval("SELECT count(*) FROM effects"))


async def do(connection: asyncpg.Connection, ctx: Context) -> None:
    await connection.execute("INSERT INTO effects VALUES ($1)", ctx.job.id)


async def test_the_effects_and_the_completion_commit_together(store: PgJobStore, effects: asyncpg.Connection) -> None:
    async def handler(ctx: Context) -> dict[str, object]:
        async with ctx.store.transaction() as connection:
            await do(connection, ctx)  # type: ignore[arg-type]  # asyncpg's own, seen through our Protocol
            await ctx.complete({"ok": 1}, connection=connection)
            assert (await ctx.store.get(ctx.job.id)).status is Status.RUNNING  # type: ignore[union-attr]  # others see it there
        return {"ignored": True}

    job_id = await store.enqueue("t", {})
    async with working(store, {"t": handler}) as crew:
        await crew.heard.wait_for(events.Done)
    job = await wait_finished(store, job_id)
    assert (job.status, job.result, job.attempts) == (Status.DONE, {"ok": 1}, 1)
    assert await count(effects) == 1
    assert not crew.heard.of(events.ClaimLost)


async def test_a_rolled_back_transaction_is_a_failed_attempt_and_its_effects_are_not_there(
    store: PgJobStore, effects: asyncpg.Connection
) -> None:
    async def handler(ctx: Context) -> None:
        async with ctx.store.transaction() as connection:
            await do(connection, ctx)  # type: ignore[arg-type]  # as above
            await ctx.complete({"ok": 1}, connection=connection)
            if ctx.job.attempts == 1:
                raise ValueError("after the completion")

    job_id = await store.enqueue("t", {})
    async with working(store, {"t": handler}, backoff=AtOnce()) as crew:
        failed = await crew.heard.wait_for(events.Retrying)
        job = await wait_finished(store, job_id)
    assert (job.status, job.attempts) == (Status.DONE, 2)
    assert "its transaction did not commit" in failed.error
    assert job.last_error is not None
    assert "ValueError: after the completion" in job.last_error
    assert await count(effects) == 1


async def test_a_handler_that_swallows_its_rollback_is_a_failed_attempt_too(store: PgJobStore) -> None:
    async def handler(ctx: Context) -> None:
        try:
            async with ctx.store.transaction() as connection:
                await ctx.complete(connection=connection)
                raise ValueError
        except ValueError:
            return

    job_id = await store.enqueue("t", {}, max_attempts=1)
    async with working(store, {"t": handler}):
        job = await wait_finished(store, job_id)
    assert (job.status, job.attempts) == (Status.FAILED, 1)
    assert "did not commit" in (job.last_error or "")


async def test_without_a_connection_it_is_committed_at_once_and_a_later_error_changes_nothing(
    store: PgJobStore,
) -> None:
    async def handler(ctx: Context) -> None:
        await ctx.complete({"ok": 1})
        assert (await ctx.store.get(ctx.job.id)).status is Status.DONE  # type: ignore[union-attr]  # it exists
        raise ValueError

    job_id = await store.enqueue("t", {})
    async with working(store, {"t": handler}) as crew:
        await crew.heard.wait_for(events.Done)
    assert (await wait_finished(store, job_id)).result == {"ok": 1}


@pytest.mark.parametrize("is_within", [False, True], ids=["at once", "in a transaction"])
async def test_a_completion_is_announced_where_somebody_waits_and_only_there(
    store: PgJobStore, dsn: str, is_within: bool
) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def handler(ctx: Context) -> None:
        if ctx.job.payload.get("waits"):
            begun.set()
            await go.wait()
        if not is_within:
            await ctx.complete()
            return
        async with ctx.store.transaction() as connection:
            await ctx.complete(connection=connection)

    async with hearing(dsn, "pqrun:done") as ends, hearing(dsn) as heard, working(store, {"t": handler}) as crew:
        await store.enqueue("t", {})
        await crew.heard.wait_for(events.Done)
        assert await ends.until_now() == []
        awaited = await store.enqueue("t", {"waits": True})
        await asyncio.wait_for(begun.wait(), 30)
        waiting = asyncio.create_task(store.wait_end(awaited, 30))
        await wait_until(lambda: f"await:{awaited}" in heard.messages)
        await wait_until(lambda: _knows(crew, awaited))  # the worker hears it on a connection of its own
        go.set()
        assert (await waiting).status is Status.DONE
        assert await ends.until_now() == [f"{awaited}"]


def _knows(crew: Crew, job_id: int) -> bool:
    working = crew.worker._crew
    return working is not None and working._settler.is_awaited(job_id)


async def test_a_second_complete_is_refused_and_the_first_one_stands(store: PgJobStore) -> None:
    refused: list[CompletionRefused] = []

    async def handler(ctx: Context) -> None:
        async with ctx.store.transaction() as connection:
            await ctx.complete({"n": 1}, connection=connection)
            with pytest.raises(CompletionRefused) as caught:
                await ctx.complete({"n": 2}, connection=connection)
            refused.append(caught.value)

    job_id = await store.enqueue("t", {})
    async with working(store, {"t": handler}) as crew:
        await crew.heard.wait_for(events.Done)
    assert [error.job_id for error in refused] == [job_id]
    assert (await wait_finished(store, job_id)).result == {"n": 1}


async def test_a_result_that_is_refused_leaves_the_transaction_usable(store: PgJobStore) -> None:
    async def handler(ctx: Context) -> None:
        async with ctx.store.transaction() as connection:
            with pytest.raises(ResultError):
                await ctx.complete([1], connection=connection)
            await ctx.complete({"n": 2}, connection=connection)

    job_id = await store.enqueue("t", {})
    async with working(store, {"t": handler}):
        job = await wait_finished(store, job_id)
    assert (job.status, job.result) == (Status.DONE, {"n": 2})


async def test_a_completion_after_a_cancel_request_is_refused_and_the_job_ends_cancelled(
    store: PgJobStore, effects: asyncpg.Connection
) -> None:
    refusals: list[BaseException] = []

    async def handler(ctx: Context) -> None:
        async with ctx.store.transaction() as connection:
            await do(connection, ctx)  # type: ignore[arg-type]  # as above
            await asyncio.shield(asyncio.ensure_future(ctx.store.cancel(ctx.job.id)))
            try:
                await ctx.complete(connection=connection)
            except CompletionRefused as error:
                refusals.append(error)
                raise

    job_id = await store.enqueue("t", {})
    async with working(store, {"t": handler}):
        job = await wait_finished(store, job_id)
    assert (job.status, job.result) == (Status.CANCELLED, None)
    assert await count(effects) == 0


async def test_a_completion_of_a_lost_claim_is_refused_and_nothing_is_written(
    store: PgJobStore, effects: asyncpg.Connection
) -> None:
    raised: list[BaseException] = []

    async def handler(ctx: Context) -> None:
        await effects.execute("UPDATE pqrun.jobs SET claim_id = claim_id + 1000 WHERE id = $1", ctx.job.id)
        async with ctx.store.transaction() as connection:
            await do(connection, ctx)  # type: ignore[arg-type]  # as above
            try:
                await ctx.complete(connection=connection)
            except ClaimLost as error:
                raised.append(error)
                raise

    await store.enqueue("t", {})
    async with working(store, {"t": handler}) as crew:
        await crew.heard.wait_for(events.ClaimLost)
    assert len(raised) == 1
    assert await count(effects) == 0


async def test_a_completion_that_the_shutdown_undid_costs_no_attempt(store: PgJobStore) -> None:
    begun = asyncio.Event()

    async def handler(ctx: Context) -> None:
        async with ctx.store.transaction() as connection:
            await ctx.complete(connection=connection)
            begun.set()
            await asyncio.Event().wait()

    job_id = await store.enqueue("t", {}, max_attempts=1)
    async with working(store, {"t": handler}, shutdown_grace=0.5) as crew:  # and as long for its rollback
        await asyncio.wait_for(begun.wait(), 30)
        await crew.stopped()
    job = await stored(store, job_id)
    assert (job.status, job.attempts, job.last_error) == (Status.READY, 0, None)


async def test_a_completion_that_the_timeout_undid_is_a_failure_that_names_the_timeout(store: PgJobStore) -> None:
    async def handler(ctx: Context) -> None:
        async with ctx.store.transaction() as connection:
            await ctx.complete(connection=connection)
            await asyncio.Event().wait()

    job_id = await store.enqueue("t", {}, max_attempts=1, timeout_seconds=0.2)
    async with working(store, {"t": handler}):
        job = await wait_finished(store, job_id)
    assert (job.status, job.attempts) == (Status.FAILED, 1)
    assert job.last_error is not None
    assert job.last_error.endswith("HandlerTimeout: t ran longer than its timeout of 0.2 s")
    assert "its transaction did not commit" in job.last_error
