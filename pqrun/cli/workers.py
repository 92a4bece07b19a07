"""``pqrun workers``: which workers live, and what each is to serve."""

from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pqrun.cli.database import DsnOption
from pqrun.cli.queues import SchemaOption, ask_store, parse_queues, print_json
from pqrun.job.serving import Queues
from pqrun.job.storable import one_line
from pqrun.job.worker import WorkerState
from pqrun.workers import Workers

__all__ = ["workers"]

NO_SUCH_WORKER = 1

workers = typer.Typer(
    name="workers",
    help="See the workers that live, and change what they serve: list, set.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Json = Annotated[bool, typer.Option("--json", help="JSON on stdout instead of text.")]


@workers.command("list")
def list_all(as_json: Json = False, dsn: DsnOption = None, schema: SchemaOption = "pqrun") -> None:
    """Show the workers that live: what they serve, and how much they run. Exit code 0: done; 2: it could not look."""
    found = ask_store(dsn, schema, lambda store: Workers(store).list())
    if as_json:
        print_json(found)
        return
    table = Table("id", "worker", "queues", "at once", "running", "since", box=None, header_style="bold")
    for one in found:
        cells = (
            str(one.id),
            one.worker_id,
            _queues(one),
            "" if one.concurrency is None else str(one.concurrency),
            str(one.running),
            f"{one.started_at:%Y-%m-%d %H:%M:%S%z}",
        )
        table.add_row(*(escape(one_line(cell)) for cell in cells))
    Console().print(table if found else "no workers")


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
    """Change what running workers serve; each follows within about a second, running jobs go on.

    Exit code 0: told; 1: no such worker lives; 2: it could not be done. Example: pqrun workers set web-1 --queues default:20,mail:4
    """
    named: Queues | msgspec.UnsetType = msgspec.UNSET if queues is None else parse_queues(queues)
    number = msgspec.UNSET if concurrency is None else concurrency
    which = int(worker) if worker.isascii() and worker.isdigit() and len(worker) < 19 else worker
    told = ask_store(dsn, schema, lambda store: Workers(store).set(which, queues=named, concurrency=number))
    if not told:
        typer.echo(f"pqrun: no worker {one_line(worker)} lives", err=True)
        raise typer.Exit(NO_SUCH_WORKER)
    typer.echo(f"told {len(told)} {'worker' if len(told) == 1 else 'workers'}: {', '.join(map(str, told))}")


def _queues(one: WorkerState) -> str:
    if one.queues is None:
        return "all"
    return ", ".join(f"{name}:{one.slots[name]}" if name in one.slots else name for name in one.queues)
