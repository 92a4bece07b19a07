"""Migrations: numbered SQL files, forward only, each in one transaction, under one lock, recorded with its checksum.

The lock is an advisory one of the transaction (it works behind any pooler and cannot be left behind), taken before CREATE SCHEMA IF NOT
EXISTS, which races by itself. All locks, that one too, are asked for with a limit and again after a pause, so that a long reader never
makes everybody queue behind the migration, and nobody waits for ever for another process that migrates.
"""

import asyncio
import hashlib
import re
from functools import cache
from typing import NamedTuple

import asyncpg

from pqrun.errors import SchemaError
from pqrun.store.failure import migrate_hint, translate
from pqrun.store.statements import quote_identifier, render

__all__ = ["Migration", "check_schema", "migrate", "migration_sql", "migrations"]

LOCK_TRIES = 30
"""How often a migration asks for its locks, one second each, before it gives up."""

_NAME = re.compile(r"(\d{4})_(\w+)\.sql")


class Migration(NamedTuple):
    """One migration file; the checksum is of the template, so it does not depend on the schema's name."""

    version: int
    name: str
    template: str

    @property
    def checksum(self) -> str:
        """Return the sha256 of the file's text."""
        return hashlib.sha256(self.template.encode()).hexdigest()


@cache
def migrations() -> tuple[Migration, ...]:
    """Return all migrations of this version of pqrun, in order."""
    from importlib.resources import files  # as in statements.py

    folder = files("pqrun.store") / "migrations"
    return tuple(
        sorted(
            Migration(int(matched[1]), matched[2], entry.read_text("utf-8"))
            for entry in folder.iterdir()
            if (matched := _NAME.fullmatch(entry.name))
        )
    )


def _journal_sql(schema: str) -> str:
    return (
        f"CREATE TABLE IF NOT EXISTS {quote_identifier(schema)}.migrations (version integer PRIMARY KEY, name text NOT NULL, "
        "checksum text NOT NULL, applied_at timestamptz NOT NULL DEFAULT clock_timestamp())"
    )


def _record_sql(schema: str, migration: Migration) -> str:
    return (
        f"INSERT INTO {quote_identifier(schema)}.migrations (version, name, checksum) "  # noqa: S608  # values of our own files
        f"VALUES ({migration.version}, '{migration.name}', '{migration.checksum}')"
    )


def migration_sql(schema: str) -> str:
    """Return all migrations as one script for psql (``pqrun migrate --sql``), for databases where an operator applies DDL."""
    script = [f"CREATE SCHEMA IF NOT EXISTS {quote_identifier(schema)};", _journal_sql(schema) + ";"]
    for migration in migrations():
        script += [
            f"\n-- {migration.version:04} {migration.name}",
            "BEGIN;",
            render(migration.template, schema),
            _record_sql(schema, migration) + ";",
            "COMMIT;",
        ]
    return "\n".join(script) + "\n"


async def migrate(connection: asyncpg.Connection, schema: str) -> list[Migration]:
    """Bring the schema up to this version and return what was applied; any number of processes may call at once.

    Raises SchemaError when a recorded checksum differs from this version's file.
    """
    for attempt in range(LOCK_TRIES):
        try:
            return await _migrate_once(connection, schema)
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
            await asyncio.sleep(min(0.1 * (attempt + 1), 1.0))
    raise SchemaError(f"the schema {schema!r} stayed locked by other transactions; try again when they have ended")


async def _migrate_once(connection: asyncpg.Connection, schema: str) -> list[Migration]:
    applied: list[Migration] = []
    async with connection.transaction():
        await connection.execute("SET LOCAL lock_timeout = '1s'")
        await connection.execute("SELECT pg_advisory_xact_lock(hashtext($1), 1)", f"pqrun:migrate:{schema}")
        if not await connection.fetchval("SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)", schema):
            await connection.execute(f"CREATE SCHEMA {quote_identifier(schema)}")
        if not await _has_journal(connection, schema):
            await connection.execute(_journal_sql(schema))
        recorded = await _recorded(connection, schema)
        for migration in migrations():
            if migration.version in recorded:
                _verify(migration, recorded[migration.version])
                continue
            await connection.execute(render(migration.template, schema))
            await connection.execute(_record_sql(schema, migration))
            applied.append(migration)
    return applied


def _verify(migration: Migration, checksum: str) -> None:
    if checksum != migration.checksum:
        raise SchemaError(
            f"migration {migration.version:04} {migration.name} was applied from another text than this version of pqrun has "
            f"(recorded {checksum[:12]}, here {migration.checksum[:12]}); install the version that applied it, or a newer one"
        )


async def _has_journal(connection: asyncpg.Connection, schema: str) -> bool:
    query = "SELECT EXISTS (SELECT FROM pg_tables WHERE schemaname = $1 AND tablename = 'migrations')"
    return bool(await connection.fetchval(query, schema))


async def _recorded(connection: asyncpg.Connection, schema: str) -> dict[int, str]:
    rows = await connection.fetch(f"SELECT version, checksum FROM {quote_identifier(schema)}.migrations")  # noqa: S608  # quoted
    return {row["version"]: row["checksum"] for row in rows}


async def check_schema(connection: asyncpg.Connection, schema: str) -> None:
    """Raise SchemaError, naming the command, when the schema is missing or older than this code; a newer one is served."""
    hint = migrate_hint(schema)
    try:
        if not await _has_journal(connection, schema):
            raise SchemaError(f"the schema {schema!r} does not exist in this database; {hint}")
        recorded = await _recorded(connection, schema)
    except asyncpg.PostgresError as error:
        failure = translate(error)
    else:
        missing = [m for m in migrations() if m.version not in recorded]
        if missing:
            raise SchemaError(
                f"the schema {schema!r} is older than this code: {len(missing)} migration(s) are not applied, "
                f"the first is {missing[0].version:04} {missing[0].name}; {hint}"
            )
        return
    raise failure
