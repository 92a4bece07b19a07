"""``pqrun workers``: the worker processes that the database knows, living and dead, and what each is to serve."""

from typing import Annotated

import msgspec
import typer

from pqrun.cli.queues import parse_queues
from pqrun.cli.showing import DsnOption, JsonOption, SchemaOption, instant, json_text, on_store, print_table, table
from pqrun.errors import OptionError
from pqrun.job.moments import brief
from pqrun.job.registered import RegisteredWorker
from pqrun.job.serving import Queues
from pqrun.job.storable import one_line
from pqrun.workers import Workers

__all__ = ["workers"]

HEADINGS = ("id", "name", "host", "pid", "state", "beat", "since", "running", "at once", "queues", "tasks")

NO_SUCH_WORKER = 1


workers = typer.Typer(name="workers", invoke_without_command=True, rich_markup_mode=None)


@workers.callback()
def list_all(
    context: typer.Context, dsn: DsnOption = None, schema: SchemaOption = "pqrun", as_json: JsonOption = False
) -> None:
    """List workers: living, silent (no recent beat) and dead, with what they serve and hold."""
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
    which = int(worker) if worker.isascii() and worker.isdigit() and len(worker) < 19 else worker
    told = on_store(dsn, schema, lambda store: Workers(store).set(which, queues=named, concurrency=number))
    if not told:
        typer.echo(f"pqrun: no worker {one_line(worker)} lives", err=True)
        raise typer.Exit(NO_SUCH_WORKER)
    typer.echo(f"told {len(told)} {'worker' if len(told) == 1 else 'workers'}: {', '.join(map(str, told))}")


def _queues(worker: RegisteredWorker) -> str:
    if worker.queues is None:
        return "all"
    return ",".join(f"{name}:{worker.slots[name]}" if name in worker.slots else name for name in worker.queues)


def _state(worker: RegisteredWorker) -> str:
    return "alive" if worker.is_alive else "silent" if worker.dead_at is None else "dead"


def _tasks(worker: RegisteredWorker) -> list[str]:
    """The user's; those of pqrun itself every worker has."""
    return [name for name in worker.job_types if not name.startswith("__")]


def _cells(worker: RegisteredWorker) -> tuple[object, ...]:
    return (
        worker.id,
        worker.worker_id,
        worker.hostname,
        worker.pid,
        _state(worker),
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
        "state": _state(worker),
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
