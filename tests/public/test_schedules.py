"""Schedules as users meet them: declared in code, stored by a worker, fired as ordinary jobs, changed by operators."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest
from pydantic import BaseModel, Field

from pqrun import App, CallNext, Deferral, JobContext, JobHandle, JsonObject, Schedules
from pqrun.declaration import ScheduleOptions
from pqrun.errors import (
    ArgumentsError,
    DeclarationError,
    NotOpenError,
    OptionError,
    PayloadError,
    ScheduleNotFound,
    ScheduleRefused,
)
from pqrun.handle import Call
from pqrun.job.record import NewJob
from pqrun.run.events import (
    Done,
    Fired,
    FiringSkipped,
    FiringsMissed,
    ScheduleChanged,
    ScheduleFailed,
    ScheduleOrphaned,
    ScheduleTaken,
)
from tests.public.at_work import at_work, count_jobs, low_level
from tests.support.database import connected
from tests.support.waiting import wait_until

HOUR = timedelta(hours=1)
DAILY: ScheduleOptions = {"cron": "30 2 * * *", "tz": "Europe/Berlin"}


class Day(BaseModel):
    day: str = "yesterday"


class Report:
    """An app with one scheduled task, as several deploys of it would declare it."""

    def __init__(self, dsn: str, *, app: str = "app", is_scheduled: bool = True, **options: Any) -> None:
        self.jobs = App(dsn=dsn, name=app)
        self.seen: list[datetime | None] = []

        @self.jobs.task
        async def report(ctx: JobContext, day: str) -> None:
            self.seen.append(ctx.scheduled_for)

        self.task = report
        if is_scheduled:
            self.jobs.schedule("nightly", report.call(day="yesterday"), **{"cron": "30 2 * * *", **options})


async def make_due(connection: asyncpg.Connection, ago: timedelta = timedelta(0), name: str = "nightly") -> datetime:
    """As if no worker had looked since then; told to those that look now."""
    planned = await connection.fetchval(
        "UPDATE pqrun.schedules SET next_at = clock_timestamp() - $1::interval WHERE name = $2 RETURNING next_at",
        ago,
        name,
    )
    await connection.execute("SELECT pg_notify('pqrun', 'schedules')")
    assert isinstance(planned, datetime)
    return planned


# Declaring.


async def test_a_declared_schedule_is_stored_when_a_worker_starts(dsn: str) -> None:
    deploy = Report(dsn, tz="Europe/Berlin", overlap="skip", jitter=timedelta(minutes=5))
    async with at_work(deploy.jobs) as told:
        assert await told.wait_for(ScheduleChanged) == ScheduleChanged("nightly", "new")
        (stored,) = await deploy.jobs.schedules.list()
    assert (stored.name, stored.job_type, stored.payload) == ("nightly", "report", {"day": "yesterday"})
    assert (stored.cron, stored.tz, stored.catch_up, stored.overlap) == ("30 2 * * *", "Europe/Berlin", "one", "skip")
    assert (stored.jitter, stored.state, stored.app, stored.origin) == (timedelta(minutes=5), "active", "app", "code")
    assert stored.words == "at 02:30 every day, Europe/Berlin"
    assert stored.next_at is not None
    assert stored.next_at.astimezone(UTC).minute == 30


async def test_a_task_declares_its_own_schedule_and_runs_with_the_planned_time(
    jobs: App[None], connection: asyncpg.Connection
) -> None:
    seen: list[tuple[datetime | None, str]] = []

    @jobs.task(every=HOUR, queue="reports", priority=3)
    async def report(ctx: JobContext, day: str = "yesterday") -> None:
        seen.append((ctx.scheduled_for, day))

    async with at_work(jobs) as told:
        await told.wait_for(ScheduleChanged)
        planned = await make_due(connection, name="report")
        done = (await told.wait_for(Done)).job
        await report.defer()
        await told.wait_for(Done, count=2)
    assert seen == [(planned, "yesterday"), (None, "yesterday")]
    assert (done.queue, done.priority, done.payload) == ("reports", 3, {})


async def test_a_default_is_what_the_code_says_when_the_job_runs(jobs: App[None], dsn: str) -> None:
    class Moment(BaseModel):
        at: datetime = Field(default_factory=lambda: datetime.now(UTC))

    @jobs.task(payload=Moment, cron="0 0 * * *")
    async def note(ctx: JobContext, payload: Moment) -> None: ...

    async with at_work(jobs) as told:
        await told.wait_for(ScheduleChanged)
        assert (await jobs.schedules.get("note")).payload == {}
    again = App(dsn=dsn)
    again.task(name="note", payload=Moment, cron="0 0 * * *")(note._declared.function)  # type: ignore[arg-type]  # the plain function
    async with at_work(again) as told:
        await wait_until(lambda: _has_looked(again, "note"))
        assert told.of(ScheduleChanged) == []


async def _has_looked(jobs: App[Any], name: str) -> bool:
    return (await jobs.schedules.get(name)).next_at is not None


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"cron": "61 * * * *"}, OptionError, "cron: .*bad minute"),
        ({"cron": "* * * * *", "tz": "Mars/Base"}, OptionError, "tz: .*Mars/Base"),
        ({"cron": "* * * * *", "every": HOUR}, OptionError, "cron and every exclude each other"),
        ({"every": timedelta(0)}, OptionError, "every: "),
        ({"every": timedelta(days=9999)}, OptionError, "every: "),
        ({"tz": "UTC"}, OptionError, r"tz: goes with cron= or every="),
        ({"catch_up": "all"}, OptionError, r"catch_up: goes with cron= or every="),
        ({"every": HOUR, "catch_up": "some"}, OptionError, "catch_up: "),
        ({"every": HOUR, "overlap": "never"}, OptionError, "overlap: "),
        ({"every": HOUR, "jitter": 5}, OptionError, "jitter: "),
    ],
)
def test_an_impossible_schedule_is_refused_where_a_task_declares_it(
    jobs: App[None], options: Any, error: type[Exception], message: str
) -> None:
    async def report(ctx: JobContext[None], day: str = "x") -> None: ...

    with pytest.raises(error, match=message):
        jobs.task(**options)(report)
    assert jobs.handlers == {}


def test_a_task_with_required_payload_cannot_declare_a_schedule(jobs: App[None]) -> None:
    async def report(ctx: JobContext[None], day: str) -> None: ...

    async def one_model(ctx: JobContext[None], payload: Day) -> None: ...

    with pytest.raises(
        DeclarationError, match=r"cron=: a task with a required payload.*day.*jobs.schedule\('a name', report"
    ):
        jobs.task(cron="* * * * *")(report)
    jobs.task(every=HOUR)(one_model)  # the model has defaults for all
    assert set(jobs.handlers) == {"one_model"}


def test_an_impossible_schedule_is_refused_where_the_app_declares_it(jobs: App[None]) -> None:
    @jobs.task
    async def report(ctx: JobContext, day: str) -> None: ...

    call = report.call(day="x")
    schedule: Callable[..., object] = jobs.schedule
    refused: list[tuple[tuple[Any, ...], Any, type[Exception], str]] = [
        (("", call), DAILY, OptionError, "name: "),
        (("a\x00", call), DAILY, OptionError, "name: "),
        ((3, call), DAILY, OptionError, "name: "),
        (("s", report), DAILY, ArgumentsError, r"expected task.call\(...\), got Task"),
        (("s", report.options(run_after=HOUR).call(day="x")), DAILY, ArgumentsError, "run_after"),
        (("s", call), {"corn": "x"}, ArgumentsError, "no option 'corn'"),
        (("s", call), {}, OptionError, "cron or every"),
        (("s", call), {"every": HOUR, "tz": "UTC"}, OptionError, "tz: goes with cron= only"),
    ]
    for arguments, options, error, message in refused:
        with pytest.raises(error, match=message):
            schedule(*arguments, **options)
    with pytest.raises(DeclarationError, match="'report' is no task of this app"):
        App(dsn="postgresql://localhost/other").schedule("s", call, every=HOUR)
    jobs.schedule("s", call, every=HOUR)
    with pytest.raises(DeclarationError, match="the name 's' is taken"):
        jobs.schedule("s", call, every=HOUR)


# Firing.


async def test_the_options_of_the_call_and_its_dedupe_key_go_with_every_firing(
    jobs: App[None], connection: asyncpg.Connection
) -> None:
    @jobs.task(dedupe_key="report:{day}")
    async def report(ctx: JobContext, day: str) -> None: ...

    jobs.schedule("nightly", report.options(queue="slow", max_attempts=2, timeout=9).call(day="x"), every=HOUR)
    async with at_work(jobs, queues=["default"]) as told:
        await told.wait_for(ScheduleChanged)
        await make_due(connection)
        await told.wait_for(Fired)
        await make_due(connection)
        assert (await told.wait_for(FiringSkipped)).reason == "dedupe"
    row = await connection.fetchrow("SELECT queue, max_attempts, timeout_seconds, dedupe_key, status FROM pqrun.jobs")
    assert row is not None
    assert tuple(row) == ("slow", 2, 9.0, "report:x", "READY")


async def test_a_firing_while_the_last_job_is_active_is_skipped_and_the_next_tick_works(
    dsn: str, connection: asyncpg.Connection
) -> None:
    deploy = Report(dsn, overlap="skip")
    async with at_work(deploy.jobs) as told:
        await told.wait_for(ScheduleChanged)
        await connection.execute("UPDATE pqrun.schedules SET queue = 'nobodys'")
        await make_due(connection)
        await told.wait_for(Fired)
        await make_due(connection)
        assert (await told.wait_for(FiringSkipped)).reason == "overlap"
        await connection.execute("DELETE FROM pqrun.jobs")
        await make_due(connection)
        await told.wait_for(Fired, count=2)
    assert await count_jobs(connection) == 1


@pytest.mark.parametrize(("catch_up", "expected"), [("skip", 0), ("one", 1), ("all", 4)])
async def test_after_downtime_missed_firings_are_made_up_for_as_declared(
    dsn: str, connection: asyncpg.Connection, catch_up: str, expected: int
) -> None:
    now = await connection.fetchval("SELECT clock_timestamp()")
    minute = (now.minute + 30) % 60  # half an hour from now, whenever the test runs
    hours = [now.replace(minute=minute, second=0, microsecond=0) + n * HOUR for n in range(-4, 2)]
    missed_hours = [moment for moment in hours if moment < now][-4:]
    deploy = Report(dsn, cron=f"{minute} * * * *", catch_up=catch_up)
    async with at_work(deploy.jobs) as told:
        await told.wait_for(ScheduleChanged)
    await connection.execute("UPDATE pqrun.schedules SET next_at = $1", missed_hours[0])
    async with at_work(deploy.jobs, concurrency=4) as told:
        missed = await told.wait_for(FiringsMissed)
        assert (missed.since, missed.catch_up, missed.jobs) == (missed_hours[0], catch_up, expected)
        if expected:
            await told.wait_for(Done, count=expected)
        assert (await deploy.jobs.schedules.get("nightly")).next_at == missed_hours[-1] + HOUR
    assert sorted(moment for moment in deploy.seen if moment) == missed_hours[4 - expected :]


async def test_a_worker_fires_only_what_it_has_handlers_for(dsn: str, connection: asyncpg.Connection) -> None:
    deploy = Report(dsn)
    async with at_work(deploy.jobs) as told:
        await told.wait_for(ScheduleChanged)
    await make_due(connection)

    async def other(ctx: JobContext) -> None: ...

    async with deploy.jobs, low_level(deploy.jobs.store, {"other": other}) as told:
        await deploy.jobs.schedules.add(
            "own", Call(NewJob(job_type="other", payload="{}"), lambda _: None, lambda _: None), every=HOUR
        )
        await make_due(connection, name="own")
        await told.wait_for(Fired)
        assert [fired.schedule for fired in told.of(Fired)] == ["own"]
    async with at_work(deploy.jobs) as told:
        assert (await told.wait_for(Fired)).schedule == "nightly"


async def test_a_row_that_cannot_be_planned_is_told_of_and_holds_up_no_other(
    dsn: str, connection: asyncpg.Connection
) -> None:
    deploy = Report(dsn)
    deploy.jobs.schedule("broken", deploy.task.call(day="x"), every=HOUR)
    async with at_work(deploy.jobs) as told:
        await told.wait_for(ScheduleChanged, count=2)
        await connection.execute(
            "UPDATE pqrun.schedules SET cron = 'no such thing', tz = 'UTC', every_seconds = NULL WHERE name = 'broken'"
        )
        await make_due(connection, name="broken")
        failed = await told.wait_for(ScheduleFailed)
        assert (failed.schedule, "CronSimError" in failed.error) == ("broken", True)
        await make_due(connection)
        assert (await told.wait_for(Fired)).schedule == "nightly"
        assert len(told.of(ScheduleFailed)) == 1
        await connection.execute("UPDATE pqrun.schedules SET cron = '0 0 * * *' WHERE name = 'broken'")
        await make_due(connection, name="broken")
        assert (await told.wait_for(Fired, count=2)).schedule == "broken"


async def test_a_key_that_an_open_transaction_is_taking_holds_up_its_schedule_alone(
    dsn: str, connection: asyncpg.Connection
) -> None:
    deploy = Report(dsn)
    held = deploy.task.options(dedupe_key="k").call(day="x")
    deploy.jobs.schedule("held", held, every=HOUR)
    async with at_work(deploy.jobs) as told:
        await told.wait_for(ScheduleChanged, count=2)
        async with connected(dsn) as other, other.transaction():
            await other.execute("SELECT pqrun.enqueue('report', '{\"day\": \"x\"}', dedupe_key => 'k')")
            await connection.execute("UPDATE pqrun.schedules SET next_at = clock_timestamp()")
            await connection.execute("SELECT pg_notify('pqrun', 'schedules')")
            assert (await told.wait_for(Fired)).schedule == "nightly"
            assert (await told.wait_for(ScheduleFailed)).schedule == "held"
        skipped = await told.wait_for(FiringSkipped)
        assert (skipped.schedule, skipped.reason) == ("held", "dedupe")


# Hooks, middleware and versions.


async def test_middleware_sees_the_job_of_a_firing_and_hooks_around_defer_do_not(
    dsn: str, connection: asyncpg.Connection
) -> None:
    deploy = Report(dsn)
    seen: list[str] = []

    @deploy.jobs.before_defer
    def before(deferral: Deferral) -> None:
        seen.append("before")

    @deploy.jobs.after_defer
    def after(deferral: Deferral, handle: JobHandle[object]) -> None:
        seen.append("after")

    @deploy.jobs.middleware
    async def around(ctx: JobContext, call_next: CallNext) -> object:
        seen.append(f"around {ctx.scheduled_for}")
        return await call_next(ctx)

    async with at_work(deploy.jobs) as told:
        await told.wait_for(ScheduleChanged)
        planned = await make_due(connection)
        await told.wait_for(Done)
        await deploy.jobs.schedules.run("nightly")
        await told.wait_for(Done, count=2)
    assert seen[0] == f"around {planned}"
    assert [what.split()[0] for what in seen] == ["around", "around"]


async def test_a_schedule_is_of_the_version_of_its_task_and_a_raised_version_stores_it_anew(
    dsn: str, connection: asyncpg.Connection
) -> None:
    def deploy(version: int) -> tuple[App[None], list[int]]:
        jobs, seen = App(dsn=dsn), []

        def up(payload: JsonObject) -> JsonObject:
            return payload

        @jobs.task(version=version, upgrades=dict.fromkeys(range(1, version), up), cron="30 2 * * *")
        async def nightly(ctx: JobContext) -> None:
            seen.append(ctx.job.payload_version)

        return jobs, seen

    for version, change in ((2, "new"), (3, "changed")):
        jobs, seen = deploy(version)
        async with at_work(jobs) as told:
            assert await told.wait_for(ScheduleChanged) == ScheduleChanged("nightly", change)
            assert (await jobs.schedules.get("nightly")).payload_version == version
            await make_due(connection)
            await told.wait_for(Done)
        assert seen == [version]


async def test_a_worker_upgrades_the_payload_of_a_schedule_that_was_added_before_its_version(
    dsn: str, connection: asyncpg.Connection
) -> None:
    jobs = App(dsn=dsn)
    seen: list[str] = []

    def up(payload: JsonObject) -> JsonObject:
        return {"day": payload["date"]}

    @jobs.task(version=2, upgrades={1: up})
    async def report(ctx: JobContext, day: str) -> None:
        seen.append(day)

    async with at_work(jobs) as told:
        old = NewJob(job_type="report", payload='{"date": "x"}')
        await jobs.schedules.add("old", Call(old, lambda _: None, lambda _: None), every=HOUR)
        await make_due(connection, name="old")
        await told.wait_for(Done)
    assert seen == ["x"]


# Deploys.


async def test_an_edit_and_a_pause_survive_a_deploy_that_changes_nothing_and_a_change_of_code_is_applied(
    dsn: str,
) -> None:
    first = Report(dsn)
    async with at_work(first.jobs) as told:
        await told.wait_for(ScheduleChanged)
        edited = await first.jobs.schedules.edit("nightly", cron="45 3 * * *")
        await first.jobs.schedules.pause("nightly")
        assert edited.is_edited
    second = Report(dsn)
    second.jobs.schedule("probe", second.task.call(day="x"), every=HOUR)
    async with at_work(second.jobs) as told:
        assert (await told.wait_for(ScheduleChanged)).schedule == "probe"
        kept = await second.jobs.schedules.get("nightly")
        assert (kept.cron, kept.state) == ("45 3 * * *", "paused")
    third = Report(dsn, cron="0 4 * * *")
    async with at_work(third.jobs) as told:
        assert await told.wait_for(ScheduleChanged) == ScheduleChanged("nightly", "changed")
        changed = await third.jobs.schedules.get("nightly")
        assert (changed.cron, changed.state, changed.is_edited) == ("0 4 * * *", "paused", False)


async def test_what_code_dropped_is_orphaned_and_comes_back_with_its_code(
    dsn: str, connection: asyncpg.Connection
) -> None:
    async with at_work(Report(dsn).jobs) as told:
        await told.wait_for(ScheduleChanged)
    await make_due(connection)
    dropped = Report(dsn, is_scheduled=False)
    async with at_work(dropped.jobs) as told:
        await wait_until(lambda: _is(dropped.jobs, "orphaned"))
    back = Report(dsn)
    async with at_work(back.jobs) as told:
        assert await told.wait_for(ScheduleChanged) == ScheduleChanged("nightly", "restored")
        await wait_until(lambda: _has_looked(back.jobs, "nightly"))
        assert told.of(FiringsMissed) == []


async def _is(jobs: App[Any], state: str) -> bool:
    return (await jobs.schedules.get("nightly")).state == state


async def test_a_rolling_deploy_orphans_only_when_the_last_worker_that_declares_it_is_gone(
    dsn: str, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pqrun.run.schedule.ORPHAN_SECONDS", 0.0)
    old, new = Report(dsn), Report(dsn, is_scheduled=False)
    async with at_work(old.jobs) as told:
        await told.wait_for(ScheduleChanged)
    async with at_work(old.jobs), at_work(new.jobs) as told:
        await make_due(connection)
        await wait_until(lambda: old.seen or new.seen)
        assert await _is(new.jobs, "active")
        assert told.of(ScheduleOrphaned) == []
    async with at_work(new.jobs) as told:
        await told.wait_for(ScheduleOrphaned)


async def test_two_apps_in_one_schema_leave_each_other_alone(dsn: str) -> None:
    shop = Report(dsn, app="shop")
    async with at_work(shop.jobs) as told:
        await told.wait_for(ScheduleChanged)
    blog = Report(dsn, app="blog")
    async with at_work(blog.jobs) as told:
        assert (await told.wait_for(ScheduleTaken)).schedule == "nightly"
        stored = await blog.jobs.schedules.get("nightly")
    assert (stored.app, stored.state) == ("shop", "active")


# Operators.


@pytest.fixture
async def opened(jobs: App[None]) -> Any:
    """An open app with a task, and no worker."""

    @jobs.task
    async def report(ctx: JobContext, day: str) -> None: ...

    async with jobs:
        yield jobs, report


async def test_an_operator_adds_edits_pauses_resumes_runs_and_removes(
    opened: tuple[App[None], Any], connection: asyncpg.Connection
) -> None:
    jobs, report = opened
    added = await jobs.schedules.add("mine", report.call(day="x"), cron="0 6 * * MON", tz="Europe/Berlin", paused=True)
    assert (added.state, added.origin, added.app, added.is_edited) == ("paused", "operator", None, False)
    await jobs.schedules.resume("mine")
    await jobs.schedules.resume("mine")
    edited = await jobs.schedules.edit("mine", every=2 * HOUR, overlap="skip", call=report.call(day="y"))
    assert (edited.cron, edited.tz, edited.every, edited.overlap, edited.payload) == (
        None,
        None,
        2 * HOUR,
        "skip",
        {"day": "y"},
    )
    assert edited.next_at is not None
    assert edited.next_at != added.next_at
    job_id = await jobs.schedules.run("mine")
    assert (await report.handle(job_id).job()).scheduled_for is not None
    with pytest.raises(ScheduleRefused, match=f"its last job, {job_id}, is still active") as refused:
        await jobs.schedules.run("mine")
    assert (refused.value.name, refused.value.job_id) == ("mine", job_id)
    assert (await jobs.schedules.get("mine")).next_at == edited.next_at
    await jobs.schedules.pause("mine")
    assert [one.state for one in await jobs.schedules.list()] == ["paused"]
    await jobs.schedules.remove("mine")
    assert await jobs.schedules.list() == []


async def test_the_next_firing_is_skipped_and_the_one_behind_it_comes(
    opened: tuple[App[None], Any], connection: asyncpg.Connection
) -> None:
    jobs, report = opened
    added = await jobs.schedules.add("mine", report.call(day="x"), cron="0 6 * * *", tz="Europe/Berlin")
    first, second, third = (await jobs.schedules.preview("mine", 3)).firings
    assert first == added.next_at
    assert await jobs.schedules.skip("mine") == first
    assert (await jobs.schedules.get("mine")).next_at == second
    with pytest.raises(ScheduleRefused, match="its next time is"):
        await jobs.schedules.skip("mine", planned=first)
    assert await jobs.schedules.skip("mine", planned=second) == second
    assert (await jobs.schedules.get("mine")).next_at == third
    assert not (await jobs.schedules.get("mine")).is_edited
    await connection.execute("UPDATE pqrun.schedules SET next_at = NULL")
    assert await jobs.schedules.skip("mine") == first
    assert (await jobs.schedules.get("mine")).next_at == second
    await jobs.schedules.pause("mine")
    with pytest.raises(ScheduleRefused, match="is paused"):
        await jobs.schedules.skip("mine")
    with pytest.raises(ScheduleNotFound):
        await jobs.schedules.skip("other")


@pytest.mark.parametrize(("catch_up", "left"), [("skip", 0), ("one", 0), ("all", 2)])
async def test_a_late_firing_is_skipped_with_what_it_would_make_up_for(
    opened: tuple[App[None], Any], connection: asyncpg.Connection, catch_up: Any, left: int
) -> None:
    jobs, report = opened
    await jobs.schedules.add("mine", report.call(day="x"), every=HOUR, catch_up=catch_up)
    late = await connection.fetchval(
        "UPDATE pqrun.schedules SET next_at = next_at - interval '3 hours' RETURNING next_at"
    )
    assert await jobs.schedules.skip("mine") == late
    following = (await jobs.schedules.get("mine")).next_at
    assert following == late + (3 - left) * HOUR


async def test_schedules_are_changed_from_synchronous_code(opened: tuple[App[None], Any]) -> None:
    jobs, report = opened
    added = await jobs.schedules.add("mine", report.call(day="x"), cron="0 6 * * *")

    def by_hand() -> tuple[int, datetime]:
        jobs.schedules.pause_sync("mine")
        jobs.schedules.resume_sync("mine")
        return jobs.schedules.run_sync("mine"), jobs.schedules.skip_sync("mine", planned=added.next_at)

    job_id, skipped = await asyncio.to_thread(by_hand)
    assert (await report.handle(job_id).job()).payload == {"day": "x"}
    assert skipped == added.next_at
    await asyncio.to_thread(jobs.schedules.remove_sync, "mine")
    assert await jobs.schedules.list() == []
    with pytest.raises(ArgumentsError, match="expected the schedules of an App"):
        Schedules(jobs.store).skip_sync("mine")


async def test_an_edit_leaves_what_it_does_not_name(opened: tuple[App[None], Any]) -> None:
    jobs, report = opened
    options: ScheduleOptions = {**DAILY, "overlap": "skip", "catch_up": "all", "jitter": HOUR}
    await jobs.schedules.add("s", report.call(day="x"), **options)
    moved = await jobs.schedules.edit("s", tz="America/New_York")
    assert (moved.cron, moved.tz) == ("30 2 * * *", "America/New_York")
    assert (moved.overlap, moved.catch_up, moved.jitter) == ("skip", "all", HOUR)
    assert (await jobs.schedules.edit("s", cron="0 1 * * *")).tz == "America/New_York"
    planned = (await jobs.schedules.get("s")).next_at
    quiet = await jobs.schedules.edit("s", catch_up="skip")
    assert (quiet.catch_up, quiet.next_at, quiet.payload) == ("skip", planned, {"day": "x"})
    await jobs.schedules.edit("s", every=HOUR)
    with pytest.raises(OptionError, match="tz: goes with cron= only"):
        await jobs.schedules.edit("s", tz="UTC")


async def test_what_cannot_be_done_is_refused_with_the_name(opened: tuple[App[None], Any]) -> None:
    jobs, report = opened
    await jobs.schedules.add("s", report.call(day="x"), **DAILY)
    with pytest.raises(ScheduleRefused, match="there is a schedule 's' already"):
        await jobs.schedules.add("s", report.call(day="x"), **DAILY)
    attempts: list[Callable[[str], Awaitable[object]]] = [
        jobs.schedules.get,
        jobs.schedules.pause,
        jobs.schedules.resume,
        jobs.schedules.run,
        jobs.schedules.remove,
        jobs.schedules.preview,
        jobs.schedules.edit,
    ]
    for attempt in attempts:
        with pytest.raises(ScheduleNotFound, match="there is no schedule 'other'") as missing:
            await attempt("other")
        assert missing.value.name == "other"
    with pytest.raises(OptionError, match="count: "):
        await jobs.schedules.preview("s", -1)
    with pytest.raises(OptionError, match="cron: "):
        await jobs.schedules.edit("s", cron="x")


async def test_a_schedule_that_code_declares_is_not_removed_until_it_is_orphaned(dsn: str) -> None:
    deploy = Report(dsn)
    async with at_work(deploy.jobs) as told:
        await told.wait_for(ScheduleChanged)
        with pytest.raises(ScheduleRefused, match="declared by the code of app 'app'"):
            await deploy.jobs.schedules.remove("nightly")
    dropped = Report(dsn, is_scheduled=False)
    async with at_work(dropped.jobs):
        await wait_until(lambda: _is(dropped.jobs, "orphaned"))
        await dropped.jobs.schedules.remove("nightly")
        assert await dropped.jobs.schedules.list() == []


async def test_a_run_out_of_turn_is_refused_by_a_taken_key(opened: tuple[App[None], Any]) -> None:
    jobs, report = opened
    await jobs.schedules.add("s", report.options(dedupe_key="k").call(day="x"), **DAILY)
    first = await jobs.schedules.run("s")
    with pytest.raises(ScheduleRefused, match=f"the active job {first} has its dedupe key"):
        await jobs.schedules.run("s")


async def test_a_preview_gives_the_rule_in_words_and_the_next_times_in_its_zone(
    opened: tuple[App[None], Any], connection: asyncpg.Connection
) -> None:
    jobs, report = opened
    added = await jobs.schedules.add("s", report.call(day="x"), **DAILY)
    found = await jobs.schedules.preview("s", 3)
    assert found.words == "at 02:30 every day, Europe/Berlin"
    assert [(moment.hour, moment.minute) for moment in found.firings] in ([(2, 30)] * 3, [(2, 30), (3, 0), (2, 30)])
    assert found.firings[0] == added.next_at
    assert (await jobs.schedules.preview("s", 0)).firings == ()
    by_hand = await connection.fetchval(
        "UPDATE pqrun.schedules SET next_at = now() + interval '1 minute' RETURNING next_at"
    )
    assert (await jobs.schedules.preview("s", 2)).firings[0] == by_hand


async def test_a_worker_hears_of_a_new_schedule_at_once(jobs: App[None]) -> None:
    @jobs.task
    async def report(ctx: JobContext, day: str) -> None: ...

    async with at_work(jobs) as told:
        await jobs.schedules.add("s", report.call(day="x"), every=timedelta(seconds=1))
        await told.wait_for(Done, seconds=8)  # the poll would come after ten


async def test_schedules_need_an_open_app_or_a_store(jobs: App[None], dsn: str) -> None:
    with pytest.raises(NotOpenError):
        await jobs.schedules.list()
    async with jobs:
        assert await Schedules(jobs.store).list() == []


async def test_a_call_by_name_is_checked_by_its_task(opened: tuple[App[None], Any]) -> None:
    jobs, _ = opened
    assert jobs.call_by_name("report", {"day": "x"}).job.payload == '{"day":"x"}'
    with pytest.raises(PayloadError, match="day"):
        jobs.call_by_name("report", {})
    with pytest.raises(ArgumentsError, match="no task 'other'; it has report"):
        jobs.call_by_name("other", {})
