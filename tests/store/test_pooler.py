"""Poolers are found out before anything could get lost in one, and a direct connection is never taken for one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import asyncpg
import pytest

from pqrun.errors import DatabaseUnavailableError
from pqrun.store import PgJobStore, pooler
from pqrun.store.link import PLANNER_SETTINGS, own_transaction
from pqrun.store.pooler import PoolerFinder, has_statement_cache, learn_types
from pqrun.store.source import DsnOpener, PoolSource, lend_from
from pqrun.store.statements import Statements
from tests.support.database import connected


class Client:
    """A client connection of a pooler that names a real backend in its handshake, and runs its statements where the test says."""

    def __init__(self, named: asyncpg.Connection) -> None:
        self._named = named
        self.backend = named
        self.waits = False

    def get_server_pid(self) -> int:
        return self._named.get_server_pid()

    async def execute(self, query: str, timeout: float | None = None) -> str:
        if self.waits:
            async with asyncio.timeout(timeout):
                await asyncio.Event().wait()
        return await self.backend.execute(query)


class Lender:
    """Lends these, one after the other, and counts."""

    def __init__(self, *clients: object) -> None:
        self._clients = list(clients)
        self.lent = 0

    @asynccontextmanager
    async def __call__(self, only_at_once: bool) -> AsyncIterator[asyncpg.Connection | None]:
        assert only_at_once == (self.lent % 2 == 1)
        client = self._clients[self.lent]
        self.lent += 1
        if isinstance(client, Exception):
            raise client
        yield cast("asyncpg.Connection | None", client)


@pytest.fixture
async def other(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """A second backend."""
    async with connected(dsn) as opened:
        yield opened


# Finding out.


async def test_a_direct_connection_is_not_taken_for_a_pooler(dsn: str) -> None:
    assert await PoolerFinder(lend_from(dsn, "pqrun test")).find() is False


async def test_many_starts_at_the_same_time_are_not_taken_for_poolers(dsn: str) -> None:
    finders = [PoolerFinder(lend_from(dsn, "pqrun test")) for _ in range(30)]
    assert await asyncio.gather(*(finder.find() for finder in finders)) == [False] * 30


async def test_backends_that_come_and_go_change_nothing(dsn: str) -> None:
    async def come_and_go() -> None:
        for _ in range(20):
            async with connected(dsn):
                pass

    busy = [asyncio.create_task(come_and_go()) for _ in range(3)]
    for _ in range(10):
        assert await PoolerFinder(lend_from(dsn, "pqrun test")).find() is False
    await asyncio.gather(*busy)


async def test_a_handshake_that_names_another_process_is_a_pooler(
    connection: asyncpg.Connection, other: asyncpg.Connection
) -> None:
    client = Client(connection)
    client.backend = other
    lender = Lender(client)
    assert await PoolerFinder(lender).find() is True
    assert lender.lent == 1


async def test_a_second_connection_on_the_backend_of_the_first_is_a_pooler(connection: asyncpg.Connection) -> None:
    assert await PoolerFinder(Lender(Client(connection), Client(connection))).find() is True
    assert not connection.is_in_transaction()


async def test_a_second_handshake_that_names_another_process_is_a_pooler(
    dsn: str, connection: asyncpg.Connection, other: asyncpg.Connection
) -> None:
    second = Client(connection)
    second.backend = other
    async with connected(dsn) as third:
        assert await PoolerFinder(Lender(Client(third), second)).find() is True


async def test_a_first_connection_that_changes_its_backend_while_the_second_is_busy_is_a_pooler(
    dsn: str, connection: asyncpg.Connection, other: asyncpg.Connection
) -> None:
    class Moved(Client):
        async def execute(self, query: str, timeout: float | None = None) -> str:
            if other.is_in_transaction():
                self.backend = third
            return await super().execute(query, timeout)

    async with connected(dsn) as third:
        assert await PoolerFinder(Lender(Moved(connection), Client(other))).find() is True
        assert not other.is_in_transaction()


async def test_a_first_connection_that_waits_while_the_second_is_busy_is_in_doubt_a_pooler(
    connection: asyncpg.Connection, other: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Waiting(Client):
        async def execute(self, query: str, timeout: float | None = None) -> str:
            self.waits = other.is_in_transaction()
            return await super().execute(query, timeout)

    monkeypatch.setattr(pooler, "LAST_LOOK_SECONDS", 0.02)
    assert await PoolerFinder(Lender(Waiting(connection), Client(other))).find() is True


async def test_where_there_is_no_second_connection_the_handshake_decides(connection: asyncpg.Connection) -> None:
    assert await PoolerFinder(Lender(Client(connection), None)).find() is False


async def test_it_is_found_out_once_however_many_ask(connection: asyncpg.Connection, other: asyncpg.Connection) -> None:
    lender = Lender(Client(connection), Client(other))
    finder = PoolerFinder(lender)
    assert await asyncio.gather(*(finder.find() for _ in range(5))) == [False] * 5
    assert finder.known is False
    assert lender.lent == 2


async def test_a_look_that_failed_is_not_remembered(connection: asyncpg.Connection, other: asyncpg.Connection) -> None:
    lender = Lender(Client(connection), ConnectionResetError(), Client(connection), Client(other))
    finder = PoolerFinder(lender)
    with pytest.raises(DatabaseUnavailableError):
        await finder.find()
    assert not await finder.find()
    assert lender.lent == 4


async def test_a_look_at_a_database_that_does_not_answer_ends(
    connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(connection)
    client.waits = True
    monkeypatch.setattr(pooler, "LOOK_SECONDS", 0.02)
    with pytest.raises(DatabaseUnavailableError, match="in time"):
        await PoolerFinder(Lender(client)).find()


# In a store.


async def test_a_store_looks_when_it_first_connects(dsn: str) -> None:
    source = PoolSource(dsn, None)
    await source.open(dsn)
    outside = source.outside_finder()
    assert outside is not None
    assert outside.known is None
    async with source.acquire() as lent:
        assert has_statement_cache(lent)
    known = source.outside_finder()
    assert known is not None
    assert known.known is False
    await source.close(5)


async def test_a_database_of_our_own_needs_no_look(dsn: str) -> None:
    source = PoolSource(dsn, None)
    await source.open(dsn, is_direct=True)
    assert await source.find_pooler() is False
    await source.close(5)


async def test_a_handed_in_pool_of_one_connection_is_looked_at_without_waiting_for_a_second(dsn: str) -> None:
    async with asyncpg.create_pool(dsn, min_size=0, max_size=1) as pool, PgJobStore(pool=pool) as store:
        job_id = await store.enqueue("t", {})
        assert await store.get(job_id) is not None


async def test_a_handed_in_pool_whose_other_connections_are_lent_is_looked_at_without_waiting(dsn: str) -> None:
    async with (
        asyncpg.create_pool(dsn, min_size=0, max_size=2) as pool,
        PgJobStore(pool=pool) as store,
        pool.acquire(),
    ):
        await store.enqueue("t", {})


async def test_a_direct_connection_keeps_its_statements(dsn: str) -> None:
    opener = DsnOpener(dsn, "pqrun test")
    opened = await opener.open()
    assert has_statement_cache(opened)
    await opener.dispose(opened, 5)
    known = DsnOpener(dsn, "pqrun test", PoolerFinder(Lender(), known=True))
    opened = await known.open()
    assert not has_statement_cache(opened)
    await known.dispose(opened, 5)


# Nothing stays behind.


async def source_of_jit(connection: asyncpg.Connection) -> str:
    return str(await connection.fetchval("SELECT source FROM pg_settings WHERE name = 'jit'"))


@pytest.mark.parametrize("is_taught", [True, False])
async def test_a_driver_that_was_taught_asks_for_no_type_of_our_statements(
    connection: asyncpg.Connection, is_taught: bool
) -> None:
    if is_taught:
        await learn_types(connection)
    statements = Statements("pqrun")
    for name in statements.names():
        await connection.prepare(statements[name])
    # Asking sets jit for the session, and sets it back.
    assert (await source_of_jit(connection) == "session") is not is_taught


SET_BY_US = "SELECT count(*) FROM pg_settings WHERE source = 'session'"


async def in_own_transaction(connection: asyncpg.Connection, *statements: str) -> None:
    async with own_transaction(connection):
        for statement in statements:
            await connection.execute(statement)


async def test_the_settings_of_our_transaction_end_with_it(connection: asyncpg.Connection) -> None:
    async with own_transaction(connection):
        isolation = 1  # of this transaction, which its BEGIN names
        assert await connection.fetchval(SET_BY_US) == PLANNER_SETTINGS.count("SET ") + isolation
    assert await connection.fetchval(SET_BY_US) == 0


async def test_an_error_rolls_our_transaction_back(connection: asyncpg.Connection, other: asyncpg.Connection) -> None:
    with pytest.raises(asyncpg.PostgresError, match="division by zero"):
        await in_own_transaction(connection, "INSERT INTO pqrun.workers (worker_id) VALUES ('w')", "SELECT 1 / 0")
    assert not connection.is_in_transaction()
    assert not connection.is_closed()
    assert await other.fetchval("SELECT count(*) FROM pqrun.workers") == 0


async def test_a_connection_that_does_not_roll_back_is_given_up(dsn: str) -> None:
    opened = await asyncpg.connect(dsn)
    with pytest.raises(asyncpg.PostgresError):
        await in_own_transaction(opened, "SELECT pg_terminate_backend(pg_backend_pid())")
    assert opened.is_closed()
