"""``pqrun queues``, ``pause`` and ``resume``: what waits where, and what no worker is to start for now.

0 it is as asked for, whether or not it was before; 2 wrong usage, or it could not be done.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeAlias, TypeVar

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pqrun.cli.database import DsnOption, dsn_or_refuse
from pqrun.errors import OptionError, PqrunError
from pqrun.job.pause import Pause, PauseKind, check_pausable
from pqrun.job.queue import QueueState
from pqrun.job.storable import one_line
from pqrun.store import PgJobStore

__all__ = ["SchemaOption", "ask_store", "parse_queues", "pause", "print_json", "queues", "resume"]

T = TypeVar("T")

NOT_DONE = 2

SchemaOption: TypeAlias = Annotated[
    str, typer.Option("--schema", metavar="NAME", help="The schema that holds the tables.")
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="JSON on stdout instead of text.")]
Queue: TypeAlias = Annotated[str | None, typer.Option("--queue", metavar="NAME", help="The queue.")]
Task: TypeAlias = Annotated[str | None, typer.Option("--task", metavar="JOB_TYPE", help="Or the task, in all queues.")]


def queues(as_json: Json = False, dsn: DsnOption = None, schema: SchemaOption = "pqrun") -> None:
    """Show each queue: what waits and runs, how long the first has waited, what is paused, and who serves it.

    A count with a + is a lower bound. Example: pqrun queues --json
    """

    async def look(store: PgJobStore) -> tuple[list[QueueState], list[Pause]]:
        return await store.queues(), await store.paused()

    found, paused = ask_store(dsn, schema, look)
    if as_json:
        print_json({"queues": found, "paused": paused})
        return
    table = Table(
        "queue",
        "ready",
        "running",
        "later",
        "failing",
        "oldest",
        "workers",
        "slots",
        "state",
        box=None,
        header_style="bold",
    )
    for one in found:
        table.add_row(*(escape(one_line(cell)) for cell in _cells(one)))
    Console().print(table if found else "no queues")
    for held in paused:
        if held.kind == "task":
            typer.echo(f"task {one_line(held.name)}: {_paused(held.reason)} since {held.paused_at:%Y-%m-%d %H:%M:%S%z}")


def pause(
    queue: Queue = None,
    task: Task = None,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Why, for those who look.")] = None,
    as_json: Json = False,
    dsn: DsnOption = None,
    schema: SchemaOption = "pqrun",
) -> None:
    """Let no worker start jobs of a queue or task until it is resumed; running jobs go on.

    Exit code 0: it is paused; 2: it could not be done. Example: pqrun pause --queue mail --reason "provider down"
    """

    async def act(store: PgJobStore) -> bool:
        kind, name = check_pausable(queue, task)
        if kind == "queue":
            return await store.pause(queue=name, reason=reason)
        return await store.pause(task=name, reason=reason)

    _tell(queue, task, ask_store(dsn, schema, act), ("paused", "was paused already"), as_json=as_json)


def resume(
    queue: Queue = None,
    task: Task = None,
    as_json: Json = False,
    dsn: DsnOption = None,
    schema: SchemaOption = "pqrun",
) -> None:
    """End the pause of a queue or task.

    Exit code 0: it is not paused; 2: it could not be done. Example: pqrun resume --queue mail
    """

    async def act(store: PgJobStore) -> bool:
        kind, name = check_pausable(queue, task)
        return await (store.resume(queue=name) if kind == "queue" else store.resume(task=name))

    _tell(queue, task, ask_store(dsn, schema, act), ("resumed", "was not paused"), as_json=as_json)


def parse_queues(text: str) -> dict[str, int | None]:
    """Read ``default:10,mail:2,other``: names, and the numbers of those that have one; raises OptionError."""
    found: dict[str, int | None] = {}
    for part in text.split(","):
        name, colon, number = part.strip().rpartition(":")
        if not colon:
            name, number = number, ""
        if not name and not number:
            continue
        if colon and not (number.isascii() and number.isdigit() and len(number) < 10):
            raise OptionError(f"--queues: expected NAME or NAME:NUMBER, separated by commas; got {part.strip()!r:.80}")
        found[name.strip()] = int(number) if colon else None
    return found


def ask_store(dsn: str | None, schema: str, act: Callable[[PgJobStore], Awaitable[T]]) -> T:
    """Do it with an open store; what pqrun raises is told, and ends the command with exit code 2."""

    async def run() -> T:
        async with PgJobStore(dsn_or_refuse(dsn, os.environ), schema=schema) as store:
            return await act(store)

    try:
        return asyncio.run(run())
    except PqrunError as error:
        typer.echo(f"pqrun: {error}", err=True)
        raise typer.Exit(NOT_DONE) from None


def print_json(value: object) -> None:
    """Print JSON for people and programs; its names are those of the values, and stay."""
    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def _tell(queue: str | None, task: str | None, is_changed: bool, words: tuple[str, str], *, as_json: bool) -> None:
    kind: PauseKind = "queue" if task is None else "task"
    name = queue or task or ""
    if as_json:
        print_json({"kind": kind, "name": name, "changed": is_changed})
        return
    typer.echo(f"{kind} {one_line(name)} {words[0] if is_changed else words[1]}")


def _cells(one: QueueState) -> tuple[str, ...]:
    def count(name: str) -> str:
        return f"{getattr(one, name):,}{'+' if name in one.at_least else ''}"

    oldest = "" if one.oldest_ready_seconds is None else f"{max(one.oldest_ready_seconds, 0.0):.0f} s"
    state = "unserved" if one.paused_at is None and not one.workers else ""
    return (
        one.name,
        count("ready"),
        count("running"),
        count("scheduled"),
        count("failing"),
        oldest,
        str(one.workers),
        str(one.slots),
        state if one.paused_at is None else _paused(one.reason),
    )


def _paused(reason: str | None) -> str:
    return "paused" if reason is None else f"paused: {reason}"
