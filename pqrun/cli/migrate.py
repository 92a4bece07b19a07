"""``pqrun migrate``: bring a schema up to this version, or print the script that does."""

import asyncio
import json
import os
from typing import Annotated

import typer

from pqrun.cli.database import DsnOption, dsn_or_refuse
from pqrun.store import PgJobStore
from pqrun.store.migrate import Migration, migration_sql
from pqrun.store.statements import check_schema_name

__all__ = ["migrate"]

SchemaOption = Annotated[str, typer.Option("--schema", metavar="NAME", help="The schema that holds the tables.")]
SqlOption = Annotated[
    bool, typer.Option("--sql", help="Print the script for psql instead of running it; connects nowhere.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout instead of text.")]


def migrate(
    dsn: DsnOption = None, schema: SchemaOption = "pqrun", sql: SqlOption = False, as_json: Json = False
) -> None:
    """Create the tables, or bring them up to this version. Safe to run again, and from several places at once."""
    if sql:
        typer.echo(migration_sql(check_schema_name(schema)), nl=False)
        return
    applied = asyncio.run(_apply(dsn_or_refuse(dsn, os.environ), schema))
    if as_json:
        listed = [{"version": migration.version, "name": migration.name} for migration in applied]
        typer.echo(json.dumps({"schema": schema, "applied": listed}))
        return
    for migration in applied:
        typer.echo(f"applied {migration.version:04} {migration.name}")
    if not applied:
        typer.echo(f"schema {schema} is up to date")


async def _apply(dsn: str, schema: str) -> list[Migration]:
    store = PgJobStore(dsn, schema=schema)
    try:
        return await store.migrate()
    finally:
        await store.close()  # an embedded server was started for this alone
