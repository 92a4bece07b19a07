"""One kept connection of a worker, for one duty: opened when needed, replaced when lost, one statement at a time.

What it promises: each statement has a limit of time; a deadlock or serialization failure is repeated here (the statement did nothing);
anything else is raised as an error of pqrun, and a connection whose state is in doubt is dropped. It never repeats a statement whose
outcome is unknown: whoever called must look first.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol, TypeVar

import asyncpg

from pqrun.errors import ConflictError, DatabaseUnavailableError
from pqrun.store.failure import (
    DRIVER_ERRORS,
    is_conflict,
    is_spoilt,
    is_standing,
    raise_by_itself,
    terminate,
    translate,
)
from pqrun.store.patience import Patience
from pqrun.store.statements import Statements

__all__ = [
    "CONFLICT_TRIES",
    "PLANNER_SETTINGS",
    "KeptLink",
    "Link",
    "Opener",
    "Session",
    "own_transaction",
    "pause_after_conflict",
    "repeated",
]

T = TypeVar("T")

CONFLICT_TRIES = 10
"""How often a statement that met a deadlock or a serialization failure is tried."""

REOPEN_SECONDS = 0.25
"""Between two tries to open a connection for one duty: those who ask meanwhile hear how the last one failed."""

PLANNER_SETTINGS = (
    "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_bitmapscan = off; SET jit = off;"
    " SET plan_cache_mode = force_generic_plan;"
    " SET default_transaction_isolation = 'read committed';"
    " SET statement_timeout = 30000; SET lock_timeout = 10000; SET idle_in_transaction_session_timeout = 60000"
)
"""A generic plan made while the table was empty would scan it whole for ever after: indexes only, whatever the statistics say.

And one plan for good: by itself the planner thinks each claim worth a plan of its own, which takes longer than the claim (measured: 0.5 of
0.95 ms for a single job)."""


def _begin_with(settings: str) -> str:
    """The same for one transaction, where the connection belongs to others between two of ours; one round trip with its BEGIN."""
    return "BEGIN ISOLATION LEVEL READ COMMITTED; " + settings.replace("SET ", "SET LOCAL ")


COMMIT_SECONDS = 10.0
"""Longer than any disk takes; a handed-in pool need not limit its statements itself."""

ROLLBACK_SECONDS = 2.0
"""A connection that does not even roll back within this time is given up."""


async def pause_after_conflict(attempt: int) -> None:
    """Wait a little, longer each time and by chance, so that those who met do not meet again."""
    await asyncio.sleep(random.random() * 0.01 * 2**attempt)  # noqa: S311  # jitter, not a secret


async def repeated(act: Callable[[], Awaitable[T]]) -> T:
    """Do it, and again after a deadlock or serialization failure."""
    for attempt in range(CONFLICT_TRIES):
        try:
            return await act()
        except ConflictError:
            if attempt == CONFLICT_TRIES - 1:
                raise
        await pause_after_conflict(attempt)
    raise AssertionError  # the last try returns or raises


class Session:
    """Named statements on one open connection."""

    def __init__(self, connection: asyncpg.Connection, statements: Statements) -> None:
        self.connection = connection
        self._statements = statements

    async def run(self, name: str, *arguments: object, timeout: float | None = None) -> list[asyncpg.Record]:
        """Run the statement of ``sql/NAME.sql`` and return its rows; the driver's errors pass through."""
        return await self.connection.fetch(self._statements[name], *arguments, timeout=timeout)


@asynccontextmanager
async def own_transaction(
    connection: asyncpg.Connection, *, settings: str = PLANNER_SETTINGS, timeout: float | None = None
) -> AsyncIterator[None]:
    """A transaction of ours on a connection that others use between two of them: it carries its settings with it.

    ``timeout``: how long it may wait for its start, behind a pooler for a server connection. A connection on which the end is in doubt is
    terminated.
    """
    try:
        await connection.execute(_begin_with(settings), timeout=timeout)
        yield
        await connection.execute("COMMIT", timeout=COMMIT_SECONDS)
    except BaseException:
        await _roll_back(connection)
        raise


async def _roll_back(connection: asyncpg.Connection) -> None:
    is_over = False
    try:
        with contextlib.suppress(*DRIVER_ERRORS):  # what went wrong before says more
            await connection.execute("ROLLBACK", timeout=ROLLBACK_SECONDS)
            is_over = True
    finally:
        if not is_over:  # cancelled, too: the next transaction would become part of this one
            terminate(connection)


class Opener(Protocol):
    """Where kept connections come from and go back to: a DSN, or a pool that somebody handed in."""

    async def is_pooled(self) -> bool:
        """Whether a pooler may run each transaction on another server connection; found out without any lock, LISTEN or SET."""
        ...

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

    def __init__(
        self,
        opener: Opener,
        statements: Statements,
        *,
        settings: str = PLANNER_SETTINGS,
        patience: Patience | None = None,
    ) -> None:
        self._opener = opener
        self._statements = statements
        self._settings = settings
        self._connection: asyncpg.Connection | None = None  # replaced under the lock only
        self._is_pooled = False  # the present connection is not ours between two transactions
        self._lock = asyncio.Lock()
        self._patience = patience or Patience()
        self._refusal: tuple[float, str] | None = None  # when the last try to open failed, and why

    async def run(self, name: str, *arguments: object, timeout: float | None = None) -> list[asyncpg.Record]:
        """Run one statement in a transaction of its own. Raises StoreError and its kinds."""
        async with self._lock:
            failure: Exception | None = None
            for attempt in range(CONFLICT_TRIES):
                try:
                    rows = await self._run(name, arguments, timeout or self._patience.seconds)
                except Exception as error:  # noqa: BLE001  # the border to the driver: whatever it raises is translated
                    failure = error
                else:
                    self._patience.answered()
                    return rows
                await self._doubt(failure)
                if not is_conflict(failure):
                    break
                await pause_after_conflict(attempt)
            assert failure is not None  # noqa: S101  # the loop ends by return or with a failure
            raise translate(failure, self._statements.schema)

    async def _run(self, name: str, arguments: tuple[object, ...], timeout: float) -> list[asyncpg.Record]:
        session = await self._session()
        if not self._is_pooled:
            return await session.run(name, *arguments, timeout=timeout)
        async with own_transaction(session.connection, settings=self._settings, timeout=timeout):
            return await session.run(name, *arguments, timeout=timeout)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Session]:
        """Several statements in one transaction; committed at the end, rolled back on an error."""
        async with self._lock:
            failure: Exception | None = None
            try:
                session = await self._session()
                connection = session.connection
                # Behind a pooler the start waits for a server connection, with no limit but the connection's own.
                limit = None if self._is_pooled else self._patience.seconds
                async with own_transaction(connection, settings=self._settings, timeout=limit):
                    yield session
            except DRIVER_ERRORS as error:  # what the caller's own code raises inside passes as it is
                failure = error
            if failure is not None:
                await self._doubt(failure)
                raise_by_itself(translate(failure, self._statements.schema))

    async def close(self, timeout: float = 2.0) -> None:
        """Close the connection, the hard way if the server does not answer in time."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await self._opener.dispose(connection, timeout)

    async def _session(self) -> Session:
        if self._connection is None or not is_standing(self._connection):
            await self.close(timeout=0.5)  # a lent connection goes back to its pool when it is gone, too
            self._connection = await self._open()
            if not self._is_pooled:
                await self._set_up(self._connection)
        return Session(self._connection, self._statements)

    async def _set_up(self, connection: asyncpg.Connection) -> None:
        try:
            await connection.execute(self._settings, timeout=self._patience.seconds)
        except BaseException:
            await self.close(timeout=0.5)
            raise

    async def _open(self) -> asyncpg.Connection:
        now = asyncio.get_running_loop().time()
        if self._refusal is not None and now < self._refusal[0] + REOPEN_SECONDS:
            raise DatabaseUnavailableError(self._refusal[1])
        self._refusal = None
        try:
            self._is_pooled = await self._opener.is_pooled()
            return await self._opener.open()
        except DatabaseUnavailableError as error:
            self._refusal = now, str(error)
            raise

    async def _doubt(self, failure: BaseException) -> None:
        if isinstance(failure, TimeoutError):
            self._patience.ran_out()
        if is_spoilt(failure):
            await self.close(timeout=0.5)
