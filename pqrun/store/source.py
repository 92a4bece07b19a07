"""Where a store's connections come from: a DSN of its own (a pool and kept connections), or a pool that was handed in."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from typing import TypeAlias, cast

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from pqrun.errors import ConfigurationError, DatabaseUnavailableError, NotOpenError, WrongLoopError
from pqrun.store.connecting import (
    CONNECT_ERRORS,
    CONNECT_SECONDS,
    explain,
    open_connection,
    open_pool,
    taught,
)
from pqrun.store.failure import DRIVER_ERRORS, is_spoilt, terminate, translating
from pqrun.store.pooler import Lend, PoolerFinder, has_statement_cache, learn_types
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
        terminate(connection)


def lend_from(dsn: str, application_name: str) -> Lend:
    """Return what lends new connections for a look, without statement caches."""

    @asynccontextmanager
    async def lend(_only_at_once: bool) -> AsyncIterator[asyncpg.Connection]:
        connection = await open_connection(dsn, application_name=application_name, statement_cache_size=0)
        try:
            yield connection
        finally:
            await terminate_in_time(connection, 1.0)

    return lend


def _cache_refused(origin: str) -> ConfigurationError:
    return ConfigurationError(
        f"{origin} leads through a pooler in transaction mode and keeps prepared statements, which get lost there: "
        "open it with statement_cache_size=0, or connect to PostgreSQL itself"
    )


class DsnOpener:
    """Kept connections of our own. ``finder``: what knows whether the DSN leads to a pooler, where somebody does."""

    def __init__(self, dsn: str, application_name: str, finder: PoolerFinder | None = None) -> None:
        self._dsn = dsn
        self._name = application_name
        self._finder = finder or PoolerFinder(lend_from(dsn, application_name))

    async def is_pooled(self) -> bool:
        """Find out, once."""
        return await self._finder.find()

    async def open(self) -> asyncpg.Connection:
        """Open a connection, without a statement cache behind a pooler."""
        if not await self.is_pooled():
            return await open_connection(self._dsn, application_name=self._name)
        return await taught(await open_connection(self._dsn, application_name=self._name, statement_cache_size=0))

    async def dispose(self, connection: asyncpg.Connection, timeout: float) -> None:
        """Close it."""
        await terminate_in_time(connection, timeout)


class FactoryOpener:
    """Kept connections from a function of the user's."""

    def __init__(self, factory: Callable[[], Awaitable[Connection]]) -> None:
        self._factory = factory
        self._finder = PoolerFinder(self._lend)

    async def is_pooled(self) -> bool:
        """Find out, once, with two connections of the function's."""
        return await self._finder.find()

    async def open(self) -> asyncpg.Connection:
        """Call the function."""
        is_pooled = await self.is_pooled()
        connection = await self._make()
        if not is_pooled:
            return connection
        if has_statement_cache(connection):
            await terminate_in_time(connection, 1.0)
            raise _cache_refused("the connection that direct_dsn= returned")
        return await taught(connection)

    async def dispose(self, connection: asyncpg.Connection, timeout: float) -> None:
        """Close it."""
        await terminate_in_time(connection, timeout)

    async def _make(self) -> asyncpg.Connection:
        connection = await asyncio.wait_for(self._factory(), CONNECT_SECONDS)
        if not isinstance(connection, asyncpg.Connection):
            raise ConfigurationError(
                f"direct_dsn= returned {type(connection).__name__}, expected an asyncpg connection"
            )
        return connection

    @asynccontextmanager
    async def _lend(self, _only_at_once: bool) -> AsyncIterator[asyncpg.Connection]:
        connection = await self._make()
        try:
            yield connection
        finally:
            await terminate_in_time(connection, 1.0)


class PoolOpener:
    """Kept connections that a handed-in pool lends; they go back to it, reset, in the end."""

    def __init__(self, pool: asyncpg.Pool, source: "PoolSource") -> None:
        self._pool = pool
        self._source = source

    async def is_pooled(self) -> bool:
        """Find out, once."""
        return await self._source.find_pooler()

    async def open(self) -> asyncpg.Connection:
        """Borrow a connection for long."""
        return await self._source.borrow(self._pool)

    async def dispose(self, connection: asyncpg.Connection, timeout: float) -> None:
        """Give it back; one that does not answer is terminated first."""
        try:
            await self._pool.release(cast("PoolConnectionProxy", connection), timeout=timeout)
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
            terminate(connection)


class PoolSource:
    """The pool behind a store, bound to the event loop and the process that opened it."""

    def __init__(self, dsn: str | None, pool: Pool | None) -> None:
        if (dsn is None) == (pool is None):
            raise ConfigurationError("give either dsn= or pool=, not both and not neither")
        self.dsn = dsn
        self._given = cast("asyncpg.Pool | None", pool)
        self._pool: asyncpg.Pool | None = None
        self._dsn: str | None = None
        self._finder = PoolerFinder(self._lend_for_a_look)
        self._taught: set[int] = set()  # connections of a handed-in pool, where it leads to a pooler
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0

    @property
    def is_open(self) -> bool:
        """Whether ``open`` was called, in this process."""
        return self._pool is not None and self._pid == os.getpid()

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop that it is open in; None while it is closed."""
        return self._loop if self.is_open else None

    @property
    def is_here(self) -> bool:
        """Whether it is open, and in the running loop."""
        return self.is_open and self._loop is asyncio.get_running_loop()

    @property
    def is_handed_in(self) -> bool:
        """Whether the pool belongs to the caller, who also closes it."""
        return self._given is not None

    async def open(self, dsn: str | None, *, is_direct: bool = False) -> None:
        """Bind to the running loop and open the pool (``dsn`` is the resolved one; ``is_direct``: it is known to meet no pooler)."""
        self._dsn = dsn
        self._finder = self._make_finder(dsn, known=False if is_direct else None)
        self._pool = self._given if self._given is not None else await open_pool(dsn or "", self.find_pooler)
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()

    def _make_finder(self, dsn: str | None, known: bool | None) -> PoolerFinder:
        return PoolerFinder(self._lend_for_a_look if dsn is None else lend_from(dsn, "pqrun"), known=known)

    async def find_pooler(self) -> bool:
        """Return whether a pooler in transaction mode is in between; found out once per ``open``.

        Raises DatabaseUnavailableError and its kinds.
        """
        return await self._finder.find()

    def outside_finder(self) -> PoolerFinder | None:
        """Return a finder for another event loop, which knows what this one knows; None for a handed-in pool."""
        return None if self._dsn is None else self._make_finder(self._dsn, self._finder.known)

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
            return DsnOpener(dsn, application_name, self._finder)
        pool = self.checked()
        if pool.get_max_size() < POOL_LEAST_SIZE:
            raise ConfigurationError(
                f"pool= has max_size={pool.get_max_size()}, a worker needs at least {POOL_LEAST_SIZE}: it keeps two connections"
            )
        return PoolOpener(pool, self)

    @asynccontextmanager
    async def acquire(self, *, unopened: bool = False) -> AsyncIterator[asyncpg.Connection]:
        """Lend a connection, within a limit of time; ``unopened``: of a handed-in pool, even before ``open``.

        Raises ConfigurationError and DatabaseUnavailableError; what is raised inside passes as it is.
        """
        pool = self._given if unopened and self._given is not None else self.checked()
        connection = await self.borrow(pool)
        try:
            yield connection
        except (DatabaseUnavailableError, *DRIVER_ERRORS) as error:
            if isinstance(error, DatabaseUnavailableError) or is_spoilt(error):
                terminate(connection)  # else its release would wait once more for a server that does not answer
            raise
        finally:
            # What was done on it, or raised, stands: a connection that cannot be made ready for the next borrower is ended by the pool.
            with suppress(*DRIVER_ERRORS):
                await pool.release(cast("PoolConnectionProxy", connection))

    @asynccontextmanager
    async def acquire_own(self) -> AsyncIterator[asyncpg.Connection]:
        """Lend a connection for statements of ours: each a transaction of its own, but behind a pooler all of them together one."""
        async with self.acquire() as connection, self.around(connection):
            yield connection

    def around(self, connection: asyncpg.Connection) -> AbstractAsyncContextManager[object]:
        """Return a transaction for statements of ours on an acquired or a caller's connection, where a pooler demands it."""
        # The driver sends a statement in two steps: only a transaction keeps both on one server connection.
        if self._finder.known and not connection.is_in_transaction():
            return connection.transaction()
        return nullcontext()

    async def borrow(self, pool: asyncpg.Pool) -> asyncpg.Connection:
        """Take a connection of the pool; raise ConfigurationError for a handed-in one that cannot work behind its pooler."""
        is_pooled = self.is_handed_in and await self.find_pooler()  # a pool of our own asks when it connects
        connection = await self._borrow(pool)
        if is_pooled:
            try:
                await self._prepare_pooled(connection)
            except BaseException:
                await pool.release(connection)
                raise
        return cast("asyncpg.Connection", connection)

    async def _prepare_pooled(self, connection: PoolConnectionProxy) -> None:
        if has_statement_cache(cast("asyncpg.Connection", connection)):
            raise _cache_refused("pool=")
        client = connection.get_server_pid()  # behind a pooler it names the client connection
        if client not in self._taught:
            with translating():
                await learn_types(cast("asyncpg.Connection", connection))
            self._taught.add(client)

    @asynccontextmanager
    async def _lend_for_a_look(self, only_at_once: bool) -> AsyncIterator[asyncpg.Connection | None]:
        """Lend a connection of the handed-in pool."""
        pool = self._given
        assert pool is not None  # noqa: S101  # a store with a DSN looks with connections of its own
        if only_at_once and not pool.get_idle_size() and pool.get_size() == pool.get_max_size():
            yield None
            return
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
