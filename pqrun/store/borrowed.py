"""A link over a handed-in pool: a connection is borrowed for each transaction, so that the pool stays the users'."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from pqrun.errors import ConflictError, DatabaseUnavailableError
from pqrun.store.failure import translating
from pqrun.store.link import CONFLICT_TRIES, PLANNER_SETTINGS, Session, own_transaction, pause_after_conflict
from pqrun.store.patience import Patience
from pqrun.store.source import PoolSource
from pqrun.store.statements import Statements

__all__ = ["BorrowedLink"]


class BorrowedLink:
    """What ``Link`` does, one transaction at a time on whatever connection the pool lends."""

    def __init__(
        self,
        source: PoolSource,
        statements: Statements,
        *,
        settings: str = PLANNER_SETTINGS,
        patience: Patience | None = None,
    ) -> None:
        self._source = source
        self._statements = statements
        self._settings = settings
        self._patience = patience or Patience()

    async def run(self, name: str, *arguments: object, timeout: float | None = None) -> list[asyncpg.Record]:
        """Run one statement in a transaction of its own. Raises StoreError and its kinds."""
        for attempt in range(CONFLICT_TRIES):
            try:
                async with self.transaction() as session:
                    rows = await session.run(name, *arguments, timeout=timeout or self._patience.seconds)
                self._patience.answered()
                return rows
            except DatabaseUnavailableError:
                self._patience.ran_out()
                raise
            except ConflictError:
                if attempt == CONFLICT_TRIES - 1:
                    raise
            await pause_after_conflict(attempt)
        raise AssertionError  # the last try returns or raises

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Session]:
        """Several statements in one transaction."""
        with translating(self._statements.schema):
            async with (
                self._source.acquire() as connection,
                own_transaction(connection, settings=self._settings, timeout=self._patience.seconds),
            ):
                yield Session(connection, self._statements)

    async def close(self, timeout: float = 2.0) -> None:
        """Nothing is kept, so there is nothing to close."""
