"""``pqrun why ID``: why a job is not running."""

import asyncio
import os
from typing import Annotated, Any

import typer

from pqrun.app import App
from pqrun.cli.database import dsn_or_refuse
from pqrun.cli.showing import DsnOption, JsonOption, json_text
from pqrun.cli.target import load_app
from pqrun.errors import PayloadDecodeError, PayloadVersionError
from pqrun.job.explaining import Explanation
from pqrun.job.storable import one_line
from pqrun.store import PgJobStore

__all__ = ["why"]

JobId = Annotated[int, typer.Argument(metavar="ID", help="The job.")]
AppOption = Annotated[
    str | None,
    typer.Option(
        "--app", metavar="MODULE:APP", help="Let this app's code read the payload; without --dsn in its own database."
    ),
]
AnySchema = Annotated[
    str | None,
    typer.Option("--schema", metavar="NAME", help="The schema that holds the tables (of the app, or pqrun)."),
]


def why(
    job_id: JobId,
    app: AppOption = None,
    as_json: JsonOption = False,
    dsn: DsnOption = None,
    schema: AnySchema = None,
) -> None:
    """Say why a job is not running: all reasons that hold, what matters most first."""
    found = asyncio.run(_explained(job_id, None if app is None else load_app(app), dsn, schema))
    if as_json:
        typer.echo(json_text(found))
        return
    typer.echo(f"job {found.job_id}: {one_line(found.job_type)} in queue {one_line(found.queue)}, {found.status.value}")
    for reason in found.reasons:
        typer.echo(f"- {reason.text}")
        if reason.advice is not None:
            typer.echo(f"    -> {reason.advice}")


async def _explained(job_id: int, app: App[Any] | None, dsn: str | None, schema: str | None) -> Explanation:
    if app is not None and dsn is None:
        store = app.store
    else:
        store = PgJobStore(dsn_or_refuse(dsn, os.environ), schema=schema or (app.schema if app else "pqrun"))

    def decode_error(job_type: str, version: int, payload: str) -> str | None:
        handler = app.handlers.get(job_type) if app else None
        if handler is None:
            return "the app has no task of this name"
        try:
            handler.read(payload, version)
        except PayloadVersionError as error:
            return str(error)
        except PayloadDecodeError as error:
            return str(error)
        return None

    async with store:
        return await store.explain(job_id, decode_error=None if app is None else decode_error)
