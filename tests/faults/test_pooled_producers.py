"""Producers behind the real PgBouncer in transaction mode: single defers and masses arrive, and nothing stays behind in its sessions."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from pqrun.errors import ConfigurationError, DatabaseUnavailableError, StoreError
from pqrun.job.record import Enqueued, NewJob
from pqrun.store import PgJobStore, enqueueing
from tests.store.chains import said_by
from tests.store.listening import hearing
from tests.support.database import connected
from tests.support.pgbouncer import PgBouncer, pgbouncer
from tests.support.waiting import wait_until

MANY = enqueueing.COPY_LEAST


@pytest.fixture
async def bouncer(dsn: str) -> AsyncIterator[PgBouncer]:
    """A pooler with two server connections to this test's database."""
    async with pgbouncer(dsn) as started:
        yield started


@pytest.fixture(params=["dsn", "pool"])
async def producer(request: pytest.FixtureRequest, bouncer: PgBouncer) -> AsyncIterator[PgJobStore]:
    """A store with connections of its own, and one on a handed-in pool, both through the pooler."""
    if request.param == "dsn":
        async with PgJobStore(bouncer.dsn) as opened:
            yield opened
        return
    async with (
        asyncpg.create_pool(bouncer.dsn, min_size=0, max_size=6, statement_cache_size=0) as pool,
        PgJobStore(pool=pool) as opened,
    ):
        yield opened


def jobs(count: int = MANY) -> list[NewJob]:
    return [NewJob(job_type="t", payload=f'{{"n": {n}}}') for n in range(count)]


async def together(store: PgJobStore, some: list[NewJob]) -> list[Any]:
    """Defer each by itself, all at once."""
    return await asyncio.gather(*(store.enqueue_jobs([job]) for job in some), return_exceptions=True)


async def test_masses_go_by_copy_and_are_announced_with_the_commit(
    dsn: str, bouncer: PgBouncer, producer: PgJobStore, connection: asyncpg.Connection
) -> None:
    async with hearing(dsn) as heard:
        written = await producer.enqueue_jobs(jobs())
        async with producer.transaction() as caller:
            written += await producer.enqueue_jobs(jobs(), connection=caller)
            assert len(await heard.until_now()) == 1
        assert await heard.until_now() == ["ready:0:default"] * 2
    rows = await connection.fetch("SELECT id, (payload->>'n')::int AS n FROM pqrun.jobs ORDER BY place")
    assert [row["id"] for row in rows] == [one.id for one in written]
    assert [row["n"] for row in rows] == [*range(MANY), *range(MANY)]
    assert await bouncer.left_in_sessions() == []


async def test_a_refused_mass_writes_nothing_and_shows_nothing(
    bouncer: PgBouncer, producer: PgJobStore, connection: asyncpg.Connection
) -> None:
    bad = NewJob(job_type="", payload='{"text": "secret"}')  # refused by a CHECK
    with pytest.raises(StoreError) as caught:
        await producer.enqueue_jobs([*jobs(), bad, *jobs()])
    assert "secret" not in said_by(caught.value)
    assert await connection.fetchval("SELECT count(*) FROM pqrun.jobs") == 0
    assert len(await producer.enqueue_jobs(jobs())) == MANY
    assert await bouncer.left_in_sessions() == []


async def test_single_defers_travel_together_and_each_hears_of_its_own(
    bouncer: PgBouncer, producer: PgJobStore, connection: asyncpg.Connection
) -> None:
    (first,) = await producer.enqueue_jobs([NewJob(job_type="t", payload="{}", dedupe_key="k")])
    keyed = NewJob(job_type="t", payload="{}", dedupe_key="k")
    bad = NewJob(job_type="", payload='{"text": "secret"}')
    heard = await together(producer, [*jobs(5), keyed, *jobs(5)])
    assert heard[5] == [Enqueued(first.id, created=False)]
    ids = [one[0].id for place, one in enumerate(heard) if place != 5]
    rows = await connection.fetch("SELECT id, xmin::text FROM pqrun.jobs WHERE payload ? 'n' ORDER BY id")
    assert [row["id"] for row in rows] == ids
    assert len({row["xmin"] for row in rows}) == 1
    refused = await together(producer, [*jobs(3), bad])
    assert [type(one) for one in refused] == [list, list, list, StoreError]
    assert "secret" not in said_by(refused[-1])
    assert await bouncer.left_in_sessions() == []


async def test_a_key_in_somebody_elses_open_transaction_holds_up_its_own_caller_only(
    dsn: str, bouncer: PgBouncer, producer: PgJobStore, connection: asyncpg.Connection
) -> None:
    async with connected(dsn) as other:
        transaction = other.transaction()
        await transaction.start()
        theirs = await producer.enqueue("t", {}, dedupe_key="k", connection=other)
        keyed = asyncio.create_task(producer.enqueue_jobs([NewJob(job_type="t", payload="{}", dedupe_key="k")]))
        neighbours = await together(producer, jobs(5))
        assert [type(one) for one in neighbours] == [list] * 5
        assert not keyed.done()
        await transaction.commit()
        assert await keyed == [Enqueued(theirs, created=False)]
    assert await connection.fetchval("SELECT count(*) FROM pqrun.jobs") == 6
    assert await bouncer.left_in_sessions() == []


async def test_a_pool_that_cannot_work_behind_the_pooler_is_told_to_each_of_those_who_defer_at_once(
    bouncer: PgBouncer,
) -> None:
    async with asyncpg.create_pool(bouncer.dsn, min_size=0, max_size=6) as pool, PgJobStore(pool=pool) as store:
        for some in (jobs(1), jobs(3)):
            heard = await together(store, some)
            assert {type(one) for one in heard} == {ConfigurationError}
            assert all("statement_cache_size=0" in str(one) for one in heard)


async def test_a_pooler_that_comes_back_is_deferred_through_again(dsn: str, connection: asyncpg.Connection) -> None:
    async with contextlib.AsyncExitStack() as stack:
        bouncer = await stack.enter_async_context(pgbouncer(dsn))
        store = await stack.enter_async_context(PgJobStore(bouncer.dsn))
        await together(store, jobs(5))
        await bouncer.stop()
        heard = await together(store, jobs(5))
        assert {type(one) for one in heard} == {DatabaseUnavailableError}
        await bouncer.start()

        async def is_written() -> bool:
            return [type(one) for one in await together(store, jobs(1))] == [list]

        await wait_until(is_written)
    assert await connection.fetchval("SELECT count(*) FROM pqrun.jobs") == 6
