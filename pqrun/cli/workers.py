"""``pqrun workers``: the worker processes that the database knows, living and dead."""

import typer

from pqrun.cli.showing import DsnOption, JsonOption, SchemaOption, instant, json_text, on_store, print_table, table
from pqrun.job.moments import brief
from pqrun.job.registered import RegisteredWorker

__all__ = ["workers"]

HEADINGS = ("id", "name", "host", "pid", "state", "beat", "since", "running", "queues", "tasks")


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
        "all" if worker.queues is None else ",".join(worker.queues),
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
        "tasks": _tasks(worker),
        "since": instant(worker.started_at),
        "beat_at": instant(worker.beat_at),
        "beat_age_seconds": round(worker.beat_age_seconds, 3),
        "dead_at": instant(worker.dead_at),
        "running": worker.running,
    }
