"""``pqrun cancel``, ``retry``, ``delete``, ``move`` and ``prioritize``: one job, many by id, or all that conditions name.

0 it was done to all of them, 1 some were refused, 2 wrong usage, or it could not be done to the end. What became of them goes to stdout,
how far it has come to stderr.
"""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Final, NoReturn, TypeAlias

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from pqrun.cli.database import DsnOption, dsn_or_refuse
from pqrun.cli.filtering import (
    AllOption,
    Before,
    Conditions,
    Error,
    Ids,
    Limit,
    Payload,
    Query,
    Queue,
    Since,
    State,
    Type,
    jobs_meant,
)
from pqrun.cli.signals import Interrupts
from pqrun.errors import PqrunError
from pqrun.job.bulk import BulkProgress, BulkReport, Refusal, RefusalReason
from pqrun.job.filter import JobFilter
from pqrun.store import PgJobStore
from pqrun.store.selection import BulkOptions, Selection

__all__ = ["cancel", "delete", "move", "prioritize", "retry"]

SOME_REFUSED = 1
NOT_DONE = 2

REFUSALS_SHOWN: Final = 20

DONE: Final = {
    "cancel": ("cancelled", "would be cancelled"),
    "retry": ("made ready again", "would be made ready again"),
    "delete": ("deleted", "would be deleted"),
    "move": ("moved", "would be moved"),
    "prioritize": ("given the priority", "would be given the priority"),
}

SchemaOption: TypeAlias = Annotated[
    str, typer.Option("--schema", metavar="NAME", help="The schema that holds the tables.")
]
DryRun: TypeAlias = Annotated[bool, typer.Option("--dry-run", help="Change nothing; say what would be done.")]
Yes: TypeAlias = Annotated[
    bool, typer.Option("--yes", help="Do not ask. Asked is on a terminal alone, and not for ids.")
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="One JSON object on stdout instead of text.")]
Force: TypeAlias = Annotated[
    bool, typer.Option("--force", help="DONE ones too, by id or with --state done; their results are lost.")
]
Waiting: TypeAlias = Annotated[
    bool, typer.Option("--waiting", help="Those too that have not started; times are of their deferring then.")
]
ToQueue: TypeAlias = Annotated[str, typer.Option("--to", metavar="QUEUE", help="The queue to move them to.")]
ToPriority: TypeAlias = Annotated[int, typer.Option("--to", metavar="PRIORITY", help="A smallint; higher first.")]

Act: TypeAlias = Callable[[Selection, BulkOptions], Awaitable[BulkReport]]


class _Run(msgspec.Struct, frozen=True, kw_only=True):
    """How to go about it."""

    dsn: str | None
    schema: str
    limit: int | None
    dry_run: bool
    yes: bool
    as_json: bool


def cancel(
    ids: Ids = None,
    state: State = None,
    type_: Type = None,
    queue: Queue = None,
    error: Error = None,
    since: Since = None,
    before: Before = None,
    payload: Payload = None,
    query: Query = None,
    all_: AllOption = False,
    limit: Limit = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
    dsn: DsnOption = None,
    schema: SchemaOption = "pqrun",
) -> None:
    """Cancel jobs: at once those that have not started; running ones are asked to stop. Exit code 0: all; 1: some refused; 2: not done."""
    conditions = Conditions(ids, state, type_, queue, error, since, before, payload, all_, query)
    run = _Run(dsn=dsn, schema=schema, limit=limit, dry_run=dry_run, yes=yes, as_json=as_json)
    _command(run, conditions, lambda jobs, options: jobs.cancel(**options))


def retry(
    ids: Ids = None,
    state: State = None,
    type_: Type = None,
    queue: Queue = None,
    error: Error = None,
    since: Since = None,
    before: Before = None,
    payload: Payload = None,
    query: Query = None,
    all_: AllOption = False,
    limit: Limit = None,
    force: Force = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
    dsn: DsnOption = None,
    schema: SchemaOption = "pqrun",
) -> None:
    """Make failed and cancelled jobs ready again, no attempt counted. Exit code 0: all; 1: some refused; 2: not done."""
    conditions = Conditions(ids, state, type_, queue, error, since, before, payload, all_, query)
    run = _Run(dsn=dsn, schema=schema, limit=limit, dry_run=dry_run, yes=yes, as_json=as_json)
    _command(run, conditions, lambda jobs, options: jobs.retry(force=force, **options), by_end=True)


def delete(
    ids: Ids = None,
    state: State = None,
    type_: Type = None,
    queue: Queue = None,
    error: Error = None,
    since: Since = None,
    before: Before = None,
    payload: Payload = None,
    query: Query = None,
    all_: AllOption = False,
    limit: Limit = None,
    waiting: Waiting = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
    dsn: DsnOption = None,
    schema: SchemaOption = "pqrun",
) -> None:
    """Delete finished jobs for good, never running ones. Exit code 0: all; 1: some refused; 2: not done."""
    conditions = Conditions(ids, state, type_, queue, error, since, before, payload, all_, query)
    run = _Run(dsn=dsn, schema=schema, limit=limit, dry_run=dry_run, yes=yes, as_json=as_json)
    _command(run, conditions, lambda jobs, options: jobs.delete(waiting=waiting, **options), by_end=not waiting)


def move(
    to: ToQueue,
    ids: Ids = None,
    state: State = None,
    type_: Type = None,
    queue: Queue = None,
    error: Error = None,
    since: Since = None,
    before: Before = None,
    payload: Payload = None,
    query: Query = None,
    all_: AllOption = False,
    limit: Limit = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
    dsn: DsnOption = None,
    schema: SchemaOption = "pqrun",
) -> None:
    """Move jobs that have not started to another queue. Exit code 0: all; 1: some refused; 2: not done."""
    conditions = Conditions(ids, state, type_, queue, error, since, before, payload, all_, query)
    run = _Run(dsn=dsn, schema=schema, limit=limit, dry_run=dry_run, yes=yes, as_json=as_json)
    _command(run, conditions, lambda jobs, options: jobs.move(to, **options))


def prioritize(
    to: ToPriority,
    ids: Ids = None,
    state: State = None,
    type_: Type = None,
    queue: Queue = None,
    error: Error = None,
    since: Since = None,
    before: Before = None,
    payload: Payload = None,
    query: Query = None,
    all_: AllOption = False,
    limit: Limit = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
    dsn: DsnOption = None,
    schema: SchemaOption = "pqrun",
) -> None:
    """Give jobs that have not started another priority. Exit code 0: all; 1: some refused; 2: not done."""
    conditions = Conditions(ids, state, type_, queue, error, since, before, payload, all_, query)
    run = _Run(dsn=dsn, schema=schema, limit=limit, dry_run=dry_run, yes=yes, as_json=as_json)
    _command(run, conditions, lambda jobs, options: jobs.prioritize(to, **options))


def _command(run: _Run, conditions: Conditions, act: Act, *, by_end: bool = False) -> None:
    with Interrupts() as interrupts:
        try:
            which = jobs_meant(conditions, by_end=by_end)
            if isinstance(which, JobFilter) and not (run.dry_run or run.yes) and sys.stdin.isatty():
                _ask(interrupts.run(_report(run, which, act, dry_run=True)))
            report = interrupts.run(_report(run, which, act, dry_run=run.dry_run))
        except PqrunError as error:
            _refuse("; ".join([str(error), *getattr(error, "__notes__", ())]), as_json=run.as_json)
        typer.echo(_json(report) if run.as_json else "\n".join(_lines(report)))
        if not report.is_complete:
            raise typer.Exit(SOME_REFUSED)


def _ask(report: BulkReport) -> None:
    """Let the user see what it would be, and go no further without a yes."""
    if not report.done:
        return
    typer.echo("\n".join(_lines(report)), err=True)
    # Not typer.confirm: it writes to stdout too, where the report alone belongs.
    typer.echo("Do it? [y/N] ", err=True, nl=False)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        typer.echo("pqrun: nothing was done", err=True)
        raise typer.Exit(NOT_DONE)


def _refuse(message: str, *, as_json: bool) -> NoReturn:
    typer.echo(f"pqrun: {message}", err=True)
    if as_json:
        typer.echo(json.dumps({"error": message}, indent=2))
    raise typer.Exit(NOT_DONE)


async def _report(run: _Run, which: JobFilter | list[int], act: Act, *, dry_run: bool) -> BulkReport:
    async with PgJobStore(dsn_or_refuse(run.dsn, os.environ), schema=run.schema) as store:
        done = 0
        with _progress() as show:

            def tell(news: BulkProgress) -> None:
                nonlocal done
                done = news.done
                show(news)

            try:
                return await act(store.select(which, limit=run.limit), {"dry_run": dry_run, "on_progress": tell})
            except asyncio.CancelledError:
                if not dry_run:
                    typer.echo(f"pqrun: interrupted; what was done stays: {done:,} by then", err=True)
                raise


@contextmanager
def _progress() -> Iterator[Callable[[BulkProgress], None]]:
    """Show on a terminal how far it has come."""
    console = Console(stderr=True, highlight=False)
    columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        bar = progress.add_task("looking", total=None)

        def tell(news: BulkProgress) -> None:
            told = f"{news.looked:,} looked at, {news.done:,} done, {news.refused:,} refused"
            progress.update(bar, completed=news.looked, total=news.total, description=told)

        yield tell


def _json(report: BulkReport) -> str:
    """The fields of the report under their own names, and ``error``; names that stay."""
    return json.dumps({"error": None, **msgspec.to_builtins(report, str_keys=True)}, indent=2)


def _lines(report: BulkReport) -> Iterator[str]:
    done, would_be = DONE[report.action]
    yield f"{report.done:,} {'job' if report.done == 1 else 'jobs'} {would_be if report.dry_run else done}"
    if report.requested:
        yield f"    {report.requested:,} of them run: their workers {'would be' if report.dry_run else 'are'} asked to stop them"
    if not report.refused:
        return
    yield f"{report.refused:,} refused: {', '.join(f'{reason.value} {count:,}' for reason, count in report.reasons.items())}"
    for refusal in report.refusals[:REFUSALS_SHOWN]:
        yield f"    {_refusal(refusal)}"
    if report.refused > REFUSALS_SHOWN:
        yield f"    and {report.refused - REFUSALS_SHOWN:,} more"


def _refusal(refusal: Refusal) -> str:
    if refusal.reason is RefusalReason.KEY_TAKEN:
        return f"{refusal.id} {refusal.reason.value}: job {refusal.holder} has its dedupe key"
    return f"{refusal.id} {refusal.reason.value}"
