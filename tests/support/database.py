"""A database of its own for each test, cloned from one migrated template; real PostgreSQL always."""

import asyncio
import itertools
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from pqrun.embedded import EmbeddedServer, start_server
from pqrun.store import PgJobStore

T = TypeVar("T")

FAST_SETTINGS = {"fsync": "off", "full_page_writes": "off", "max_connections": "200", "shared_buffers": "128MB"}
"""For tests that do not kill the server: durability is not what they are about."""


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run in a loop of its own: for fixtures that live longer than a test's loop."""
    return asyncio.run(coroutine)


def with_database(dsn: str, name: str) -> str:
    """The same server, another database."""
    return urlunsplit(urlsplit(dsn)._replace(path=f"/{name}"))


class Databases:
    """One server, one template, and a clone for whoever asks."""

    def __init__(self) -> None:
        self._server: EmbeddedServer | None = None
        self._folder: Path | None = None
        self._numbers = itertools.count(1)
        self._prefix = f"pqrun_test_{os.getpid()}"
        given = os.environ.get("PQRUN_TEST_DSN")
        if given is None:
            self._folder = Path(tempfile.mkdtemp(prefix="pqrun-tests-"))
            self._folder.chmod(0o755)  # as root, the server's user must reach it
            self._server = start_server(self._folder, settings=FAST_SETTINGS)
            given = self._server.dsn
        self.admin_dsn = given
        self._template = f"{self._prefix}_template"

    async def make_template(self) -> None:
        """Create and migrate the template."""
        await self._admin(f'CREATE DATABASE "{self._template}"')
        await PgJobStore(with_database(self.admin_dsn, self._template)).migrate()

    async def clone(self, *, migrated: bool = True) -> str:
        """Make a database and return its DSN."""
        name = f"{self._prefix}_{next(self._numbers)}"
        await self._admin(f'CREATE DATABASE "{name}" TEMPLATE "{self._template if migrated else "template0"}"')
        return with_database(self.admin_dsn, name)

    async def drop(self, dsn: str) -> None:
        """Remove a database, whoever is still connected."""
        await self._admin(f'DROP DATABASE IF EXISTS "{urlsplit(dsn).path[1:]}" WITH (FORCE)')

    async def connections(self, dsn: str) -> list[str]:
        """Who is still connected to a database, by application name and last statement."""
        connection = await asyncpg.connect(self.admin_dsn)
        try:
            rows = await connection.fetch(
                "SELECT application_name || ': ' || left(query, 80) AS who FROM pg_stat_activity WHERE datname = $1",
                urlsplit(dsn).path[1:],
            )
            return [row["who"] for row in rows]
        finally:
            await connection.close()

    async def close(self) -> None:
        """Remove the template and stop a server of our own."""
        await self.drop(with_database(self.admin_dsn, self._template))
        if self._server is not None and self._folder is not None:
            self._server.close()
            shutil.rmtree(self._folder, ignore_errors=True)

    async def _admin(self, statement: str) -> None:
        connection = await asyncpg.connect(self.admin_dsn)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()


@asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """A plain connection, for looking at what is really there."""
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()
