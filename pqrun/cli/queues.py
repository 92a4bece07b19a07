"""``pqrun queues``, ``pause`` and ``resume``: what waits where, and what no worker is to start for now."""

from typing import Annotated, TypeAlias

import typer

from pqrun.cli.showing import DsnOption, JsonOption, SchemaOption, json_text, on_store, print_table, table
from pqrun.errors import OptionError
from pqrun.job.moments import brief
from pqrun.job.pause import Pause, PauseKind
from pqrun.job.queue import QueueState
from pqrun.job.storable import one_line
from pqrun.store import PgJobStore

__all__ = ["HEADINGS", "parse_queues", "pause", "queue_cells", "queues", "resume"]

HEADINGS = ("queue", "ready", "running", "later", "failing", "oldest", "workers", "slots", "state")

Queue: TypeAlias = Annotated[str | None, typer.Option("--queue", metavar="NAME", help="The queue.")]
Task: TypeAlias = Annotated[str | None, typer.Option("--task", metavar="JOB_TYPE", help="Or the task, in all queues.")]


def queues(dsn: DsnOption = None, schema: SchemaOption = "pqrun", as_json: JsonOption = False) -> None:
    """List queues: what waits and runs, how long the first has waited, what is paused, and who serves them; + is a lower bound."""

    async def look(store: PgJobStore) -> tuple[list[QueueState], list[Pause]]:
        return await store.queues(), await store.paused()

    found, paused = on_store(dsn, schema, look)
    if as_json:
        typer.echo(json_text({"queues": found, "paused": paused}))
        return
    if found:
        print_table(table(HEADINGS, map(queue_cells, found)))
    else:
        typer.echo("no queues")
    for held in paused:
        if held.kind == "task":
            typer.echo(f"task {one_line(held.name)} is {one_line(_paused(held.reason))}")


def pause(
    queue: Queue = None,
    task: Task = None,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Why, for those who look.")] = None,
    dsn: DsnOption = None,
    schema: SchemaOption = "pqrun",
    as_json: JsonOption = False,
) -> None:
    """Let no worker start jobs of a queue or task until it is resumed; running jobs go on. Exit code 0 also where it was paused before."""
    kind, name = _meant(queue, task)

    async def act(store: PgJobStore) -> bool:
        if kind == "queue":
            return await store.pause(queue=name, reason=reason)
        return await store.pause(task=name, reason=reason)

    _tell(kind, name, on_store(dsn, schema, act), ("paused", "was paused already"), as_json=as_json)


def resume(
    queue: Queue = None,
    task: Task = None,
    dsn: DsnOption = None,
    schema: SchemaOption = "pqrun",
    as_json: JsonOption = False,
) -> None:
    """End the pause of a queue or task. Exit code 0 also where it was not paused."""
    kind, name = _meant(queue, task)

    async def act(store: PgJobStore) -> bool:
        return await (store.resume(queue=name) if kind == "queue" else store.resume(task=name))

    _tell(kind, name, on_store(dsn, schema, act), ("resumed", "was not paused"), as_json=as_json)


def _meant(queue: str | None, task: str | None) -> tuple[PauseKind, str]:
    if queue is not None and task is None:
        return "queue", queue
    if task is not None and queue is None:
        return "task", task
    raise OptionError("--queue, --task: give one of them")


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


def _tell(kind: PauseKind, name: str, is_changed: bool, words: tuple[str, str], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json_text({"kind": kind, "name": name, "changed": is_changed}))
        return
    typer.echo(f"{kind} {one_line(name)} {words[0] if is_changed else words[1]}")


def queue_cells(one: QueueState) -> tuple[str, ...]:
    """Return a row of the table, under HEADINGS."""

    def count(name: str) -> str:
        return f"{getattr(one, name):,}{'+' if name in one.at_least else ''}"

    oldest = "" if one.oldest_ready_seconds is None else brief(max(one.oldest_ready_seconds, 0.0))
    state = "unserved" if not one.workers else "workers paused" if one.workers == one.paused_workers else ""
    return (
        one.name,
        count("ready"),
        count("running"),
        count("scheduled"),
        count("failing"),
        oldest,
        str(one.workers) + (f" ({one.paused_workers} paused)" if one.paused_workers else ""),
        str(one.slots),
        state if one.paused_at is None else _paused(one.reason),
    )


def _paused(reason: str | None) -> str:
    return "paused" if reason is None else f"paused: {reason}"
