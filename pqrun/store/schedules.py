"""Schedules as rows: declared by code, changed by operators, moved on by workers."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from pqrun.job.definition import Schedule, ScheduleDefinition, join_rule, split_rule
from pqrun.job.schedule import CatchUp, Rule, check_catch_up
from pqrun.store.enqueueing import Runs
from pqrun.store.rows import Row

__all__ = [
    "DUE_ROWS",
    "DueSchedule",
    "DueSchedules",
    "Fired",
    "Firing",
    "KnownSchedules",
    "RunNow",
    "add",
    "declare",
    "edit",
    "find",
    "find_due",
    "fire",
    "orphan",
    "pause",
    "remove",
    "resume",
    "run_now",
    "skip",
    "touch",
]

DUE_ROWS: Final = 200
"""Due schedules that one look brings, and one statement fires."""


class DueSchedule(NamedTuple):
    """A schedule whose time has come, as far as its plan goes."""

    name: str
    rule: Rule
    catch_up: CatchUp
    jitter: timedelta
    next_at: datetime | None
    revision: int


class DueSchedules(NamedTuple):
    """What a look found, the database's clock at that moment, and when the next one comes."""

    due: list[DueSchedule]
    clock: datetime
    next_in_seconds: float | None
    """None: there is none that this worker serves."""
    has_dropped: bool
    """Whether there is a schedule of this app's that its code does not declare."""


class Firing(NamedTuple):
    """A decision about a due schedule: the jobs to insert, (planned time, due time) each, and the next planned time."""

    schedule: DueSchedule
    jobs: list[tuple[datetime, datetime]]
    next_at: datetime


class Fired(NamedTuple):
    """A schedule that was moved on by us."""

    name: str
    jobs: int
    last_job_id: int | None
    is_busy: bool
    """Whether nothing was inserted because the last firing's job is still active."""


class KnownSchedules(NamedTuple):
    """Rows, and the database's clock when they were read."""

    schedules: list[Schedule]
    clock: datetime


class RunNow(NamedTuple):
    """A firing out of turn: the job, or what stood in its way."""

    job_id: int | None
    busy_id: int | None
    """The active job of the last firing, which ``overlap="skip"`` waits for."""
    holder_id: int | None
    """The active job that has the dedupe key."""


_CONVERTED: Final = {"payload_json", "every", "jitter", "backoff_seconds"}
_AS_STORED: Final = tuple(field for field in Schedule.__struct_fields__ if field not in _CONVERTED)


def stored_schedule(row: Row) -> Schedule:
    """Build a schedule from a row of find_schedules.sql."""
    every, backoff = row["every_seconds"], row["backoff_seconds"]
    return Schedule(
        payload_json=row["payload"],
        every=None if every is None else timedelta(seconds=every),
        jitter=timedelta(seconds=row["jitter_seconds"]),
        backoff_seconds=None if backoff is None else tuple(backoff),
        **{column: row[column] for column in _AS_STORED},
    )


def _columns(definition: ScheduleDefinition) -> tuple[object, ...]:
    """Return a definition as the first parameters of the statements that write one."""
    job = definition.job
    return (
        definition.name,
        job.job_type,
        job.payload,
        job.queue,
        job.priority,
        job.max_attempts,
        job.timeout_seconds,
        job.dedupe_key,
        job.backoff_seconds,
        *split_rule(definition.rule),
        definition.catch_up,
        definition.overlap,
        definition.jitter.total_seconds(),
        job.payload_version,
    )


async def find(session: Runs, names: Sequence[str] | None = None) -> KnownSchedules:
    """Read schedules by name, all without names."""
    rows = await session.run("find_schedules", names)
    return KnownSchedules([stored_schedule(row) for row in rows if row["name"] is not None], rows[0]["clock"])


async def add(session: Runs, definition: ScheduleDefinition, next_at: datetime) -> bool:
    """Write an operator's schedule; return whether its name was free."""
    return bool(await session.run("add_schedule", *_columns(definition), next_at, definition.is_paused))


async def edit(session: Runs, definition: ScheduleDefinition, next_at: datetime | None, revision: int) -> bool:
    """Change a schedule (next_at None: its plan stays); return whether it was still as it was read."""
    return bool(await session.run("edit_schedule", *_columns(definition), next_at, revision))


async def pause(session: Runs, name: str) -> bool:
    """Stop it from firing; return whether there is such a schedule."""
    return bool(await session.run("pause_schedule", name))


async def resume(session: Runs, name: str, next_at: datetime, revision: int) -> bool:
    """Let it fire again; return whether it was paused, and still as it was read."""
    return bool(await session.run("resume_schedule", name, next_at, revision))


async def skip(session: Runs, schedule: Schedule, following: datetime) -> bool:
    """Move it on past its next planned time; return whether that, and the rest of it, were still as they were read."""
    return bool(await session.run("skip_schedule", schedule.name, schedule.next_at, schedule.revision, following))


async def run_now(session: Runs, name: str) -> RunNow | None:
    """Fire out of turn; None where there is no such schedule."""
    rows = await session.run("run_schedule", name)
    return RunNow(rows[0]["id"], rows[0]["busy_id"], rows[0]["holder_id"]) if rows else None


async def remove(session: Runs, name: str) -> tuple[bool, str | None] | None:
    """Return whether it was removed, and whose code declares it; None where there is no such schedule."""
    rows = await session.run("remove_schedule", name)
    return (rows[0]["removed"], rows[0]["app"]) if rows else None


async def touch(session: Runs, definitions: Sequence[ScheduleDefinition], app: str) -> frozenset[str]:
    """Declare what is unchanged; return the names of which that is true."""
    names, texts = [d.name for d in definitions], [d.text for d in definitions]
    return frozenset(row["name"] for row in await session.run("touch_schedules", names, texts, app))


async def declare(session: Runs, definition: ScheduleDefinition, next_at: datetime, app: str) -> str:
    """Declare what is new or changed; return what was done about it (see declare_schedule.sql)."""
    arguments = *_columns(definition), next_at, app, definition.text, definition.is_paused
    return str((await session.run("declare_schedule", *arguments))[0]["change"])


async def orphan(session: Runs, app: str, names: Sequence[str], worker: int) -> list[str]:
    """Take out of service what the app's code has dropped; return the names."""
    return [row["name"] for row in await session.run("orphan_schedules", app, names, worker)]


async def find_due(session: Runs, job_types: Sequence[str], app: str | None, names: Sequence[str]) -> DueSchedules:
    """Look for schedules of these job types whose time has come."""
    rows = await session.run("find_due_schedules", job_types, DUE_ROWS, app, names)
    due = [_due(row) for row in rows if row["name"] is not None]
    last = next(row for row in rows if row["name"] is None)
    return DueSchedules(due, last["clock"], last["next_in_seconds"], last["has_dropped"])


def _due(row: Row) -> DueSchedule:
    rule = join_rule(row["cron"], row["tz"], row["every_seconds"])
    jitter = timedelta(seconds=row["jitter_seconds"])
    return DueSchedule(row["name"], rule, check_catch_up(row["catch_up"]), jitter, row["next_at"], row["revision"])


async def fire(session: Runs, firings: Sequence[Firing]) -> list[Fired]:
    """Insert the jobs and move the schedules on, in one statement; return those that nobody else had moved."""
    jobs = [(firing.schedule.name, *job) for firing in firings for job in firing.jobs]
    rows = await session.run(
        "fire_schedules",
        [firing.schedule.name for firing in firings],
        [firing.schedule.next_at for firing in firings],
        [firing.schedule.revision for firing in firings],
        [firing.next_at for firing in firings],
        *([job[column] for job in jobs] for column in range(3)),
    )
    return [Fired(row["name"], row["jobs"], row["last_job_id"], row["is_busy"]) for row in rows]
