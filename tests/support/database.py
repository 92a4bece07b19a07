"""A database of its own for each test, by what ``pqrun.testing`` gives its users; real PostgreSQL always."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import asyncpg

from pqrun.store.databases import with_database
from pqrun.testing.databases import FAST_SETTINGS, Databases

__all__ = ["FAST_SETTINGS", "Databases", "connected", "run", "with_database"]

T = TypeVar("T")


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run in a loop of its own: for fixtures that live longer than a test's loop."""
    return asyncio.run(coroutine)


@asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """A plain connection, for looking at what is really there."""
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()
