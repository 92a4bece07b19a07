"""``pqrun tasks module:app``: what an app declares; touches no database."""

import difflib
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from pqrun.app import App
from pqrun.cli.showing import JsonOption, json_text, print_table, table
from pqrun.cli.target import load_app
from pqrun.errors import OptionError
from pqrun.job.definition import ScheduleDefinition
from pqrun.job.moments import brief
from pqrun.job.schedule import words
from pqrun.job.storable import one_line
from pqrun.task import Task

__all__ = ["Target", "find_task", "tasks"]

HEADINGS = ("task", "queue", "priority", "attempts", "timeout", "version", "schedules", "payload")

Target = Annotated[str, typer.Argument(metavar="MODULE:APP", help="The App, such as shop.jobs:jobs.")]
Schema = Annotated[
    str | None,
    typer.Option("--schema", metavar="NAME", help="Print the JSON Schemas of this task's payload and result."),
]


def tasks(target: Target, schema: Schema = None, as_json: JsonOption = False) -> None:
    """List the tasks of an app with their options, schedules and payloads."""
    app = load_app(target)
    if schema is not None:
        task = find_task(app, schema)
        typer.echo(json_text({"payload": task.payload_schema(), "result": task.result_schema()}))
    elif as_json:
        typer.echo(json_text([_facts(task, _schedules(app, task)) for task in _sorted(app)]))
    elif app.tasks:
        print_table(table(HEADINGS, (_cells(task, _schedules(app, task)) for task in _sorted(app))))
    else:
        typer.echo("no tasks")


def find_task(app: App[Any], name: str) -> Task[..., Any, Any, Any]:
    """Return the task of this name; raises OptionError, which names the nearest."""
    found = app.tasks.get(name)
    if found is not None:
        return found
    near = difflib.get_close_matches(name, app.tasks, n=1)
    hint = (
        f"did you mean {one_line(near[0])}?"
        if near
        else f"it has {', '.join(map(one_line, sorted(app.tasks))) or 'none'}"
    )
    raise OptionError(f"task: the app has no task {one_line(name)!r:.80}; {hint}")


def _sorted(app: App[Any]) -> Iterable[Task[..., Any, Any, Any]]:
    return [app.tasks[name] for name in sorted(app.tasks)]


def _schedules(app: App[Any], task: Task[..., Any, Any, Any]) -> list[ScheduleDefinition]:
    return [one for one in app.declared_schedules.values() if one.job.job_type == task.name]


def _cells(task: Task[..., Any, Any, Any], schedules: list[ScheduleDefinition]) -> tuple[object, ...]:
    declared = task.declared
    options = declared.placement.options
    fields = declared.signature.codec.fields
    return (
        task.name,
        options.queue,
        options.priority,
        options.max_attempts,
        None if options.timeout_seconds is None else brief(options.timeout_seconds),
        declared.version,
        "; ".join(f"{one.name}: {words(one.rule)}" for one in schedules),
        ", ".join(field.wire_name if field.required else f"{field.wire_name}?" for field in fields),
    )


def _facts(task: Task[..., Any, Any, Any], schedules: list[ScheduleDefinition]) -> dict[str, object]:
    declared = task.declared
    options = declared.placement.options
    return {
        "name": task.name,
        "function": task.where,
        "queue": options.queue,
        "priority": options.priority,
        "max_attempts": options.max_attempts,
        "timeout_seconds": options.timeout_seconds,
        "version": declared.version,
        "schedules": [{"name": one.name, "words": words(one.rule)} for one in schedules],
        "payload": task.payload_schema(),
        "result": task.result_schema(),
    }
