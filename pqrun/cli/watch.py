"""``pqrun watch ID``: how far a job has come, until it has ended.

0 it is DONE, 1 it is FAILED or CANCELLED, 2 wrong usage, or it could not be watched to its end. Reports go to stdout: a bar on a terminal,
else a line for each; errors go to stderr.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Final, TypeAlias

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from pqrun.cli.database import DsnOption, dsn_or_refuse
from pqrun.cli.signals import Interrupts
from pqrun.errors import JobNotFound, OptionError, PqrunError
from pqrun.job.progress import Progress
from pqrun.job.record import Job
from pqrun.job.state import Status
from pqrun.job.storable import one_line
from pqrun.store import PgJobStore

__all__ = ["watch"]

NOT_DONE: Final = 1
NOT_WATCHED: Final = 2

JobId: TypeAlias = Annotated[int, typer.Argument(metavar="ID", help="The id of the job.")]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="One JSON object per line: each report, then the end.")]
Timeout: TypeAlias = Annotated[
    float | None,
    typer.Option("--timeout", metavar="SECONDS", show_default=False, help="Give up after so long; 0: look once."),
]
Every: TypeAlias = Annotated[float, typer.Option("--every", metavar="SECONDS", help="Between two looks.")]
SchemaOption: TypeAlias = Annotated[
    str, typer.Option("--schema", metavar="NAME", help="The schema that holds the tables.")
]

Show: TypeAlias = Callable[[Progress], None]


def watch(
    job_id: JobId,
    as_json: Json = False,
    timeout: Timeout = None,
    every: Every = 0.5,
    dsn: DsnOption = None,
    schema: SchemaOption = "pqrun",
) -> None:
    """Follow a job until it has ended. Exit code 0: DONE; 1: FAILED or CANCELLED; 2: wrong usage, or not watched to the end."""
    with Interrupts() as interrupts:
        try:
            if timeout is not None and not timeout >= 0:
                raise OptionError(f"--timeout: expected seconds, 0 or more; got {timeout:g}")
            store = PgJobStore(dsn_or_refuse(dsn, os.environ), schema=schema)
            job = interrupts.run(_follow(store, job_id, timeout, every, as_json=as_json))
        except PqrunError as error:
            typer.echo(f"pqrun: {error}", err=True)
            if as_json:
                typer.echo(msgspec.json.encode({"error": str(error)}).decode())
            raise typer.Exit(NOT_WATCHED) from None
    typer.echo(_end_as_json(job) if as_json else _end(job))
    if job.status is not Status.DONE:
        raise typer.Exit(NOT_DONE)


async def _follow(store: PgJobStore, job_id: int, timeout: float | None, every: float, *, as_json: bool) -> Job:
    """Show each report, and return the job when it has ended."""
    async with store:
        with _showing(as_json=as_json) as show:
            async for progress in store.watch(job_id, timeout=timeout, every=every):
                show(progress)
        job = await store.get(job_id)
    if job is None:
        raise JobNotFound(f"job {job_id} was deleted, or removed by retention, as soon as it had ended", job_id)
    return job


@contextmanager
def _showing(*, as_json: bool) -> Iterator[Show]:
    if as_json:
        yield lambda progress: typer.echo(msgspec.json.encode(progress).decode())
    elif not sys.stdout.isatty():
        yield lambda progress: typer.echo(_line(progress))
    else:
        columns = (
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
        )
        with Bars(*columns, console=Console(highlight=False)) as bars:
            bar = bars.add_task("no report yet", total=None)
            yield lambda progress: bars.update(bar, total=1.0, completed=progress.value, description=_said(progress))


def _said(progress: Progress) -> str:
    message = one_line(progress.message or "")
    attempt = f"attempt {progress.attempt}" if progress.attempt > 1 else ""
    return "  ".join(filter(None, (message, attempt)))


def _line(progress: Progress) -> str:
    return f"{progress.value:>6.1%}  {_said(progress)}".rstrip()


def _end(job: Job) -> str:
    error = f": {job.error_summary}" if job.status is Status.FAILED and job.error_summary else ""
    return f"{job.status.value}{one_line(error)}"


def _end_as_json(job: Job) -> str:
    end = {"status": job.status.value, "attempts": job.attempts, "error": job.error_summary}
    return msgspec.json.encode(end).decode()
