"""``pqrun defer module:app task field=value …``: write one job, checked by the task's model, and wait for its end where asked.

Of a value the field decides what it is: it is read as JSON first and, where that does not satisfy the model, taken as text.
"""

import asyncio
import difflib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any

import typer

from pqrun.app import App
from pqrun.cli.showing import json_text
from pqrun.cli.target import load_app
from pqrun.cli.tasks import Target, find_task
from pqrun.declaration import CallOptions
from pqrun.errors import OptionError, PayloadError, ResultTimeout
from pqrun.handle import Call, JobHandle
from pqrun.job.moments import duration, time_ago
from pqrun.job.query_text import decoded
from pqrun.job.record import JsonObject
from pqrun.job.state import Status
from pqrun.job.storable import dump_object, error_summary, one_line
from pqrun.store.waiter import End
from pqrun.task import Task

__all__ = ["defer"]

FAILED = 1
WRONG = 2

TaskName = Annotated[str, typer.Argument(metavar="TASK", help="The name of the task.")]
Fields = Annotated[
    list[str] | None, typer.Argument(metavar="FIELD=VALUE", show_default=False, help="The payload, field by field.")
]
JsonPayload = Annotated[
    str | None,
    typer.Option("--json-payload", metavar="JSON", help="The payload as a JSON object; fields beside it win."),
]
Queue = Annotated[str | None, typer.Option("--queue", metavar="NAME", help="Instead of the task's.")]
Priority = Annotated[int | None, typer.Option("--priority", help="A smallint; higher first.")]
MaxAttempts = Annotated[int | None, typer.Option("--max-attempts", metavar="N", help="How many starts may count.")]
In = Annotated[str | None, typer.Option("--in", metavar="DURATION", help="Due in 30s, 5m, 2h or 1d.")]
At = Annotated[str | None, typer.Option("--at", metavar="TIME", help="Due then: 2026-01-31T12:00:00Z, with its zone.")]
DedupeKey = Annotated[
    str | None, typer.Option("--dedupe-key", metavar="KEY", help="The finished key, instead of the task's.")
]
Wait = Annotated[bool, typer.Option("--wait", help="Wait for its end and print its result as JSON.")]
Timeout = Annotated[float | None, typer.Option("--timeout", min=0, metavar="SECONDS", help="Wait so long at most.")]
Json = Annotated[bool, typer.Option("--json", help="Print {id, created} instead of the id.")]


def defer(
    target: Target,
    task: TaskName,
    fields: Fields = None,
    json_payload: JsonPayload = None,
    queue: Queue = None,
    priority: Priority = None,
    max_attempts: MaxAttempts = None,
    due_in: In = None,
    at: At = None,
    dedupe_key: DedupeKey = None,
    wait: Wait = False,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Defer one job and print its id. Exit code 0: written (with --wait: DONE); 1: it failed; 2: refused, nothing was written."""
    if timeout is not None and not wait:
        raise typer.BadParameter("--timeout says how long --wait waits; give both")
    app = load_app(target)
    chosen = find_task(app, task)
    call = _call(
        chosen,
        _options(queue, priority, max_attempts, due_in, at, dedupe_key),
        _payload(chosen, json_payload, fields or ()),
    )
    asyncio.run(_run(app, call, wait=wait, timeout=timeout, as_json=as_json))


async def _run(app: App[Any], call: Call[object], *, wait: bool, timeout: float | None, as_json: bool) -> None:
    async with app:
        (handle,) = await app.defer_many([call])
        _tell(handle, as_json=as_json, to_stderr=wait)
        if not wait:
            return
        try:
            end = await app.store.wait_end(handle.id, timeout)
        except ResultTimeout as error:
            typer.echo(f"pqrun: {error}; pqrun why {handle.id} may tell more", err=True)
            raise typer.Exit(FAILED) from None
        _tell_end(handle.id, end)


def _tell(handle: JobHandle[object], *, as_json: bool, to_stderr: bool) -> None:
    """Print the id: beside the result where that goes to stdout."""
    text = json_text({"id": handle.id, "created": handle.created}, indent=0) if as_json else str(handle.id)
    typer.echo(text, err=to_stderr)
    if not handle.created:
        typer.echo(f"pqrun: nothing was written: job {handle.id} is active and has the dedupe key", err=True)


def _tell_end(job_id: int, end: End) -> None:
    if end.status is Status.DONE:
        typer.echo(end.result or "null")
        return
    error = "" if end.last_error is None else f": {one_line(error_summary(end.last_error))}"
    typer.echo(f"pqrun: job {job_id} ended {end.status.value}{error}", err=True)
    raise typer.Exit(FAILED)


def _options(
    queue: str | None,
    priority: int | None,
    max_attempts: int | None,
    due_in: str | None,
    at: str | None,
    key: str | None,
) -> CallOptions:
    options: CallOptions = {}
    if queue is not None:
        options["queue"] = queue
    if priority is not None:
        options["priority"] = priority
    if max_attempts is not None:
        options["max_attempts"] = max_attempts
    if key is not None:
        options["dedupe_key"] = key
    if due_in is not None and at is not None:
        raise typer.BadParameter("give --in or --at, not both")
    if due_in is not None:
        options["run_after"] = _delay(due_in)
    if at is not None:
        options["run_after"] = _instant(at)
    return options


def _delay(text: str) -> timedelta:
    found = duration(text)
    if found is None:
        raise typer.BadParameter(f"--in: expected a duration such as 30s, 5m, 2h or 1d; got {one_line(text)!r}")
    return found


def _instant(text: str) -> datetime:
    found = time_ago(text)
    if not isinstance(found, datetime):
        raise typer.BadParameter(
            f"--at: expected an instant with its zone, such as 2026-01-31T12:00:00Z; got {one_line(text)!r}"
        )
    return found


def _payload(task: Task[..., Any, Any, Any], json_payload: str | None, pairs: Sequence[str]) -> str:
    """Return the JSON text to store, where each field's value is what its field takes."""
    payload = _object(json_payload)
    texts: dict[str, str] = {}
    names = _wire_names(task)
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not (name and equals):
            raise typer.BadParameter("expected FIELD=VALUE, such as user_id=7")  # what came may be secret
        texts[names.get(name, name)] = text
    payload |= {name: decoded(text) for name, text in texts.items()}
    _refuse_unknown(task, payload)
    problems = task.declared.signature.codec.problems
    first = problems(_dumped(task, payload))
    refused = {_field(path) for path, _ in first}
    # What is no value of the field as JSON may be one as text: 42 where text is declared.
    as_text: JsonObject = {name: text for name, text in texts.items() if name in refused}
    stored = _dumped(task, payload | as_text)
    left = problems(stored)
    if left:  # told as it was first read, as far as that is what is wrong
        fields = {_field(path) for path, _ in left}
        raise _refused(task, [one for one in first if _field(one[0]) in fields] or left)
    return stored


def _field(path: str) -> str:
    """Return the field of the payload that the path of a problem begins with."""
    return path.partition(".")[0].partition("[")[0]


def _dumped(task: Task[..., Any, Any, Any], payload: Mapping[str, object]) -> str:
    try:
        return dump_object(payload, "payload")
    except PayloadError as error:
        problems = error.errors or (("", str(error)),)
    raise _refused(task, problems)


def _object(text: str | None) -> JsonObject:
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise OptionError("--json-payload: expected a JSON object")
    return found


def _wire_names(task: Task[..., Any, Any, Any]) -> dict[str, str]:
    """Stored names by those in Python: either may be given."""
    return {field.name: field.wire_name for field in task.declared.signature.codec.fields}


def _refuse_unknown(task: Task[..., Any, Any, Any], payload: JsonObject) -> None:
    """A model leaves out what it does not know; whoever types a name means a field."""
    known = {field.wire_name for field in task.declared.signature.codec.fields}
    unknown = [name for name in payload if name not in known]
    if not unknown or task.payload_schema().get("additionalProperties"):
        return
    problems = []
    for name in unknown:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(known)) or 'none'}"
        problems.append((one_line(name), f"no such field; {hint}"))
    raise _refused(task, problems)


def _refused(task: Task[..., Any, Any, Any], problems: Sequence[tuple[str, str]]) -> typer.Exit:
    """Tell each field and what is wrong with it, without any value."""
    typer.echo(f"pqrun: the payload of {one_line(task.name)} is refused, nothing was written", err=True)
    for path, reason in problems:
        typer.echo(f"    {path or 'payload'}: {one_line(reason)}", err=True)
    return typer.Exit(WRONG)


def _call(task: Task[..., Any, Any, Any], options: CallOptions, payload: str) -> Call[object]:
    try:
        call: Call[object] = task.options(**options).call_stored(payload)
    except PayloadError as error:
        problems = error.errors or (("", str(error)),)
    else:
        return call
    raise _refused(task, problems)
