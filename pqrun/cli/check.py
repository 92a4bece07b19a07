"""``pqrun check module:app``: whether the code that is about to be deployed can run every job that waits.

Meant for CI: 0 it can, 1 there are problems, 2 it could not be found out. What was found goes to stdout, how far it has come to stderr.
"""

import json
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from pqrun.app import App
from pqrun.check import (
    SAMPLE_DEFAULT,
    CheckProgress,
    CheckReport,
    ShapeChange,
    UndecodableJobs,
    UnservedJobs,
    check_jobs,
)
from pqrun.cli.database import DsnOption, dsn_or_refuse
from pqrun.cli.signals import Interrupts
from pqrun.cli.target import load_app
from pqrun.errors import PqrunError
from pqrun.job.shape import FieldChange
from pqrun.job.storable import one_line
from pqrun.store import PgJobStore

__all__ = ["check"]

PROBLEMS = 1
COULD_NOT_CHECK = 2

PHASES = {"counting": "counting", "sample": "decoding a sample", "all": "decoding all"}

Target = Annotated[str, typer.Argument(metavar="MODULE:APP", help="The App, such as shop.jobs:jobs.")]
Tasks = Annotated[
    list[str] | None, typer.Option("--task", metavar="NAME", help="Only this task; may be given several times.")
]
Sample = Annotated[int, typer.Option(min=1, metavar="N", help="Jobs of each task and version that are decoded first.")]
SampleOnly = Annotated[bool, typer.Option("--sample-only", help="Decode the sample and no more.")]
Strict = Annotated[
    bool, typer.Option("--strict", help="Every change of a payload's shape is a problem, additive ones too.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout instead of text.")]


def check(
    target: Target,
    dsn: DsnOption = None,
    task: Tasks = None,
    sample: Sample = SAMPLE_DEFAULT,
    sample_only: SampleOnly = False,
    strict: Strict = False,
    as_json: Json = False,
) -> None:
    """Say whether this code can run every job that waits in the database, before it is deployed. Reads only.

    Exit code 0: it can; 1: there are problems (with --strict also notes); 2: it could not be found out.
    """
    with Interrupts() as interrupts:
        try:
            app = load_app(target)
            report = interrupts.run(_report(app, dsn, tasks=task or None, sample=sample, sample_only=sample_only))
        except PqrunError as error:
            _refuse(str(error), as_json=as_json)
        except (typer.Exit, typer.BadParameter):
            raise
        except Exception as error:  # noqa: BLE001  # user code, while it is imported: code 1 would say that jobs are broken
            traceback.print_exc()
            _refuse(f"{target} could not be checked: {type(error).__name__}", as_json=as_json)
        typer.echo(json.dumps(_as_json(report), indent=2) if as_json else "\n".join(_lines(report)))
        if not report.is_clean or (strict and report.shapes):
            raise typer.Exit(PROBLEMS)


def _refuse(message: str, *, as_json: bool) -> NoReturn:
    typer.echo(f"pqrun: {message}", err=True)
    if as_json:
        typer.echo(json.dumps({"clean": None, "error": message}, indent=2))
    raise typer.Exit(COULD_NOT_CHECK)


async def _report(
    app: App[Any], dsn: str | None, *, tasks: Sequence[str] | None, sample: int, sample_only: bool
) -> CheckReport:
    with _progress() as tell:
        if dsn is None:
            async with app:
                return await app.check(tasks=tasks, sample=sample, sample_only=sample_only, on_progress=tell)
        async with PgJobStore(dsn_or_refuse(dsn, os.environ), schema=app.schema) as store:
            return await check_jobs(
                store, app.handlers, tasks=tasks, sample=sample, sample_only=sample_only, on_progress=tell
            )


class _Speed(ProgressColumn):
    """Jobs per second."""

    def render(self, task: Task) -> Text:
        """Return the cell."""
        return Text("" if task.speed is None else f"{task.speed:,.0f} jobs/s", style="progress.data.speed")


@contextmanager
def _progress() -> Iterator[Callable[[CheckProgress], None]]:
    """Show on a terminal how far it has come; anywhere else only what the sample has found."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Speed(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        bars: dict[str, Any] = {}
        told = False

        def tell(news: CheckProgress) -> None:
            nonlocal told
            if news.phase not in bars:
                bars[news.phase] = progress.add_task(PHASES[news.phase], total=news.total)
            progress.update(bars[news.phase], completed=news.done, total=news.total)
            if news.phase == "sample" and news.undecodable and not told:
                told = True
                console.print(f"the sample: {_undecodable_line(news.undecodable[0])}", markup=False)

        yield tell


def _as_json(report: CheckReport) -> dict[str, object]:
    """Return what ``--json`` prints: the fields of the report under their own names, ``clean`` and ``error``; names that stay."""
    return {"clean": report.is_clean, "error": None, **msgspec.to_builtins(report)}


def _lines(report: CheckReport) -> Iterator[str]:
    yield _summary(report)
    for undecodable in report.undecodable:
        yield from _undecodable(undecodable)
    for unserved in report.unserved:
        yield from _unserved(unserved)
    for shape in report.shapes:
        yield from _shape(shape)
    if report.is_clean:
        yield "clean: this code can run them" + (", as far as the sample shows" if report.is_sample else "")


def _summary(report: CheckReport) -> str:
    jobs = _jobs(report.waiting)
    if not report.is_sample:
        return f"{jobs} waiting"
    return f"{jobs} waiting, {report.decoded:,} of them decoded as a sample"


def _undecodable_line(found: UndecodableJobs) -> str:
    versions = ", ".join(map(str, found.versions))
    return f"{one_line(found.job_type)}: {_jobs(found.count)} cannot be decoded (payload version {versions}): {found.first_error}"


def _undecodable(found: UndecodableJobs) -> Iterator[str]:
    more = f" and {found.count - len(found.ids):,} more" if found.count > len(found.ids) else ""
    yield f"PROBLEM {_undecodable_line(found)}"
    yield f"    ids {', '.join(map(str, found.ids))}{more}"
    yield "    -> keep reading them (a default, or version= and upgrades=), let code of before finish them, or cancel them"


def _unserved(found: UnservedJobs) -> Iterator[str]:
    queues = ", ".join(map(one_line, found.queues))
    yield f"PROBLEM {one_line(found.job_type)}: {_jobs(found.count)} in {queues}, and no task of the app serves them"
    yield "    -> keep the task (name= holds its name) until they are done, import the module that declares it, or cancel them"


def _shape(found: ShapeChange) -> Iterator[str]:
    version = f"version {found.version}"
    if found.noted_version == found.version:
        what = f"the payload of {version} looks different from what its workers have noted"
    else:
        what = f"the payload has changed from version {found.noted_version} to {version}"
    yield f"{'PROBLEM' if found.is_problem else 'note'} {one_line(found.job_type)}: {what}"
    for change in found.changes:
        yield f"    {_change(change)}"
    yield f"    -> {found.advice}"


def _change(change: FieldChange) -> str:
    field = one_line(change.field)
    match change.change:
        case "added":
            return f"{field}: new, {'with a default' if change.is_additive else 'required'} ({change.after})"
        case "removed":
            return f"{field}: gone (was {change.before})"
        case "type":
            return f"{field}: {change.before}, now {change.after}"
        case "required":
            return f"{field}: required now ({change.after})"
        case _:
            return f"{field}: has a default now ({change.after})"


def _jobs(count: int) -> str:
    return f"{count:,} job" if count == 1 else f"{count:,} jobs"
