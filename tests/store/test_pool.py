"""A pool that the user hands in: with codecs, records and a search_path of its own, it serves as well and stays the user's."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest

from pqrun.errors import ConfigurationError, DatabaseUnavailableError
from pqrun.job.outcome import Done
from pqrun.job.record import Claim
from pqrun.store import PgJobStore
from pqrun.store.claiming import Claimer, Lane
from pqrun.store.keeping import KeptRegistry
from pqrun.store.settling import settle
from tests.support.database import connected
from tests.support.rows import make_worker
from tests.support.waiting import wait_until


class OwnRecord(asyncpg.Record):
    """What a user may put into a pool."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


async def set_codecs(connection: asyncpg.Connection) -> None:
    for name in ("json", "jsonb"):
        await connection.set_type_codec(name, schema="pg_catalog", encoder=json.dumps, decoder=json.loads)
    await connection.set_type_codec("numeric", schema="pg_catalog", encoder=str, decoder=float)
    await connection.set_type_codec("text", schema="pg_catalog", encoder=str, decoder=str)


@pytest.fixture
async def foreign_pool(dsn: str) -> AsyncIterator[asyncpg.Pool]:
    """A pool with everything that a user may have set."""
    async with connected(dsn) as connection:
        await connection.execute("""
            CREATE SCHEMA elsewhere;
            CREATE TABLE elsewhere.jobs (id integer);
            CREATE TABLE elsewhere.jobs_active (id integer);
        """)
    async with asyncpg.create_pool(
        dsn,
        min_size=0,
        max_size=6,
        init=set_codecs,
        record_class=OwnRecord,
        server_settings={"search_path": "elsewhere", "TimeZone": "Asia/Kolkata", "DateStyle": "German"},
    ) as pool:
        yield pool


async def test_a_pool_with_codecs_records_and_search_path_of_its_own_serves_a_whole_life(
    foreign_pool: asyncpg.Pool, connection: asyncpg.Connection
) -> None:
    due = datetime(2999, 6, 1, 12, tzinfo=UTC)
    async with PgJobStore(pool=foreign_pool) as store:
        assert store.is_pool_handed_in
        await store.check_schema()
        first = await store.enqueue("t", {"a": [1, "ü", None], "n": 1e22}, dedupe_key="k")
        assert await store.enqueue("t", {}, dedupe_key="k") == first
        later = await store.get(await store.enqueue("t", {}, run_after=due))
        assert later is not None
        assert later.run_after == due
        link = store.open_link("claim", kept=False)
        claimer = Claimer(link, worker=await make_worker(connection), worker_id="w")
        (job,) = (await claimer.claim([(Lane("default", 0), 0)], ["t"], [], [], limit=9, look=9, free=9)).jobs
        assert (job.id, job.payload) == (first, {"a": [1, "ü", None], "n": 1e22})
        kept = store.open_link("settle", kept=True)
        await settle(kept, [Done(Claim(first, job.claim_id or 0), 1, '{"r": [1, {"ü": 2}]}')])
        assert (await store.wait_end(first)).result == '{"r": [1, {"ü": 2}]}'
        done = await store.get(first)
        assert done is not None
        assert done.result == {"r": [1, {"ü": 2}]}
        await claimer.promote(None)
        async with store.transaction() as caller:
            await store.enqueue("t", {"b": 1}, connection=caller)
        await kept.close()
    assert not foreign_pool.is_closing()
    async with foreign_pool.acquire() as lent:  # what a worker kept comes back as it was lent
        assert (
            await lent.fetchval("SELECT current_setting('enable_seqscan') || current_setting('statement_timeout')")
            == "on0"
        )


async def test_a_pool_with_room_for_few_connections_serves_no_worker(dsn: str) -> None:
    async with asyncpg.create_pool(dsn, min_size=0, max_size=3) as pool, PgJobStore(pool=pool) as store:
        await store.enqueue("t", {})
        with pytest.raises(ConfigurationError, match="pool= has max_size=3, a worker needs at least 4"):
            store.open_link("settle", kept=True)


async def test_a_pool_that_its_owner_closed_is_told(dsn: str) -> None:
    pool = await asyncpg.create_pool(dsn, min_size=0, max_size=4)
    async with PgJobStore(pool=pool) as store:
        await store.enqueue("t", {})
        await pool.close()
        with pytest.raises(DatabaseUnavailableError):
            await store.enqueue("t", {})
        assert repr(store) == "PgJobStore(a pool, schema='pqrun')"


@asynccontextmanager
async def terminated(pool: asyncpg.Pool) -> AsyncIterator[asyncpg.Pool]:
    """A pool that is not closed in order: that may raise where the server has ended its connections."""
    _ = await pool
    try:
        yield pool
    finally:
        pool.terminate()


async def test_a_lent_connection_that_its_pool_took_back_when_it_was_lost_does_not_stand_and_can_be_disposed_of(
    dsn: str, connection: asyncpg.Connection
) -> None:
    async with terminated(asyncpg.create_pool(dsn, min_size=0, max_size=4)) as pool, PgJobStore(pool=pool) as store:
        opener = store.open_pooled()
        registry = KeptRegistry(opener, store.statements)
        await registry.connect()
        assert registry.is_connected
        await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        await wait_until(lambda: not registry.is_connected)
        await registry.close()
