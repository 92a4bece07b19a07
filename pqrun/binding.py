"""The database that an app is bound to: what its store is made of, who has opened it, and how often."""

import asyncio
import os

from pqrun.config import dsn_from, require_dsn
from pqrun.errors import ConfigurationError, NotOpenError
from pqrun.store import PgJobStore
from pqrun.store.ports import Pool

__all__ = ["SCHEMA_DEFAULT", "Binding"]

SCHEMA_DEFAULT = "pqrun"

NOT_OPEN = (
    "the app is not open. In a script: 'async with jobs: ...'; in a web application: FastAPI(lifespan=jobs.lifespan) "
    "(Starlette the same, Litestar(lifespan=[jobs.lifespan])); in a view of Flask or Django: the synchronous call, defer_sync(...); "
    "a running worker opens its own"
)

NOT_OPEN_SYNC = (
    "synchronous calls need connections of their own, which cannot be made from a pool: give dsn= instead of pool= "
    "(App(dsn=...), or PQRUN_DSN), or open the app in an event loop that runs in another thread of this process"
)


class Binding:
    """One of ``dsn``, ``pool`` and ``store``; with none of them the environment counts, when the store is first asked for.

    Raises ConfigurationError for options that exclude each other and for a malformed DSN.
    """

    def __init__(
        self,
        *,
        dsn: str | None = None,
        pool: Pool | None = None,
        store: PgJobStore | None = None,
        schema: str = SCHEMA_DEFAULT,
    ) -> None:
        given = [f"{name}=" for name, value in (("dsn", dsn), ("pool", pool), ("store", store)) if value is not None]
        if len(given) > 1:
            raise ConfigurationError(f"App() takes one of dsn=, pool= and store=; got {' and '.join(given)}")
        if store is not None and schema != SCHEMA_DEFAULT:
            raise ConfigurationError("App(store=) has its schema already; give schema= to the PgJobStore")
        # Checked here, so that a malformed DSN is told where it is written.
        self._dsn = None if dsn is None else dsn_from(dsn, {})
        self._pool = pool
        self._is_given = store is not None
        self._store = store
        self._schema = schema
        # Written by open and close under the lock: a web process may open the app and a worker of its own too.
        self._openings = 0
        self._opened_by_us = False
        self._lock: asyncio.Lock | None = None

    @property
    def store(self) -> PgJobStore:
        """The store, made when it is first asked for; raises ConfigurationError without a DSN."""
        if self._store is None:
            if self._pool is not None:
                self._store = PgJobStore(pool=self._pool, schema=self._schema)
            else:
                self._store = self._made()
        return self._store

    @property
    def schema(self) -> str:
        """The schema that holds the tables."""
        return self._schema if self._store is None else self._store.schema

    def opened_store(self) -> PgJobStore:
        """Return the store; raises NotOpenError, which shows the ways to open it, while nobody has."""
        store = self.store
        if not store.is_open:
            raise NotOpenError(NOT_OPEN)
        return store

    def another_store(self) -> PgJobStore:
        """Return a store on the same tables for another event loop; raises NotOpenError where that would need somebody else's pool."""
        if self._pool is not None or (self._is_given and self.store.is_pool_handed_in):
            raise NotOpenError(NOT_OPEN_SYNC)
        return self.store.another() if self._is_given else self._made()

    async def open(self) -> None:
        """Open the store unless somebody has; each call needs one of ``close``."""
        async with self._exclusive():
            if self._openings == 0:
                # A store that its owner opened is its owner's to close.
                self._opened_by_us = not self.store.is_open
                if self._opened_by_us:
                    await self.store.start()
            self._openings += 1

    async def close(self) -> None:
        """Close the store if this is the last of those who opened it, and it was not open before."""
        async with self._exclusive():
            self._openings -= 1
            if self._openings == 0 and self._opened_by_us:
                await self.store.close()

    def _made(self) -> PgJobStore:
        return PgJobStore(require_dsn(self._dsn, os.environ), schema=self._schema)

    def _exclusive(self) -> asyncio.Lock:
        # A lock belongs to the loop it was waited for in, and a module-level app outlives ``asyncio.run``.
        if self._lock is None or (self._openings == 0 and not self._lock.locked()):
            self._lock = asyncio.Lock()
        return self._lock
