"""Where a store's connections come from: a DSN of its own (a pool and kept connections), or a pool that was handed in."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias, cast

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from pqrun.errors import ConfigurationError, NotOpenError, WrongLoopError
from pqrun.store.connecting import CONNECT_ERRORS, CONNECT_SECONDS, explain, open_connection, open_pool
from pqrun.store.ports import Connection, Pool

__all__ = ["DirectDsn", "DsnOpener", "FactoryOpener", "PoolOpener", "PoolSource", "terminate_in_time"]

DirectDsn: TypeAlias = str | Callable[[], Awaitable[Connection]]
"""A way to a direct connection beside a pool or a pooler: a DSN, or an async function that returns a connection."""

POOL_LEAST_SIZE = 4
"""A handed-in pool must leave room for handlers beside the two connections that a worker keeps."""


async def terminate_in_time(connection: asyncpg.Connection, timeout: float) -> None:
    """Close a connection, the hard way where the server does not answer in time."""
    try:
        await connection.close(timeout=timeout)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
        connection.terminate()


class DsnOpener:
    """Kept connections of our own."""

    def __init__(self, dsn: str, application_name: str) -> None:
        self._dsn = dsn
        self._name = application_name

    async def open(self) -> asyncpg.Connection:
        """Open a connection."""
        return await open_connection(self._dsn, application_name=self._name)

    async def dispose(self, connection: asyncpg.Connection, timeout: float) -> None:
        """Close it."""
        await terminate_in_time(connection, timeout)


class FactoryOpener:
    """Kept connections from a function of the user's."""

    def __init__(self, factory: Callable[[], Awaitable[Connection]]) -> None:
        self._factory = factory

    async def open(self) -> asyncpg.Connection:
        """Call the function."""
        connection = await asyncio.wait_for(self._factory(), CONNECT_SECONDS)
        if not isinstance(connection, asyncpg.Connection):
            raise ConfigurationError(
                f"direct_dsn= returned {type(connection).__name__}, expected an asyncpg connection"
            )
        return connection

    async def dispose(self, connection: asyncpg.Connection, timeout: float) -> None:
        """Close it."""
        await terminate_in_time(connection, timeout)


class PoolOpener:
    """Kept connections that a handed-in pool lends; they go back to it, reset, in the end."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool

    async def open(self) -> asyncpg.Connection:
        """Borrow a connection for long."""
        return cast("asyncpg.Connection", await self._pool.acquire(timeout=CONNECT_SECONDS))

    async def dispose(self, connection: asyncpg.Connection, timeout: float) -> None:
        """Give it back; one that does not answer is terminated first."""
        try:
            await self._pool.release(cast("PoolConnectionProxy", connection), timeout=timeout)
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
            connection.terminate()


class PoolSource:
    """The pool behind a store, bound to the event loop and the process that opened it."""

    def __init__(self, dsn: str | None, pool: Pool | None) -> None:
        if (dsn is None) == (pool is None):
            raise ConfigurationError("give either dsn= or pool=, not both and not neither")
        self.dsn = dsn
        self._given = cast("asyncpg.Pool | None", pool)
        self._pool: asyncpg.Pool | None = None
        self._dsn: str | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0

    @property
    def is_open(self) -> bool:
        """Whether ``open`` was called, in this process."""
        return self._pool is not None and self._pid == os.getpid()

    @property
    def is_here(self) -> bool:
        """Whether it is open, and in the running loop."""
        return self.is_open and self._loop is asyncio.get_running_loop()

    @property
    def is_handed_in(self) -> bool:
        """Whether the pool belongs to the caller, who also closes it."""
        return self._given is not None

    async def open(self, dsn: str | None) -> None:
        """Bind to the running loop and open the pool (``dsn`` is the resolved one)."""
        self._pool = self._given if self._given is not None else await open_pool(dsn or "")
        self._dsn = dsn
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()

    async def close(self, timeout: float) -> None:
        """Close a pool of our own; give a handed-in one up."""
        pool, self._pool = self._pool, None
        if pool is None or self.is_handed_in:
            return
        if (
            self._loop is not asyncio.get_running_loop() or self._pid != os.getpid()
        ):  # `is_here`, of the pool taken above
            return  # its loop or process is not ours to close from; the sockets go with it
        try:
            await asyncio.wait_for(pool.close(), timeout)
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
            pool.terminate()

    def opener(self, dsn: str | None, application_name: str) -> DsnOpener | PoolOpener:
        """Return where a worker's kept connections come from."""
        if dsn is not None:
            return DsnOpener(dsn, application_name)
        pool = self.checked()
        if pool.get_max_size() < POOL_LEAST_SIZE:
            raise ConfigurationError(
                f"pool= has max_size={pool.get_max_size()}, a worker needs at least {POOL_LEAST_SIZE}: it keeps two connections"
            )
        return PoolOpener(pool)

    @asynccontextmanager
    async def acquire(self, *, unopened: bool = False) -> AsyncIterator[asyncpg.Connection]:
        """Lend a connection, within a limit of time; ``unopened``: of a handed-in pool, even before ``open``.

        Raises ConfigurationError and DatabaseUnavailableError; what is raised inside passes as it is.
        """
        pool = self._given if unopened and self._given is not None else self.checked()
        connection = await self._borrow(pool)
        try:
            yield cast("asyncpg.Connection", connection)
        finally:
            await pool.release(connection)

    async def _borrow(self, pool: asyncpg.Pool) -> PoolConnectionProxy:
        try:
            return await pool.acquire(timeout=CONNECT_SECONDS)
        except CONNECT_ERRORS as error:
            failure = explain(error, self._dsn)
        # Raised outside of the except block: the driver's own error can print a malformed DSN, and must not be in the chain.
        raise failure

    def checked(self) -> asyncpg.Pool:
        """Return the pool; raise NotOpenError or WrongLoopError where it cannot be used."""
        if self._pool is None:
            raise NotOpenError(
                "not open: use 'async with jobs:' (or 'await store.start()' … 'await store.close()'), "
                "or in a web app 'FastAPI(lifespan=jobs.lifespan)'"
            )
        if self._pid != os.getpid():
            raise WrongLoopError(
                "opened in another process (before a fork): open an app or store of its own in the child"
            )
        if self._loop is not asyncio.get_running_loop():
            raise WrongLoopError(
                "opened in another event loop: close it (await store.close()), and open it again in this one"
            )
        return self._pool
