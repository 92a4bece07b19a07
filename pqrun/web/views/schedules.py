"""Schedules: when each fires in words and in the next five times, and what may be changed."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

import msgspec
from starlette.responses import Response

from pqrun.errors import DeferError, OptionError
from pqrun.handle import Call
from pqrun.job.definition import Schedule
from pqrun.job.moments import duration, duration_text
from pqrun.job.options import check_name
from pqrun.job.schedule import firings as planned_times
from pqrun.job.state import Status
from pqrun.job.storable import dump_object
from pqrun.schedules import Schedules
from pqrun.store import schedules as rows
from pqrun.store.acting import Act, Did, act
from pqrun.store.link import Session
from pqrun.store.listing import get_lines
from pqrun.web.shown import Shown, show
from pqrun.web.visit import PageError, Visit

__all__ = ["act_on_schedule", "schedule_data", "schedules_data"]

FIRINGS = 5


class Firing(NamedTuple):
    """A planned time, and what its clock does about daylight saving."""

    at: datetime
    local: str
    note: str


class ScheduleRow(NamedTuple):
    """A schedule of the list."""

    name: str
    job_type: str
    words: str
    rule: str
    zone: str | None
    state: str
    is_edited: bool
    next_at: datetime | None
    last_at: datetime | None
    last_job_id: int | None
    last_status: Status | None
    """Of the last job; None where there is none, or it is gone."""
    is_late: bool
    """Whether it should have fired, and no worker has done it."""
    missed: int
    """Planned times that have passed without a firing, MISSED_MOST at most."""


LATE: Final = timedelta(seconds=60)

MISSED_MOST: Final = 100
"""Counted one by one: each is a step through the calendar."""


async def schedules_data(visit: Visit) -> Mapping[str, object]:
    """All schedules by name."""
    async with visit.reading() as session:
        known = await rows.find(session)
        jobs = await _last_jobs(session, known.schedules)
    return {"schedules": [_row(one, known.clock, jobs) for one in known.schedules], "now": known.clock}


async def _last_jobs(session: Session, schedules: Sequence[Schedule]) -> Mapping[int, Status]:
    ids = [one.last_job_id for one in schedules if one.last_job_id is not None]
    return {line.id: line.status for line in await get_lines(session, ids)}


def _row(one: Schedule, clock: datetime, jobs: Mapping[int, Status]) -> ScheduleRow:
    is_late = one.state == "active" and one.next_at is not None and clock - one.next_at > LATE
    return ScheduleRow(
        name=one.name,
        job_type=one.job_type,
        words=one.words,
        rule=one.cron or f"every {duration_text(one.every or timedelta(0))}",
        zone=one.tz,
        state=one.state,
        is_edited=one.is_edited,
        next_at=one.next_at,
        last_at=one.last_at,
        last_job_id=one.last_job_id,
        last_status=None if one.last_job_id is None else jobs.get(one.last_job_id),
        is_late=is_late,
        missed=_missed(one, clock) if is_late else 0,
    )


def _missed(one: Schedule, clock: datetime) -> int:
    """Count the planned times that nobody has fired, from the one that is due on."""
    if one.next_at is None:
        return 0
    later = islice(planned_times(one.rule, one.next_at), MISSED_MOST - 1)
    return 1 + sum(1 for _ in takewhile(lambda instant: instant <= clock, later))


async def schedule_data(visit: Visit) -> Mapping[str, object]:
    """One schedule."""
    return await _data(visit, _name(visit), {}, None)


def _name(visit: Visit) -> str:
    try:
        return check_name(visit.request.path_params["name"])
    except DeferError:
        raise PageError(404, "Not found", "No schedule can have this name.") from None


async def _data(visit: Visit, name: str, entered: Mapping[str, str], problem: str | None) -> dict[str, object]:
    async with visit.reading() as session:
        known = await rows.find(session, [name])
        if not known.schedules:
            raise PageError(404, "Not found", f"There is no schedule {name!r}.")
        one = known.schedules[0]
        jobs = await _last_jobs(session, [one])
    shown = show(visit, one.job_type, "payload", one.payload_json)
    return {
        "schedule": _row(one, known.clock, jobs),
        "options": _options(one),
        "payload": shown,
        "firings": firings(one, known.clock),
        "form": {**_form(one, shown), **entered},
        "can_edit_payload": shown.text is not None and not shown.is_masked and not shown.left_out,
        "problem": problem,
        "now": known.clock,
    }


def _options(one: Schedule) -> dict[str, object]:
    return {
        "task": one.job_type,
        "queue": one.queue,
        "priority": one.priority,
        "max_attempts": one.max_attempts,
        "timeout_seconds": one.timeout_seconds,
        "catch_up": one.catch_up,
        "overlap": one.overlap,
        "jitter": one.jitter,
        "origin": one.origin,
        "app": one.app,
        "paused_at": one.paused_at,
        "orphaned_at": one.orphaned_at,
        "updated_at": one.updated_at,
    }


def _form(one: Schedule, shown: Shown) -> dict[str, str]:
    return {
        "cron": one.cron or "",
        "every": duration_text(one.every) if one.every is not None else "",
        "tz": one.tz or "",
        "catch_up": one.catch_up,
        "overlap": one.overlap,
        "jitter": duration_text(one.jitter),
        "payload": shown.text or "",
    }


def firings(one: Schedule, clock: datetime) -> list[Firing]:
    """Return the next planned times, in the zone of the schedule, with what daylight saving does around each."""
    planned = [one.next_at] if one.next_at is not None and one.next_at > clock else []
    times = [*planned, *one.preview(FIRINGS, after=planned[0] if planned else clock)][:FIRINGS]
    zone = ZoneInfo(one.tz or "UTC")
    return [Firing(at, at.astimezone(zone).strftime("%a %Y-%m-%d %H:%M:%S %Z"), _dst_note(at, zone)) for at in times]


def _dst_note(at: datetime, zone: ZoneInfo) -> str:
    def offset(moment: datetime) -> timedelta:
        return moment.astimezone(zone).utcoffset() or timedelta(0)

    change = offset(at + timedelta(hours=12)) - offset(at - timedelta(hours=12))
    if not change:
        return ""
    return "clocks go forward this day" if change > timedelta(0) else "clocks go back this day"


DEEDS: Mapping[str, Callable[[Schedules, str], Awaitable[object]]] = {
    "pause": lambda schedules, name: schedules.pause(name),
    "resume": lambda schedules, name: schedules.resume(name),
    "run": lambda schedules, name: schedules.run(name),
    "remove": lambda schedules, name: schedules.remove(name),
}


async def act_on_schedule(visit: Visit) -> Response:
    """Pause, resume, run now, skip the next firing, edit or remove."""
    name = _name(visit)
    deed = visit.form.get("do")
    if deed == "edit":
        return await _edit(visit, name)
    if deed not in (*DEEDS, "skip"):
        raise PageError(400, "No such action", f"Expected one of {', '.join(DEEDS)}, skip and edit.")
    visit.must(deed)
    planned = _planned(visit.form.get("planned")) if deed == "skip" else None

    async def do(session: Session) -> Did:
        if planned is not None:
            await Schedules(session).skip(name, planned=planned)
            return Did(f"skipped {planned.astimezone(UTC).isoformat(timespec='seconds')}", jobs=0)
        made = await DEEDS[deed](Schedules(session), name)
        if isinstance(made, int):
            return Did(f"made job {made}", made_id=made)
        return Did({"pause": "paused", "resume": "resumed"}.get(deed, "removed"), jobs=0)

    did = await act(await visit.site.store(), Act(visit.access.user, deed, f"schedule {name}"), do)
    if did.made_id is not None:
        return visit.redirect(visit.url(f"/jobs/{did.made_id}", done="run"))
    if deed == "remove":
        return visit.redirect(visit.url("/schedules", removed=name))
    back = visit.form.get("back")
    return visit.redirect(visit.url("/schedules") if back == "list" else visit.name_url("schedules", name))


def _planned(text: str) -> datetime:
    """Read the firing that the page showed: another one is not skipped in its place."""
    try:
        planned = datetime.fromisoformat(text)
    except ValueError:
        planned = None
    if planned is None or planned.tzinfo is None:
        raise PageError(
            400, "Not a time", "Expected planned=, the planned time that is to be skipped, with its offset."
        )
    return planned


async def _edit(visit: Visit, name: str) -> Response:
    visit.must("edit")
    form = {
        field: visit.form.get(field) for field in ("cron", "every", "tz", "catch_up", "overlap", "jitter", "payload")
    }
    try:
        options = _read(form)
        decoded = _payload(form["payload"]) if "payload" in visit.form else None

        async def do(session: Session) -> Did:
            old = await Schedules(session).get(name)
            call = None if decoded is None or decoded == old.payload else _call(visit, old, decoded)
            await Schedules(session).edit(name, call=call, **options)
            return Did("changed", jobs=0)

        await act(await visit.site.store(), Act(visit.access.user, "edit", f"schedule {name}"), do)
    except DeferError as error:
        return visit.render("schedule.html", await _data(visit, name, form, str(error)), 422)
    return visit.redirect(visit.name_url("schedules", name))


def _read(form: Mapping[str, str]) -> Any:  # noqa: ANN401  # ScheduleOptions: which of them are there is known at run time
    if form["cron"] and form["every"]:
        raise OptionError("cron and every exclude each other: empty one of the two")
    options: dict[str, Any] = {"catch_up": form["catch_up"], "overlap": form["overlap"]}
    options["jitter"] = _duration("jitter", form["jitter"] or "0s")
    if form["every"]:
        options["every"] = _duration("every", form["every"])
    else:
        options |= {"cron": form["cron"], "tz": form["tz"] or "UTC"}
    return options


def _duration(name: str, text: str) -> timedelta:
    found = duration(text)
    if found is None:
        raise OptionError(f"{name}: expected a duration such as 90s, 15m, 2h or 1d")
    return found


def _payload(text: str) -> dict[str, Any]:
    try:
        decoded = json.loads(text)
    except (ValueError, RecursionError):
        decoded = None
    if not isinstance(decoded, dict):
        raise OptionError("payload: expected a JSON object")
    return decoded


def _call(visit: Visit, old: Schedule, payload: Mapping[str, Any]) -> Call[object]:
    """Return what the schedule repeats, with another payload, which its task checks where it is known here."""
    job = old.definition.job
    app = visit.site.app
    if app is not None and old.job_type in app.tasks:
        checked = app.call_by_name(old.job_type, payload).job
        job = msgspec.structs.replace(job, payload=checked.payload, payload_version=checked.payload_version)
    else:
        job = msgspec.structs.replace(job, payload=dump_object(payload, "payload"))
    return Call(job, _nothing, _nothing)


def _nothing(_text: str | None) -> None:
    return None
