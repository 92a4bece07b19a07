"""Whole databases, for tests: made from a template, dropped whoever is connected."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import unquote, urlsplit, urlunsplit

import asyncpg

from pqrun.store.connecting import open_connection
from pqrun.store.failure import translating
from pqrun.store.statements import quote_identifier

__all__ = ["create_database", "database_of", "drop_database", "list_connections", "with_database"]


def with_database(dsn: str, name: str) -> str:
    """Return the DSN of another database on the same server."""
    return urlunsplit(urlsplit(dsn)._replace(path=f"/{name}"))


def database_of(dsn: str) -> str:
    """Return the name of the database that a DSN leads to."""
    return unquote(urlsplit(dsn).path[1:])


async def create_database(admin_dsn: str, name: str, *, template: str) -> None:
    """Create a database as a copy of another one, which nobody may be connected to. Raises StoreError and its kinds."""
    async with _connected(admin_dsn) as connection:
        await connection.execute(f"CREATE DATABASE {quote_identifier(name)} TEMPLATE {quote_identifier(template)}")


async def drop_database(admin_dsn: str, name: str) -> None:
    """Remove a database, if it is there, whoever is still connected. Raises StoreError and its kinds."""
    async with _connected(admin_dsn) as connection:
        await connection.execute(f"DROP DATABASE IF EXISTS {quote_identifier(name)} WITH (FORCE)")


async def list_connections(admin_dsn: str, name: str) -> list[str]:
    """Tell who is connected to a database, by application name and last statement."""
    query = "SELECT application_name || ': ' || left(query, 80) AS who FROM pg_stat_activity WHERE datname = $1"
    async with _connected(admin_dsn) as connection:
        return [str(row["who"]) for row in await connection.fetch(query, name)]


@asynccontextmanager
async def _connected(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await open_connection(dsn, application_name="pqrun testing", statement_cache_size=0)
    try:
        with translating():
            yield connection
    finally:
        await connection.close(timeout=5.0)
