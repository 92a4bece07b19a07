"""``pqrun workers``: the worker processes that the database knows, what each is to serve and to do, and where its handlers are."""

from collections.abc import Awaitable, Callable
from typing import Annotated, TypeAlias, TypeVar

import msgspec
import typer

from pqrun.cli.queues import parse_queues
from pqrun.cli.showing import DsnOption, JsonOption, SchemaOption, instant, json_text, on_store, print_table, table
from pqrun.errors import OptionError
from pqrun.job.moments import brief
from pqrun.job.registered import RegisteredWorker
from pqrun.job.serving import Queues
from pqrun.job.storable import one_line
from pqrun.store import PgJobStore
from pqrun.workers import Which, Workers, WorkerStacks

__all__ = ["workers"]

HEADINGS = ("id", "name", "host", "pid", "version", "state", "beat", "since", "running", "at once", "queues", "tasks")

NO_SUCH_WORKER = 1

Worker: TypeAlias = Annotated[
    str | None,
    typer.Argument(metavar="WORKER", show_default=False, help="The id, or the name, which several may share."),
]
Answers = TypeVar("Answers", tuple[int, ...], list[WorkerStacks])

All: TypeAlias = Annotated[bool, typer.Option("--all", help="All living workers.")]


workers = typer.Typer(name="workers", invoke_without_command=True, rich_markup_mode=None)


@workers.callback()
def list_all(
    context: typer.Context, dsn: DsnOption = None, schema: SchemaOption = "pqrun", as_json: JsonOption = False
) -> None:
    """List workers: living, paused, draining, silent (no recent beat) and dead, with what they serve and hold."""
    if context.invoked_subcommand is not None:
        return
    found = on_store(dsn, schema, lambda store: store.list_workers())
    if as_json:
        typer.echo(json_text([_facts(worker) for worker in found]))
    elif found:
        print_table(table(HEADINGS, map(_cells, found)))
    else:
        typer.echo("no workers")


@workers.command("set")
def set_one(
    worker: Annotated[str, typer.Argument(metavar="WORKER", help="The id, or the name, which several may share.")],
    queues: Annotated[
        str | None, typer.Option(metavar="A,B:2", help="Queues to serve from now on, as for pqrun worker.")
    ] = None,
    concurrency: Annotated[int | None, typer.Option(help="Jobs at once, all together.")] = None,
    dsn: DsnOption = None,
    schema: SchemaOption = "pqrun",
) -> None:
    """Change what running workers serve; each follows within about a second, and running jobs go on. Exit code 1: no such worker lives."""
    named: Queues | msgspec.UnsetType = msgspec.UNSET if queues is None else parse_queues(queues)
    number = msgspec.UNSET if concurrency is None else concurrency
    if queues is None and concurrency is None:
        raise OptionError("--queues, --concurrency: give one of them, or both")
    _tell(worker, False, dsn, schema, lambda workers, which: workers.set(which, queues=named, concurrency=number))


@workers.command("pause")
def pause_one(worker: Worker = None, every: All = False, dsn: DsnOption = None, schema: SchemaOption = "pqrun") -> None:
    """Let running workers claim no jobs until they are resumed; running jobs go on. Exit code 1: no such worker lives."""
    _tell(worker, every, dsn, schema, lambda workers, which: workers.set(which, fetching=False))


@workers.command("resume")
def resume_one(
    worker: Worker = None, every: All = False, dsn: DsnOption = None, schema: SchemaOption = "pqrun"
) -> None:
    """Let paused workers claim jobs again. Exit code 1: no such worker lives."""
    _tell(worker, every, dsn, schema, lambda workers, which: workers.set(which, fetching=True))


@workers.command("drain")
def drain_one(worker: Worker = None, every: All = False, dsn: DsnOption = None, schema: SchemaOption = "pqrun") -> None:
    """Let running workers stop for good, as SIGTERM does; their processes end. Exit code 1: no such worker lives."""
    _tell(worker, every, dsn, schema, lambda workers, which: workers.drain(which))


@workers.command("stacks")
def show_stacks(
    worker: Worker = None,
    every: All = False,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="How long to wait for an answer.")] = 5.0,
    dsn: DsnOption = None,
    schema: SchemaOption = "pqrun",
    as_json: JsonOption = False,
) -> None:
    """Show where the running handlers of workers are, without values. Exit code 1: no such worker lives, or one did not answer."""
    found = _asked(worker, every, dsn, schema, lambda workers, which: workers.stacks(which, timeout=timeout))
    if as_json:
        typer.echo(json_text(found))
    for one in found:
        who = f"worker {one_line(one.worker_id)} ({one.id})"
        if one.text is None:
            typer.echo(f"pqrun: {who} did not answer within {timeout:g} s", err=True)
        elif not as_json:
            typer.echo(f"{who}, {instant(one.taken_at)}: {one.text}")
    if any(one.text is None for one in found):
        raise typer.Exit(NO_SUCH_WORKER)


def _tell(
    worker: str | None,
    every: bool,
    dsn: str | None,
    schema: str,
    act: Callable[[Workers, Which], Awaitable[tuple[int, ...]]],
) -> None:
    told = _asked(worker, every, dsn, schema, act)
    typer.echo(f"told {len(told)} {'worker' if len(told) == 1 else 'workers'}: {', '.join(map(str, told))}")


def _asked(
    worker: str | None,
    every: bool,
    dsn: str | None,
    schema: str,
    act: Callable[[Workers, Which], Awaitable[Answers]],
) -> Answers:
    """Do it for the workers that are meant; exit where none lives."""
    if (worker is None) is not every:
        raise OptionError("WORKER, --all: give one of them")

    async def run(store: PgJobStore) -> Answers:
        which: Which = [one.id for one in await store.list_workers()] if worker is None else _which(worker)
        return await act(Workers(store), which)

    found = on_store(dsn, schema, run)
    if not found:
        typer.echo(
            "pqrun: no worker lives" if worker is None else f"pqrun: no worker {one_line(worker)} lives", err=True
        )
        raise typer.Exit(NO_SUCH_WORKER)
    return found


def _which(worker: str) -> int | str:
    return int(worker) if worker.isascii() and worker.isdigit() and len(worker) < 19 else worker


def _queues(worker: RegisteredWorker) -> str:
    if worker.queues is None:
        return "all"
    return ",".join(f"{name}:{worker.slots[name]}" if name in worker.slots else name for name in worker.queues)


def _tasks(worker: RegisteredWorker) -> list[str]:
    """The user's; those of pqrun itself every worker has."""
    return [name for name in worker.job_types if not name.startswith("__")]


def _cells(worker: RegisteredWorker) -> tuple[object, ...]:
    return (
        worker.id,
        worker.worker_id,
        worker.hostname,
        worker.pid,
        worker.version,
        worker.state,
        f"{brief(worker.beat_age_seconds)} ago",
        instant(worker.started_at.replace(microsecond=0)),
        worker.running,
        worker.concurrency,
        _queues(worker),
        ",".join(_tasks(worker)),
    )


def _facts(worker: RegisteredWorker) -> dict[str, object]:
    return {
        "id": worker.id,
        "name": worker.worker_id,
        "host": worker.hostname,
        "pid": worker.pid,
        "version": worker.version,
        "state": worker.state,
        "fetching": worker.fetching,
        "queues": worker.queues,
        "slots": worker.slots,
        "concurrency": worker.concurrency,
        "wanted": worker.wanted,
        "tasks": _tasks(worker),
        "since": instant(worker.started_at),
        "beat_at": instant(worker.beat_at),
        "beat_age_seconds": round(worker.beat_age_seconds, 3),
        "dead_at": instant(worker.dead_at),
        "running": worker.running,
    }
