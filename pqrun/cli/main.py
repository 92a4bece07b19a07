"""The entry point: commands, ``--version``, and how their errors are told.

Exit codes: 0 done, 1 an error that the message explains, 2 wrong usage, 128 + the signal's number for what was interrupted. Some have
their own (docs/cli.md has all): of ``check`` 1 means that it found problems, 2 that it could not look; of ``cancel``, ``retry``,
``delete``, ``move`` and ``prioritize`` 1 means that some jobs were refused, 2 that it was not done; of ``defer`` 1 that the job which it
waited for did not succeed; of ``watch`` 1 that the job is FAILED or CANCELLED, 2 that it was not seen to its end;
of ``workers set``, ``pause``, ``resume`` and ``drain`` 1 that no such worker lives, of ``workers stacks`` also that one did not answer.
"""

import sys
from collections.abc import Callable
from typing import Annotated

import typer

from pqrun.cli.bench import bench
from pqrun.cli.bulk import cancel, delete, move, prioritize, retry
from pqrun.cli.check import check
from pqrun.cli.defer import defer
from pqrun.cli.demo.command import demo
from pqrun.cli.dev.command import dev
from pqrun.cli.doctor import doctor
from pqrun.cli.examples import epilog
from pqrun.cli.init import init
from pqrun.cli.jobs import jobs
from pqrun.cli.migrate import migrate
from pqrun.cli.queues import pause, queues, resume
from pqrun.cli.schedules import schedules
from pqrun.cli.show import show
from pqrun.cli.tasks import tasks
from pqrun.cli.top.command import top
from pqrun.cli.watch import watch
from pqrun.cli.web import web
from pqrun.cli.why import why
from pqrun.cli.worker import worker
from pqrun.cli.workers import workers
from pqrun.errors import OptionError, PqrunError
from pqrun.installed import installed_version

__all__ = ["cli", "run"]

USAGE_ERROR = 2

cli = typer.Typer(
    name="pqrun",
    help="A typed background-job queue on PostgreSQL for async Python.",
    no_args_is_help=True,
    # Plain text: help and errors go to logs, which have no use for boxes; and rich's tracebacks print local variables.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
_COMMANDS: tuple[Callable[..., None], ...] = (
    init,
    dev,
    migrate,
    worker,
    web,
    check,
    doctor,
    tasks,
    defer,
    jobs,
    show,
    watch,
    why,
    top,
    cancel,
    retry,
    delete,
    move,
    prioritize,
    queues,
    pause,
    resume,
    demo,
    bench,
)
for _command in _COMMANDS:
    cli.command(epilog=epilog(_command.__name__))(_command)
cli.add_typer(workers, epilog=epilog("workers"))
cli.add_typer(schedules, epilog=epilog("schedules"))


def _tell_version(wanted: bool) -> None:
    if not wanted:
        return
    version = installed_version()
    typer.echo("pqrun, not installed" if version is None else f"pqrun {version}")
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
