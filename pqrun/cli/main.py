"""The entry point: commands, ``--version``, and how their errors are told.

Exit codes: 0 done, 1 an error that the message explains, 2 wrong usage, 128 + the signal's number for what was interrupted. Some have
their own: of ``check`` 1 means that it found problems, 2 that it could not look; of ``cancel``, ``retry``, ``delete``, ``move`` and
``prioritize`` 1 means that some jobs were refused, 2 that it was not done; of ``pause`` and ``resume`` 2 means that it was not done, of
``workers set`` 1 that no such worker lives.
"""

import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from pqrun.cli.bench import bench
from pqrun.cli.bulk import cancel, delete, move, prioritize, retry
from pqrun.cli.check import check
from pqrun.cli.demo.command import demo
from pqrun.cli.migrate import migrate
from pqrun.cli.queues import pause, queues, resume
from pqrun.cli.schedules import schedules
from pqrun.cli.worker import worker
from pqrun.cli.workers import workers
from pqrun.errors import OptionError, PqrunError

__all__ = ["cli", "run"]

USAGE_ERROR = 2

cli = typer.Typer(
    name="pqrun",
    help="A typed background-job queue on PostgreSQL for async Python.",
    add_completion=False,
    no_args_is_help=True,
    # Plain text: help and errors go to logs, which have no use for boxes; and rich's tracebacks print local variables.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
cli.command()(migrate)
cli.command()(worker)
cli.command()(check)
cli.command()(cancel)
cli.command()(retry)
cli.command()(delete)
cli.command()(move)
cli.command()(prioritize)
cli.command()(queues)
cli.command()(pause)
cli.command()(resume)
cli.command()(demo)
cli.command()(bench)
cli.add_typer(schedules)
cli.add_typer(workers)


def _tell_version(wanted: bool) -> None:
    if not wanted:
        return
    try:
        typer.echo(f"pqrun {version('pqrun')}")
    except PackageNotFoundError:  # run from a source tree
        typer.echo("pqrun, not installed")
    raise typer.Exit


@cli.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def run() -> None:
    """Run the command line of this process and exit; what pqrun raises on purpose is told without a traceback."""
    try:
        cli()
    except PqrunError as error:
        typer.echo(f"pqrun: {error}", err=True)
        sys.exit(USAGE_ERROR if isinstance(error, OptionError) else 1)
