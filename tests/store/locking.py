"""Meeting another transaction on purpose: hold a row, and see that somebody waits for it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from tests.support.database import connected
from tests.support.waiting import wait_until


@asynccontextmanager
async def holding(dsn: str, query: str, *arguments: object) -> AsyncIterator[asyncpg.Connection]:
    """Run a statement in a transaction that stays open for the length of the block, and commit it then."""
    async with connected(dsn) as connection:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(query, *arguments)
        yield connection
        await transaction.commit()


async def wait_until_waiting(connection: asyncpg.Connection, count: int = 1) -> None:
    """Wait until so many sessions of this database wait for a lock; as PostgreSQL reports it, not by time."""
    query = """SELECT count(DISTINCT l.pid) FROM pg_locks l JOIN pg_stat_activity s ON s.pid = l.pid
                WHERE NOT l.granted AND s.datname = current_database()"""

    async def are_waiting() -> bool:
        return bool(await connection.fetchval(query) >= count)

    await wait_until(are_waiting)
