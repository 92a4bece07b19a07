"""Is there a pooler in transaction mode between us and PostgreSQL? Asked before any lock, LISTEN or SET could get lost in one.

Behind such a pooler each transaction may run on another server connection, so nothing may outlive a transaction: neither settings, locks
and LISTEN nor prepared statements. What gives it away, and what never happens on a direct connection: the process id of the handshake is
not the one of the backend; a second connection, opened while the first is idle, runs on the first one's backend; the first one changes
its backend while the second holds a transaction. In doubt there is a pooler: all works behind a supposed one, only slower.

The questions are comparisons, answered by the command tag of a simple query: no prepared statement is made by asking.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeAlias

import asyncpg

from pqrun.store.failure import translating

__all__ = ["LEARNED_TYPES", "Lend", "PoolerFinder", "has_statement_cache", "learn_types"]

LOOK_SECONDS = 10.0
"""How long finding out may take, connections included."""

LAST_LOOK_SECONDS = 2.0
"""How long the first connection may wait while the second holds a transaction: a pooler that has no other backend lets it wait."""

LEARNED_TYPES = ("int8[]", "int4[]", "int2[]", "float8[]", "timestamptz[]")
"""Types of our statements that the driver does not know by itself."""

Lend: TypeAlias = Callable[[bool], AbstractAsyncContextManager[asyncpg.Connection | None]]
"""Lends a connection for as long as finding out takes; with True only where nobody must wait for it, else None."""


class PoolerFinder:
    """Finds out once, when it is first asked, and remembers; belongs to one event loop."""

    def __init__(self, lend: Lend, *, known: bool | None = None) -> None:
        self.known = known
        """What was found; None as long as nobody asked."""
        self._lend = lend
        self._lock = asyncio.Lock()

    async def find(self) -> bool:
        """Return whether there is a pooler. Raises DatabaseUnavailableError and its kinds; asked again, it looks again then."""
        if self.known is None:
            async with self._lock:
                if self.known is None:
                    with translating():
                        async with asyncio.timeout(LOOK_SECONDS):
                            self.known = await self._look()
        return self.known

    async def _look(self) -> bool:
        async with self._lend(False) as first:
            if first is None:
                return False
            if not await _runs_on(first, first.get_server_pid()):
                return True
            async with self._lend(True) as second:
                return second is not None and await _shares(first, second)


async def _shares(first: asyncpg.Connection, second: asyncpg.Connection) -> bool:
    """Whether the two use the same backends; each has named its own in the handshake, and the first runs on it."""
    await second.execute("BEGIN")
    try:
        if await _runs_on(second, first.get_server_pid()) or not await _runs_on(second, second.get_server_pid()):
            return True
        try:
            return not await _runs_on(first, first.get_server_pid(), LAST_LOOK_SECONDS)
        except TimeoutError:
            return True
    finally:
        await second.execute("ROLLBACK")


async def _runs_on(connection: asyncpg.Connection, pid: int, timeout: float | None = None) -> bool:
    """Whether a query of this connection is run by the backend with this process id."""
    tag = await connection.execute(f"SELECT WHERE pg_catalog.pg_backend_pid() = {pid:d}", timeout=timeout)
    return tag == "SELECT 1"


def has_statement_cache(connection: asyncpg.Connection) -> bool:
    """Whether this connection keeps prepared statements, as it does unless it was opened with ``statement_cache_size=0``."""
    settings: object = getattr(
        connection, "_config", None
    )  # the driver has no public word for it; if this changes, in doubt it has one
    return getattr(settings, "statement_cache_size", None) != 0


async def learn_types(connection: asyncpg.Connection) -> None:
    """Let the driver of a new connection behind a pooler ask for the types of our statements, now, in a transaction that is undone.

    It asks by changing a setting of the session (jit), which would stay behind on the server connection, for whoever comes next.
    """
    question = ", ".join(f"${place}::{name}" for place, name in enumerate(LEARNED_TYPES, start=1))
    transaction = connection.transaction()
    await transaction.start()
    try:
        await connection.fetch(f"SELECT {question}", *([] for _ in LEARNED_TYPES))
    finally:
        await transaction.rollback()
