"""``pqrun schedules``: see and change what fires when, in an app's database or in any that a DSN names."""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, NamedTuple, TypeVar, cast
from zoneinfo import ZoneInfo

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pqrun.app import App
from pqrun.cli.database import DsnOption, dsn_or_refuse
from pqrun.cli.target import load_app
from pqrun.declaration import ScheduleOptions
from pqrun.errors import ConfigurationError, OptionError
from pqrun.handle import Call
from pqrun.job.definition import Schedule
from pqrun.job.options import check_job_type
from pqrun.job.record import NewJob
from pqrun.job.storable import dump_object, one_line
from pqrun.schedules import Schedules
from pqrun.store import PgJobStore

__all__ = ["schedules"]

T = TypeVar("T")

schedules = typer.Typer(
    name="schedules",
    help="See and change what fires when: list, show, add, edit, pause, resume, run, skip, remove, preview.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}

Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule.")]
AppOption = Annotated[
    str | None,
    typer.Option("--app", metavar="MODULE:APP", help="The App, such as shop.jobs:jobs: its database, its tasks."),
]
SchemaOption = Annotated[
    str | None,
    typer.Option("--schema", metavar="NAME", help="The schema that holds the tables (of the app, or pqrun)."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Cron = Annotated[str | None, typer.Option(metavar="EXPRESSION", help="Such as '30 2 * * *'.")]
Every = Annotated[str | None, typer.Option(metavar="DURATION", help="Instead of --cron: 90s, 15m, 2h, 1d.")]
Tz = Annotated[str | None, typer.Option(metavar="ZONE", help="The zone of --cron (UTC), such as Europe/Berlin.")]
CatchUpOption = Annotated[str | None, typer.Option(metavar="HOW", help="Missed firings: skip, one (default) or all.")]
OverlapOption = Annotated[
    str | None, typer.Option(metavar="HOW", help="While the last job is active: allow (default) or skip.")
]
Jitter = Annotated[str | None, typer.Option(metavar="DURATION", help="Put each job off by up to so much.")]
TaskOption = Annotated[str | None, typer.Option("--task", metavar="JOB_TYPE", help="The task to run.")]
Payload = Annotated[
    str | None, typer.Option(metavar="JSON", help="Its payload, a JSON object; with --app it is checked.")
]
Queue = Annotated[str | None, typer.Option(help="The queue of its jobs.")]


class Place(NamedTuple):
    """Where the schedules are: an app, or a DSN."""

    app: App[Any] | None
    store: PgJobStore

    @property
    def schedules(self) -> Schedules:
        """What the command works on; the store must be open."""
        return Schedules(self.store)

    def call(self, task: str, payload: object, queue: str | None, *, version: int = 1) -> Call[object]:
        """Return what the schedule repeats: checked by the app's task and of its version, or by name alone and of the one given."""
        if not isinstance(payload, dict):
            raise OptionError(f"--payload: expected a JSON object; got {type(payload).__name__}")
        if self.app is None:
            stored = dump_object(payload, "payload")
            job = NewJob(job_type=check_job_type(task), payload=stored, payload_version=version)
            call: Call[object] = _by_name(job)
        else:
            call = self.app.call_by_name(task, payload)
        return (
            call if queue is None else msgspec.structs.replace(call, job=msgspec.structs.replace(call.job, queue=queue))
        )


def _by_name(job: NewJob) -> Call[object]:
    return Call(job, lambda _text: None, lambda _text: None)


@asynccontextmanager
async def _opened(app: str | None, dsn: str | None, schema: str | None) -> AsyncIterator[Place]:
    if app is not None and (dsn is not None or schema is not None):
        raise ConfigurationError("--app names its own database and schema; give it, or --dsn and --schema")
    loaded = None if app is None else load_app(app)
    store = PgJobStore(dsn_or_refuse(dsn, os.environ), schema=schema or "pqrun") if loaded is None else loaded.store
    async with store:
        yield Place(loaded, store)


def _run(app: str | None, dsn: str | None, schema: str | None, act: Callable[[Place], Awaitable[T]]) -> T:
    async def run() -> T:
        async with _opened(app, dsn, schema) as place:
            return await act(place)

    return asyncio.run(run())


@schedules.command("list")
def list_all(
    app: AppOption = None, dsn: DsnOption = None, schema: SchemaOption = None, json: JsonOption = False
) -> None:
    """Show all schedules: what they run, when, and whether they do."""
    found = _run(app, dsn, schema, lambda place: place.schedules.list())
    if json:
        _print_json([_facts(one) for one in found])
        return
    table = Table("name", "task", "when", "next", "last", "state", box=None, header_style="bold")
    for one in found:
        state = one.state + (", edited" if one.is_edited else "")
        following = "" if one.state != "active" else _moment(one.next_at, one)
        cells = (one.name, one.job_type, one.words, following, _moment(one.last_at, one), state)
        table.add_row(*(escape(one_line(cell)) for cell in cells))
    Console().print(table if found else "no schedules")


@schedules.command()
def show(
    name: Name, app: AppOption = None, dsn: DsnOption = None, schema: SchemaOption = None, json: JsonOption = False
) -> None:
    """Show one schedule with all its options, its payload and its next firings."""

    async def look(place: Place) -> tuple[Schedule, tuple[datetime, ...]]:
        return await place.schedules.get(name), (await place.schedules.preview(name)).firings

    found, following = _run(app, dsn, schema, look)
    facts = {**_facts(found), "payload": found.payload, "preview": [moment.isoformat() for moment in following]}
    if json:
        _print_json(facts)
        return
    for fact, value in facts.items():
        if value is not None:
            text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
            typer.echo(f"{fact:<16}{one_line(text)}")


@schedules.command()
def add(
    name: Name,
    task: TaskOption = None,
    payload: Payload = None,
    queue: Queue = None,
    cron: Cron = None,
    every: Every = None,
    tz: Tz = None,
    catch_up: CatchUpOption = None,
    overlap: OverlapOption = None,
    jitter: Jitter = None,
    paused: Annotated[bool, typer.Option("--paused", help="It begins paused.")] = False,
    app: AppOption = None,
    dsn: DsnOption = None,
    schema: SchemaOption = None,
    json: JsonOption = False,
) -> None:
    """Add a schedule that no code declares."""
    if task is None:
        raise OptionError("--task: which task is to be run?")
    options = _options(cron, every, tz, catch_up, overlap, jitter)
    decoded = _decoded(payload or "{}")

    async def act(place: Place) -> Schedule:
        return await place.schedules.add(name, place.call(task, decoded, queue), paused=paused, **options)

    _tell(_run(app, dsn, schema, act), "added", json)


@schedules.command()
def edit(
    name: Name,
    task: TaskOption = None,
    payload: Payload = None,
    queue: Queue = None,
    cron: Cron = None,
    every: Every = None,
    tz: Tz = None,
    catch_up: CatchUpOption = None,
    overlap: OverlapOption = None,
    jitter: Jitter = None,
    app: AppOption = None,
    dsn: DsnOption = None,
    schema: SchemaOption = None,
    json: JsonOption = False,
) -> None:
    """Change what is given of a schedule; it stays changed until the code that declares it changes."""
    options = _options(cron, every, tz, catch_up, overlap, jitter)
    decoded = None if payload is None else _decoded(payload)

    async def act(place: Place) -> Schedule:
        call: Call[object] | None = None
        if task is not None or decoded is not None or queue is not None:
            old = await place.schedules.get(name)
            if decoded is None and task in (None, old.job_type):  # the rest of its job stays as it is
                job = old.definition.job
                call = _by_name(job if queue is None else msgspec.structs.replace(job, queue=queue))
            else:
                version = old.payload_version if task in (None, old.job_type) else 1
                written = old.payload if decoded is None else decoded
                call = place.call(task or old.job_type, written, queue or old.queue, version=version)
        return await place.schedules.edit(name, call=call, **options)

    _tell(_run(app, dsn, schema, act), "changed", json)


@schedules.command()
def pause(name: Name, app: AppOption = None, dsn: DsnOption = None, schema: SchemaOption = None) -> None:
    """Stop a schedule from firing, for all workers; a deploy does not end that."""
    _run(app, dsn, schema, lambda place: place.schedules.pause(name))
    typer.echo(f"paused {one_line(name)}")


@schedules.command()
def resume(name: Name, app: AppOption = None, dsn: DsnOption = None, schema: SchemaOption = None) -> None:
    """Let a paused schedule fire again, from its next planned time on."""
    _run(app, dsn, schema, lambda place: place.schedules.resume(name))
    typer.echo(f"resumed {one_line(name)}")


@schedules.command("run")
def run_now(name: Name, app: AppOption = None, dsn: DsnOption = None, schema: SchemaOption = None) -> None:
    """Make a job of a schedule now, and print the job's id; the plan stays as it is."""
    typer.echo(_run(app, dsn, schema, lambda place: place.schedules.run(name)))


@schedules.command()
def skip(name: Name, app: AppOption = None, dsn: DsnOption = None, schema: SchemaOption = None) -> None:
    """Leave the next firing of a schedule out, and print which that was; the one behind it comes as ever."""

    async def act(place: Place) -> str:
        skipped = await place.schedules.skip(name)
        found = await place.schedules.get(name)
        return f"skipped {one_line(name)} at {_moment(skipped, found)}, next at {_moment(found.next_at, found)}"

    typer.echo(_run(app, dsn, schema, act))


@schedules.command()
def remove(name: Name, app: AppOption = None, dsn: DsnOption = None, schema: SchemaOption = None) -> None:
    """Remove a schedule that no code declares, or no longer."""
    _run(app, dsn, schema, lambda place: place.schedules.remove(name))
    typer.echo(f"removed {one_line(name)}")


@schedules.command()
def preview(
    name: Name,
    count: Annotated[int, typer.Option("--count", "-n", help="How many firings.")] = 5,
    app: AppOption = None,
    dsn: DsnOption = None,
    schema: SchemaOption = None,
    json: JsonOption = False,
) -> None:
    """Show the rule in words and the next planned times, in the zone of the schedule."""
    found = _run(app, dsn, schema, lambda place: place.schedules.preview(name, count))
    moments = [moment.isoformat() for moment in found.firings]
    if json:
        _print_json({"words": found.words, "firings": moments})
        return
    typer.echo("\n".join([found.words, *moments]))


def _options(
    cron: str | None, every: str | None, tz: str | None, catch_up: str | None, overlap: str | None, jitter: str | None
) -> ScheduleOptions:
    given = {
        "cron": cron,
        "every": None if every is None else _duration("--every", every),
        "tz": tz,
        "catch_up": catch_up,
        "overlap": overlap,
        "jitter": None if jitter is None else _duration("--jitter", jitter),
    }
    # Whether the choices are choices is checked where they are used, for every caller.
    return cast("ScheduleOptions", {option: value for option, value in given.items() if value is not None})


def _duration(option: str, text: str) -> timedelta:
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?) ?([smhd]?)", text.strip())
    if found is None:
        raise OptionError(f"{option}: expected a duration such as 90s, 15m, 2h or 1d; got {text!r:.80}")
    return timedelta(**{_UNITS[found[2] or "s"]: float(found[1])})


def _decoded(payload: str) -> object:
    try:
        return msgspec.json.decode(payload)
    except msgspec.DecodeError:
        pass
    raise OptionError("--payload: expected a JSON object; got what is no JSON")


def _facts(one: Schedule) -> dict[str, object]:
    return {
        "name": one.name,
        "task": one.job_type,
        "queue": one.queue,
        "words": one.words,
        "cron": one.cron,
        "tz": one.tz,
        "every_seconds": None if one.every is None else one.every.total_seconds(),
        "catch_up": one.catch_up,
        "overlap": one.overlap,
        "jitter_seconds": one.jitter.total_seconds(),
        "state": one.state,
        "edited": one.is_edited,
        "origin": one.origin,
        "app": one.app,
        "next_at": _iso(one.next_at),
        "last_at": _iso(one.last_at),
        "last_job_id": one.last_job_id,
        "paused_at": _iso(one.paused_at),
        "orphaned_at": _iso(one.orphaned_at),
    }


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat()


def _moment(moment: datetime | None, schedule: Schedule) -> str:
    if moment is None:
        return ""
    return moment.astimezone(ZoneInfo(schedule.tz or "UTC")).strftime("%Y-%m-%d %H:%M:%S%z")


def _print_json(value: object) -> None:
    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def _tell(schedule: Schedule, what: str, json: bool) -> None:
    if json:
        _print_json(_facts(schedule))
        return
    typer.echo(f"{what} {one_line(schedule.name)}: {schedule.words}, next at {_moment(schedule.next_at, schedule)}")
