"""One job: what it is, what happened to it, and what can be done to it."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, cast

import msgspec
from starlette.responses import Response

from pqrun.errors import JobNotFound, PayloadError, PqrunError
from pqrun.handle import Call
from pqrun.job.attempts import JobAttempt
from pqrun.job.explaining import Reason
from pqrun.job.moments import duration
from pqrun.job.options import check_priority, check_queue, is_beyond_job_ids
from pqrun.job.progress import Progress
from pqrun.job.record import Job, NewJob
from pqrun.job.state import Status
from pqrun.job.storable import dump_object
from pqrun.store import acting, operations
from pqrun.store.acting import Act, Did, act
from pqrun.store.attempts import find_attempts
from pqrun.store.link import Session
from pqrun.store.operations import AuditRow
from pqrun.store.pages import get_job
from pqrun.store.reporting import find_progress
from pqrun.web.rendering import span
from pqrun.web.shown import Shown, show, show_error, shown_job
from pqrun.web.views.jobs import whole_number
from pqrun.web.views.surroundings import command_line, commands, look_around
from pqrun.web.visit import PageError, Visit

__all__ = ["act_on_job", "job_data", "job_json"]


class Moment(NamedTuple):
    """A line of the timeline."""

    at: datetime
    what: str
    detail: str = ""


class Frame(NamedTuple):
    """A part of a traceback: library frames are folded."""

    text: str
    is_folded: bool


async def job_data(visit: Visit) -> Mapping[str, object]:
    """``done=`` what was just done."""
    job_id = path_id(visit)
    async with visit.reading() as session:
        job = await get_job(session, job_id)
        history = await operations.audit_of(session, job_id)
        kept = await find_attempts(session.run, job_id)
        look = (await find_progress(session, [job_id])).get(job_id)
        around = None if job is None else await look_around(visit, session, job)
    if job is None and not history:
        raise PageError(404, "Not found", f"There is no job {job_id}: never there, deleted, or removed by retention.")
    if job is None:
        return {"job": None, "job_id": job_id, "history": history}
    facts = _facts(visit, job, history)
    schema = (await visit.site.store()).schema
    return {
        **facts,
        "around": around,
        "commands": commands(visit, job, cast("Shown", facts["payload"]), schema),
        "history": history,
        "job_id": job_id,
        "reasons": await _reasons(visit, job),
        "attempts": [_kept(visit, one) for one in kept],
        "progress": None if look is None else _progress(visit, job, look.progress),
    }


def _progress(visit: Visit, job: Job, progress: Progress | None) -> Progress | None:
    """Return the last report; its message is text of the handler's, as an error's is."""
    if progress is None or progress.message is None:
        return progress
    shown = show_error(visit, job.job_type, progress.message)
    return msgspec.structs.replace(progress, message=None if shown.is_hidden else shown.text)


class KeptAttempt(NamedTuple):
    """An attempt that did not succeed, as this visitor may see it."""

    attempt: JobAttempt
    frames: list[Frame]
    is_hidden: bool


def _kept(visit: Visit, attempt: JobAttempt) -> KeptAttempt:
    trace = show_error(visit, attempt.job_type, attempt.traceback)
    message = show_error(visit, attempt.job_type, attempt.message)
    bare = msgspec.structs.replace(
        attempt,
        message=None if message.is_hidden else message.text,
        traceback=None if trace.is_hidden else trace.text,
    )
    return KeptAttempt(bare, folded(bare.traceback or ""), trace.is_hidden or message.is_hidden)


async def _reasons(visit: Visit, job: Job) -> Sequence[Reason]:
    """Say why a job that waits is not running; none for others, and for one that has gone meanwhile."""
    if job.status not in (Status.SCHEDULED, Status.READY):
        return ()
    try:
        return (await (await visit.site.store()).explain(job.id)).reasons
    except JobNotFound:
        return ()


def _facts(visit: Visit, job: Job, history: list[AuditRow]) -> dict[str, object]:
    payload = show(visit, job.job_type, "payload", job.payload_json)
    error = show_error(visit, job.job_type, job.last_error if visit.sees_payloads else job.error_summary)
    summary = show_error(visit, job.job_type, job.error_summary)
    return {
        "job": job,
        "payload": payload,
        "payload_fault": _payload_fault(visit, job),
        "result": show(visit, job.job_type, "result", job.result_json),
        "error": error,
        "summary": summary.text,
        "frames": [] if error.text is None else folded(error.text),
        "timeline": timeline(visit, job, history),
        "is_known": visit.site.app is None or job.job_type in visit.site.tasks or job.job_type.startswith("__"),
        "dedupe_key": job.dedupe_key if visit.sees_payloads else None,
        "command": command_line(job),
        "may": allowed(visit, job),
        "can_edit": _can_edit(visit, payload),
    }


async def job_json(visit: Visit) -> Mapping[str, object]:
    """Read the same as JSON."""
    job_id = path_id(visit)
    async with visit.reading() as session:
        job = await get_job(session, job_id)
        history = await operations.audit_of(session, job_id)
        kept = await find_attempts(session.run, job_id)
    if job is None:
        raise PageError(404, "Not found", f"There is no job {job_id}: never there, deleted, or removed by retention.")
    return {**shown_job(visit, job), "history": history, "attempts": [_kept(visit, one).attempt for one in kept]}


def path_id(visit: Visit) -> int:
    """Return the number in the path; raises PageError for one that nothing has."""
    number = int(visit.request.path_params["id"])
    if number < 1 or is_beyond_job_ids(number):
        raise PageError(404, "Not found", "Nothing has this number.")
    return number


def _payload_fault(visit: Visit, job: Job) -> str | None:
    """Say why the task of this name would not take the payload."""
    task = visit.site.tasks.get(job.job_type)
    if task is None:
        return None
    try:
        task.handler.read(job.payload_json, job.payload_version)
    except PqrunError as error:
        return str(error)
    return None


def allowed(visit: Visit, job: Job) -> frozenset[str]:
    """Return what can be done to a job in this state, by this visitor."""
    waits = job.status in (Status.SCHEDULED, Status.READY)
    can = {
        "retry": job.status.is_finished,
        "cancel": job.status.is_active,
        "run_at": waits,
        "move": waits,
        "prioritize": waits,
        "delete": job.status is not Status.RUNNING,
        "enqueue": True,
    }
    return frozenset(action for action, is_possible in can.items() if is_possible and visit.may(action))


def _can_edit(visit: Visit, payload: Shown) -> bool:
    """Whether a new job can be made of this one: what is hidden or masked would be lost."""
    return visit.may("enqueue") and payload.text is not None and not payload.is_masked and not payload.left_out


def timeline(visit: Visit, job: Job, history: list[AuditRow]) -> list[Moment]:
    """Return what happened, the oldest first, as far as the row and the audit log tell."""
    moments = [Moment(job.created_at, "Deferred", f"to queue {job.queue}")]
    if job.scheduled_for is not None:
        moments.append(Moment(job.scheduled_for, "Planned by its schedule"))
    if job.run_after - job.created_at > timedelta(seconds=1):
        moments.append(Moment(job.run_after, "Due"))
    if job.locked_at is not None:
        detail = f"by {job.locked_by}, attempt {job.attempts} of {job.max_attempts}"
        moments.append(Moment(job.locked_at, "Claimed", detail))
    if job.cancel_requested_at is not None:
        moments.append(Moment(job.cancel_requested_at, "Asked to stop"))
    if job.finished_at is not None:
        took = "" if job.duration_ms is None else f"after {span(job.duration_ms / 1000)}"
        words = {Status.DONE: "Done", Status.FAILED: "Failed", Status.CANCELLED: "Cancelled"}
        moments.append(Moment(job.finished_at, words[job.status], took))
    elif job.attempts and job.status is Status.SCHEDULED:
        summary = show_error(visit, job.job_type, job.error_summary).text
        moments.append(Moment(job.updated_at, f"Attempt {job.attempts} of {job.max_attempts} ended", summary or ""))
    moments += [Moment(row.at, f"{row.action} by {row.actor}", row.outcome) for row in history]
    return sorted(moments, key=lambda moment: moment.at)


_LIBRARY: Final = ("site-packages", "dist-packages", "/lib/python", "\\Lib\\", "<frozen ", "/pqrun/run/")


def folded(text: str) -> list[Frame]:
    """Cut a traceback into parts, those of libraries folded."""
    parts: list[Frame] = []
    is_folded = False
    for line in text.splitlines():
        if line.lstrip(" |+-").startswith('File "'):
            is_folded = any(mark in line for mark in _LIBRARY)
        elif not line.startswith((" ", "|")) or "Traceback (" in line:
            is_folded = False
        if parts and parts[-1].is_folded == is_folded:
            parts[-1] = Frame(f"{parts[-1].text}\n{line}", is_folded)
        else:
            parts.append(Frame(line, is_folded))
    return parts


async def act_on_job(visit: Visit) -> Response:
    """Do what the form says, and show the job again."""
    job_id = path_id(visit)
    name = visit.form.get("do")
    if name in ("copy", "clone"):
        return await _copy(visit, job_id, as_it_is=name == "clone")
    deeds: Mapping[str, Callable[[Session], Awaitable[Did]]] = {
        "retry": lambda session: acting.retry(session, job_id, force="force" in visit.form),
        "cancel": lambda session: acting.cancel(session, job_id),
        "run_at": lambda session: acting.reschedule(session, job_id, due),
        "move": lambda session: acting.relane(session, job_id, queue=queue),
        "prioritize": lambda session: acting.relane(session, job_id, priority=priority),
        "delete": lambda session: acting.delete(session, job_id),
    }
    if name not in deeds:
        raise PageError(400, "No such action", f"Expected one of {', '.join(deeds)}, copy and clone.")
    visit.must(name)
    due = due_time(visit.form.get("when")) if name == "run_at" else timedelta(0)
    queue = check_queue(visit.form.get("queue")) if name == "move" else "default"
    priority = check_priority(whole_number(visit.form.get("priority"), "priority")) if name == "prioritize" else 0
    await act(await visit.site.store(), Act(visit.access.user, name, f"job {job_id}", job_id), deeds[name])
    return visit.redirect(visit.url(f"/jobs/{job_id}", done=name))


def due_time(text: str) -> datetime | timedelta:
    """Read when a job is to run: nothing or ``now``; ``15m`` from now; or an instant, in UTC without a zone. Raises PageError."""
    delay = timedelta(0) if text in ("", "now") else duration(text)
    if delay is not None:
        return delay
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise PageError(
            422, "Not a time", "Expected now, a delay such as 15m, or an instant such as 2026-01-31T12:00Z."
        ) from None
    return instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)


async def _copy(visit: Visit, job_id: int, *, as_it_is: bool) -> Response:
    """Make a new job of this one, with the payload of the form or its own, which its task checks."""
    visit.must("enqueue")
    async with visit.reading() as session:
        job = await get_job(session, job_id)
    if job is None:
        raise PageError(404, "Not found", f"There is no job {job_id} any more.")
    facts = show(visit, job.job_type, "payload", job.payload_json)
    if not as_it_is and not _can_edit(visit, facts):
        raise PageError(403, "Not allowed", "The payload is hidden, masked, or too long to be edited here.")
    text = job.payload_json if as_it_is else visit.form.get("payload")
    new, problem = edited_job(visit, job, text)
    if new is None and as_it_is:  # the form would show the payload, which may be hidden
        raise PageError(422, "That cannot be done", problem or "The payload is refused.")
    if new is None:
        data = {
            **_facts(visit, job, []),
            "history": [],
            "job_id": job_id,
            "reasons": (),
            "attempts": (),
            "progress": None,
            "around": None,
            "commands": (),
            "edited": text,
            "edit_problem": problem,
        }
        return visit.render("job.html", data, 422)
    if as_it_is:  # as stored, not as its model would write it today
        stored = msgspec.structs.replace(new.job, payload=job.payload_json, payload_version=job.payload_version)
        new = msgspec.structs.replace(new, job=stored)
    made = new  # mypy does not follow a narrowed name into a lambda
    note = Act(visit.access.user, "enqueue", f"copy of job {job_id}", job_id)
    did = await act(await visit.site.store(), note, lambda session: acting.enqueue(session, made.job))
    app = visit.site.app
    if app is not None and did.made_id is not None and job.job_type in app.tasks:
        app.written(made, did.made_id)
    return visit.redirect(visit.url(f"/jobs/{did.made_id}", done="copy"))


def edited_job(visit: Visit, job: Job, text: str) -> tuple[Call[object] | None, str | None]:
    """Return a job like this one with another payload, or why its task refuses that."""
    try:
        decoded: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None, "expected a JSON object; this is no JSON"
    if not isinstance(decoded, dict):
        return None, f"expected a JSON object; got {type(decoded).__name__}"
    app = visit.site.app
    try:
        if app is not None and job.job_type in app.tasks:
            call = app.prepared(app.call_by_name(job.job_type, decoded))
        else:
            payload = dump_object(decoded, "payload")
            new = NewJob(job_type=job.job_type, payload=payload, payload_version=job.payload_version)
            call = Call(new, _nothing, _nothing)
    except PayloadError as error:
        return None, str(error)
    kept = {
        "queue": job.queue,
        "priority": job.priority,
        "max_attempts": job.max_attempts,
        "timeout_seconds": job.timeout_seconds,
    }
    return msgspec.structs.replace(call, job=msgspec.structs.replace(call.job, dedupe_key=None, **kept)), None


def _nothing(_text: str | None) -> None:
    return None
