"""The tasks that code declares and those that the database knows, and jobs made by hand."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

import msgspec
from starlette.responses import Response

from pqrun.errors import DeclarationError, OptionError, PayloadError
from pqrun.handle import Call
from pqrun.job.filter import JobFilter
from pqrun.job.options import check_job_type, check_priority, check_queue
from pqrun.job.pause import Pause
from pqrun.job.record import JsonObject, JsonValue
from pqrun.job.registered import RegisteredWorker
from pqrun.job.state import Status
from pqrun.store import acting
from pqrun.store.acting import Act, act
from pqrun.store.listing import browse
from pqrun.store.pages import ActiveCount, count_active, list_workers
from pqrun.store.queues import find_pauses
from pqrun.store.task_pages import find_notable
from pqrun.task import Task
from pqrun.web.periods import PERIODS
from pqrun.web.schema_form import Field, fields_of, payload_of, with_problems
from pqrun.web.views.job import due_time
from pqrun.web.views.jobs import listed, shown_lines, whole_number
from pqrun.web.views.queues import change_pause
from pqrun.web.visit import PageError, Visit
from pqrun.web.volumes import Volume, read_volumes

__all__ = ["act_on_task", "task_data", "tasks_data"]

OPTIONS: Final = ("queue", "priority", "when")
"""Fields of the form beside the payload's."""


class TaskRow(NamedTuple):
    """A name of a task, and what is known of it."""

    name: str
    is_declared: bool
    is_served: bool
    """Whether a living worker has it."""
    queue: str | None
    waiting: int
    running: int
    pause: Pause | None
    volume: Volume
    """What workers counted of it in the chosen time."""


async def tasks_data(visit: Visit) -> Mapping[str, object]:
    """All names: declared, waiting in the database, paused, counted in the chosen time, or served by a worker."""
    async with visit.reading() as session:
        counts = await count_active(session)
        workers = await list_workers(session)
        pauses = _of_tasks(await find_pauses(session))
    counted = await read_volumes(visit, counts.now, "task")
    served = {name for worker in workers if worker.dead_at is None for name in worker.job_types}
    names = {*visit.site.tasks, *served, *pauses, *counted.by_key, *(one.job_type for one in counts.active)}
    rows = [
        _row(visit, name, counts.active, served, pauses.get(name), counted.of(name))
        for name in sorted(names)
        if not _is_own(visit, name)
    ]
    return {
        "tasks": rows,
        "has_app": visit.site.app is not None,
        "is_capped": counts.is_capped,
        "counted": counted,
        "ranges": list(PERIODS),
        "now": counts.now,
    }


def _of_tasks(pauses: Iterable[Pause]) -> dict[str, Pause]:
    return {pause.name: pause for pause in pauses if pause.kind == "task"}


def _is_own(visit: Visit, name: str) -> bool:
    return name.startswith("__") and name not in visit.site.tasks


def _row(
    visit: Visit, name: str, active: Iterable[ActiveCount], served: set[str], pause: Pause | None, volume: Volume
) -> TaskRow:
    task = visit.site.tasks.get(name)
    own = [one for one in active if one.job_type == name]
    return TaskRow(
        name=name,
        is_declared=task is not None,
        is_served=name in served,
        queue=None if task is None else task.handler.queue,
        waiting=sum(one.jobs for one in own if one.status is not Status.RUNNING),
        running=sum(one.jobs for one in own if one.status is Status.RUNNING),
        pause=pause,
        volume=volume,
    )


async def task_data(visit: Visit) -> Mapping[str, object]:
    """One task: its options and payload, its latest jobs, who serves it, and a form."""
    return await _data(visit, _name(visit), None)


def _name(visit: Visit) -> str:
    try:
        return check_job_type(visit.request.path_params["name"])
    except OptionError:
        raise PageError(404, "Not found", "No task can have this name.") from None


async def _data(visit: Visit, name: str, entered: "Entered | None", problem: str = "") -> dict[str, object]:
    async with visit.reading() as session:
        counts = await count_active(session)
        workers = await list_workers(session)
        pause = _of_tasks(await find_pauses(session)).get(name)
        page = await browse(session, JobFilter(job_types=[name]), shown=10, now=counts.now)
        notable = await find_notable(session, name, slowest=10, failed=5)
    counted = await read_volumes(visit, counts.now, "all", job_type=name)
    task = visit.site.tasks.get(name)
    serving = [worker for worker in workers if worker.dead_at is None and name in worker.job_types]
    if task is None and not page.jobs and not serving and pause is None and not counted.by_key:
        raise PageError(
            404, "Not found", f"No code here declares a task {name!r}, no worker serves it, and no job of late is its."
        )
    schema = None if task is None else schema_of(task)
    fields = entered.fields if entered is not None else fields_of(schema)
    return {
        "task": _row(visit, name, counts.active, {name} if serving else set(), pause, counted.total),
        "counted": counted,
        "ranges": list(PERIODS),
        "reason": visit.form.get("reason"),
        "problem": problem,
        "is_capped": counts.is_capped,
        "options": {} if task is None else options_of(task),
        "where": None if task is None else task.where,
        "about": "" if task is None else (task.__doc__ or "").strip(),
        "schema": None if schema is None else json.dumps(schema, indent=2, ensure_ascii=False),
        "fields": fields,
        "entered": entered or Entered(fields, "{}", dict.fromkeys(OPTIONS, ""), ()),
        "workers": [_worker(worker) for worker in serving],
        "page": listed(visit, page),
        "failed": shown_lines(visit, notable.failed),
        "slowest": shown_lines(visit, notable.slowest),
        "ended": {"looked": notable.looked, "since": notable.since, "is_cut": notable.is_cut},
        "has_app": visit.site.app is not None,
        "now": page.now,
    }


def _worker(worker: RegisteredWorker) -> dict[str, object]:
    return {"id": worker.id, "worker_id": worker.worker_id, "queues": worker.queues}


def schema_of(task: Task[..., Any, Any, Any]) -> JsonObject | None:
    """Return the JSON Schema of a task's payload; None where the model's own code does not give it."""
    try:
        return task.payload_schema()
    except DeclarationError:
        return None


def options_of(task: Task[..., Any, Any, Any]) -> dict[str, object]:
    """Return the declared options under their names."""
    declared = task.declared
    options = declared.placement.options
    return {
        **{name: getattr(options, name) for name in options.__struct_fields__},
        "version": declared.version,
        "kind": "async" if declared.is_async else "plain function, in a thread",
        "backoff": "the worker's" if declared.backoff is None else type(declared.backoff).__name__,
    }


class Entered(NamedTuple):
    """What was entered into the form, and what is wrong with it."""

    fields: list[Field] | None
    json: str
    options: Mapping[str, str]
    problems: Sequence[str]


async def act_on_task(visit: Visit) -> Response:
    """Pause and resume it, or make a job by hand; what the model refuses is told at its field."""
    name = _name(visit)
    deed = visit.form.get("do")
    if deed in ("pause", "resume"):
        problem = await change_pause(visit, deed, "task", name)
        if problem is not None:
            return visit.render("task.html", await _data(visit, name, None, problem), 422)
        back = visit.url("/tasks") if visit.form.get("back") == "list" else visit.name_url("tasks", name)
        return visit.redirect(back)
    return await _enqueue(visit, name)


async def _enqueue(visit: Visit, name: str) -> Response:
    visit.must("enqueue")
    app = visit.site.app
    task = visit.site.tasks.get(name)
    if app is None or task is None:
        raise PageError(409, "The task is unknown here", "Only a task that this process knows can check a payload.")
    fields = None if "payload" in visit.form else fields_of(schema_of(task))
    payload, entered = _entered(visit, fields)
    if payload is not None:
        try:
            call = _with_options(visit, app.call_by_name(name, payload))
            _refuse_unknown(payload, call)
        except PayloadError as error:
            shown, rest = with_problems(entered.fields or [], error.errors)
            said = rest or ([] if error.errors else [str(error)])
            entered = entered._replace(fields=shown if fields is not None else None, problems=said)
        except OptionError as error:
            entered = entered._replace(problems=[str(error)])
        else:
            made = app.prepared(call)
            note = Act(visit.access.user, "enqueue", f"task {name}")
            did = await act(await visit.site.store(), note, lambda session: acting.enqueue(session, made.job))
            if did.made_id is not None:
                app.written(made, did.made_id)
            return visit.redirect(visit.url(f"/jobs/{did.made_id}", done="enqueue"))
    return visit.render("task.html", await _data(visit, name, entered), 422)


def _entered(visit: Visit, fields: list[Field] | None) -> tuple[dict[str, JsonValue] | None, Entered]:
    form = visit.form
    options = {name: form.get(name) for name in OPTIONS}
    if fields is not None:
        payload, shown = payload_of(fields, form)
        return payload, Entered(shown, "{}", options, ())
    text = form.get("payload")
    try:
        decoded: Any = json.loads(text)
    except (ValueError, RecursionError):
        decoded = None
    if isinstance(decoded, dict):
        return decoded, Entered(None, text, options, ())
    return None, Entered(None, text, options, ["payload: expected a JSON object"])


def _with_options(visit: Visit, call: Call[object]) -> Call[object]:
    """Lay the options of the form over those that the task declares; raises OptionError and PageError."""
    changes: dict[str, Any] = {}
    if queue := visit.form.get("queue"):
        changes["queue"] = check_queue(queue)
    if priority := visit.form.get("priority"):
        changes["priority"] = check_priority(whole_number(priority, "priority"))
    if when := visit.form.get("when"):
        due = due_time(when)
        changes["delay_seconds"] = due.total_seconds() if isinstance(due, timedelta) else None
        changes["run_after"] = None if isinstance(due, timedelta) else due
    return msgspec.structs.replace(call, job=msgspec.structs.replace(call.job, **changes))


def _refuse_unknown(payload: Mapping[str, JsonValue], call: Call[object]) -> None:
    """Refuse what the model left out: a reader is lenient, a writer is not."""
    stored = json.loads(call.job.payload)
    unknown = tuple((name, "there is no such field") for name in payload if name not in stored)
    if unknown:
        raise PayloadError("unknown fields", unknown)
