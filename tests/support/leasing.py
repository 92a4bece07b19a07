"""Databases lent to one test after another: emptied where a test left only rows behind, replaced where it changed more."""

import asyncpg

from tests.support.database import Databases, connected
from tests.support.waiting import wait_until

EMPTY = """
TRUNCATE pqrun.jobs, pqrun.workers, pqrun.task_shapes, pqrun.schedules, pqrun.attempts, pqrun.progress, pqrun.audit, pqrun.operations,
  pqrun.statistics, pqrun.turns
RESTART IDENTITY;
SELECT setval('pqrun.claims_id_seq', 1, false);
"""

_CATALOGS = (
    *("pg_class", "pg_attribute", "pg_proc", "pg_namespace", "pg_trigger", "pg_event_trigger", "pg_constraint"),
    *("pg_index", "pqrun.migrations"),
)
FINGERPRINT = "SELECT concat_ws(' ', " + ", ".join(
    f"(SELECT count(*) || ':' || coalesce(max(xmin::text::bigint), 0) FROM {catalog})" for catalog in _CATALOGS
) + ")"  # fmt: skip
"""Differs after any DDL: what exists, and the last transaction that wrote it."""


class Leases:
    """Lends databases, each to one test at a time."""

    def __init__(self, databases: Databases) -> None:
        self._databases = databases
        self._free: list[str] = []
        self._fingerprints: dict[str, str] = {}

    async def take(self) -> str:
        """An empty, migrated database."""
        if self._free:
            return self._free.pop()
        dsn = await self._databases.clone()
        async with connected(dsn) as connection:
            await self._empty(dsn, connection)
        return dsn

    async def give_back(self, dsn: str) -> list[str]:
        """Return who was still connected, which nobody may be."""
        left: list[str] = []

        async def is_left_alone() -> bool:
            left[:] = await self._databases.connections(dsn)
            return not left

        try:
            await wait_until(is_left_alone, seconds=5)
        except TimeoutError:
            await self._databases.drop(dsn)
            return left
        async with connected(dsn) as connection:
            is_unchanged = await connection.fetchval(FINGERPRINT) == self._fingerprints[dsn]
            if is_unchanged:
                await self._empty(dsn, connection)
        if is_unchanged:
            self._free.append(dsn)
        else:
            await self._databases.drop(dsn)
        return []

    async def close(self) -> None:
        """Remove all that is not lent."""
        for dsn in self._free:
            await self._databases.drop(dsn)

    async def _empty(self, dsn: str, connection: asyncpg.Connection) -> None:
        await connection.execute(EMPTY)
        self._fingerprints[dsn] = await connection.fetchval(FINGERPRINT)
