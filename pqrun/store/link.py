"""One kept connection of a worker, for one duty: opened when needed, replaced when lost, one statement at a time.

What it promises: each statement has a limit of time; a deadlock or serialization failure is repeated here (the statement did nothing);
anything else is raised as an error of pqrun, and a connection whose state is in doubt is dropped. It never repeats a statement whose
outcome is unknown: whoever called must look first.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

import asyncpg

from pqrun.store.failure import DRIVER_ERRORS, is_conflict, is_disconnect, translate
from pqrun.store.statements import Statements

__all__ = ["CONFLICT_TRIES", "KeptLink", "Link", "Opener", "Session", "pause_after_conflict"]

CONFLICT_TRIES = 10
"""How often a statement that met a deadlock or a serialization failure is tried."""

PLANNER_SETTINGS = (
    "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_bitmapscan = off; SET jit = off;"
    " SET statement_timeout = 30000; SET lock_timeout = 10000; SET idle_in_transaction_session_timeout = 60000"
)
"""A generic plan made while the table was empty would scan it whole for ever after: indexes only, whatever the statistics say."""


async def pause_after_conflict(attempt: int) -> None:
    """Wait a little, longer each time and by chance, so that those who met do not meet again."""
    await asyncio.sleep(random.random() * 0.01 * 2**attempt)  # noqa: S311  # jitter, not a secret


class Session:
    """Named statements on one open connection."""

    def __init__(self, connection: asyncpg.Connection, statements: Statements) -> None:
        self.connection = connection
        self._statements = statements

    async def run(self, name: str, *arguments: object, timeout: float | None = None) -> list[asyncpg.Record]:
        """Run the statement of ``sql/NAME.sql`` and return its rows; the driver's errors pass through."""
        return await self.connection.fetch(self._statements[name], *arguments, timeout=timeout)


class Opener(Protocol):
    """Where kept connections come from and go back to: a DSN, or a pool that somebody handed in."""

    async def open(self) -> asyncpg.Connection:
        """Return a connection of our own until ``dispose``."""
        ...

    async def dispose(self, connection: asyncpg.Connection, timeout: float) -> None:
        """Give the connection up; never raises, never takes longer than ``timeout`` seconds."""
        ...


class Link(Protocol):
    """Where the statements of one duty run: a kept connection, or a pool that lends one for each transaction."""

    async def run(self, name: str, *arguments: object, timeout: float | None = None) -> list[asyncpg.Record]:
        """Run one statement in a transaction of its own. Raises StoreError and its kinds."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[Session]:
        """Several statements in one transaction; committed at the end, rolled back on an error."""
        ...

    async def close(self, timeout: float = 2.0) -> None:
        """Give the connection up."""
        ...


class KeptLink:
    """A connection kept for one duty; see the module's docstring."""

    def __init__(self, opener: Opener, statements: Statements) -> None:
        self._opener = opener
        self._statements = statements
        self._connection: asyncpg.Connection | None = None  # replaced under the lock only
        self._lock = asyncio.Lock()

    async def run(self, name: str, *arguments: object, timeout: float | None = None) -> list[asyncpg.Record]:
        """Run one statement in a transaction of its own. Raises StoreError and its kinds."""
        async with self._lock:
            failure: Exception | None = None
            for attempt in range(CONFLICT_TRIES):
                try:
                    session = await self._session()
                    return await session.run(name, *arguments, timeout=timeout)
                except Exception as error:  # noqa: BLE001  # the border to the driver: whatever it raises is translated
                    failure = error
                await self._doubt(failure)
                if not is_conflict(failure):
                    break
                await pause_after_conflict(attempt)
            assert failure is not None  # noqa: S101  # the loop ends by return or with a failure
            raise translate(failure)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Session]:
        """Several statements in one transaction; committed at the end, rolled back on an error."""
        async with self._lock:
            failure: Exception | None = None
            try:
                session = await self._session()
                async with session.connection.transaction():
                    yield session
            except DRIVER_ERRORS as error:  # what the caller's own code raises inside passes as it is
                failure = error
            if failure is not None:
                await self._doubt(failure)
                raise translate(failure)

    async def close(self, timeout: float = 2.0) -> None:
        """Close the connection, the hard way if the server does not answer in time."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await self._opener.dispose(connection, timeout)

    async def _session(self) -> Session:
        if self._connection is None or self._connection.is_closed():
            await self.close(timeout=0.5)  # a lent connection goes back to its pool when it is gone, too
            self._connection = await self._opener.open()
            try:
                await self._connection.execute(PLANNER_SETTINGS)
            except BaseException:
                await self.close(timeout=0.5)
                raise
        return Session(self._connection, self._statements)

    async def _doubt(self, failure: BaseException) -> None:
        if is_disconnect(failure):
            await self.close(timeout=0.5)
