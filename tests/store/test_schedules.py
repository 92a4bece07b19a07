"""Schedules as rows: a tick and its jobs are one statement, fenced; code and operators do not undo each other."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import msgspec
import pytest

from pqrun.errors import StoreError
from pqrun.job.definition import Schedule, ScheduleDefinition
from pqrun.job.outcome import Done, Retrying
from pqrun.job.record import Claim, NewJob
from pqrun.job.schedule import check_rule
from pqrun.job.state import Status
from pqrun.store import PgJobStore, schedules
from pqrun.store.claiming import Claimer, Lane
from pqrun.store.link import KeptLink, Session
from pqrun.store.registry import deregister, register
from pqrun.store.schedules import DueSchedule, DueSchedules, Fired, Firing
from pqrun.store.settling import settle
from pqrun.store.statements import Statements
from pqrun.store.work import WorkStore
from tests.store.listening import hearing
from tests.support.database import connected
from tests.support.rows import make_job
from tests.support.waiting import wait_until

HOUR = timedelta(hours=1)
LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)
LATER = datetime(2030, 1, 1, tzinfo=UTC)


def definition(
    name: str = "s", *, cron: str = "0 * * * *", job: NewJob | None = None, **options: Any
) -> ScheduleDefinition:
    return ScheduleDefinition(
        name=name, job=job or NewJob(job_type="t", payload='{"a": 1}'), rule=check_rule(cron=cron), **options
    )


async def due(session: Session, *definitions: ScheduleDefinition, at: datetime = LONG_AGO) -> list[DueSchedule]:
    """Store these as an operator's, due since then, and look."""
    for one in definitions:
        assert await schedules.add(session, one, at)
    return sorted((await look(session)).due)


async def look(session: Session, types: Sequence[str] = ("t",), app: str | None = None) -> DueSchedules:
    return await schedules.find_due(session, types, app, [])


async def get(session: Session, name: str = "s") -> Schedule:
    (found,) = (await schedules.find(session, [name])).schedules
    return found


def firing(schedule: DueSchedule, *planned: datetime, next_at: datetime = LATER) -> Firing:
    return Firing(schedule, [(moment, moment) for moment in planned or (LONG_AGO,)], next_at)


async def made(connection: asyncpg.Connection) -> list[tuple[Any, ...]]:
    rows = await connection.fetch("SELECT job_type, scheduled_for FROM pqrun.jobs ORDER BY id")
    return [tuple(row) for row in rows]


# Firing.


async def test_a_firing_inserts_the_job_with_all_that_the_schedule_says_and_moves_the_schedule_on(
    dsn: str, session: Session, store: PgJobStore
) -> None:
    job = NewJob(
        job_type="t",
        payload='{"a": 1}',
        payload_version=4,
        queue="q",
        priority=3,
        max_attempts=2,
        timeout_seconds=9.5,
        backoff_seconds=(1.0, 2.0),
    )
    (schedule,) = await due(session, definition(job=job))
    async with hearing(dsn) as heard:
        assert await schedules.fire(session, [firing(schedule)]) == [Fired("s", 1, 1, False)]
        assert await heard.until_now() == ["ready:3:q"]
    stored = await store.get(1)
    assert stored is not None
    assert (stored.job_type, stored.payload, stored.queue, stored.priority, stored.max_attempts) == (
        "t",
        {"a": 1},
        "q",
        3,
        2,
    )
    assert (stored.timeout_seconds, stored.backoff_seconds, stored.status) == (9.5, (1.0, 2.0), Status.READY)
    assert (stored.scheduled_for, stored.run_after, stored.payload_version) == (LONG_AGO, LONG_AGO, 4)
    after = await get(session)
    assert (after.next_at, after.last_at, after.last_job_id, after.revision) == (LATER, LONG_AGO, 1, 1)


async def test_of_any_number_that_saw_one_tick_one_moves_it(session: Session, connection: asyncpg.Connection) -> None:
    (schedule,) = await due(session, definition())
    assert len(await schedules.fire(session, [firing(schedule)])) == 1
    for _ in range(3):
        assert await schedules.fire(session, [firing(schedule)]) == []
    assert await made(connection) == [("t", LONG_AGO)]


async def test_twenty_connections_that_fire_at_once_make_one_job_per_tick(dsn: str, session: Session) -> None:
    await due(session, *(definition(f"s{n}") for n in range(5)))

    async def work() -> int:
        async with connected(dsn) as own:
            mine = Session(own, Statements("pqrun"))
            return len(await schedules.fire(mine, [firing(one) for one in (await look(mine)).due] or []))

    await asyncio.gather(*(work() for _ in range(20)))
    async with connected(dsn) as other:
        assert await other.fetchval("SELECT count(*) FROM pqrun.jobs") == 5
    assert (await look(session)).due == []


async def test_a_schedule_that_another_has_locked_is_left_to_it(
    session: Session, dsn: str, connection: asyncpg.Connection
) -> None:
    locked, free = await due(session, definition("a"), definition("b"))
    async with connected(dsn) as other, other.transaction():
        await other.execute("SELECT FROM pqrun.schedules WHERE name = 'a' FOR UPDATE")
        assert [one.name for one in await schedules.fire(session, [firing(locked), firing(free)])] == ["b"]
    assert len(await made(connection)) == 1


async def test_a_statement_that_fails_moves_nothing_and_makes_nothing(
    session: Session, connection: asyncpg.Connection
) -> None:
    good, bad = await due(session, definition("a"), definition("b"))
    impossible = Firing(bad, [(LONG_AGO, datetime(1, 1, 1, tzinfo=UTC))], LATER)
    with pytest.raises(asyncpg.CheckViolationError):
        await schedules.fire(session, [firing(good), impossible])
    assert await made(connection) == []
    assert [one.next_at for one in (await look(session)).due] == [LONG_AGO, LONG_AGO]


@pytest.mark.parametrize(
    "change",
    ["paused_at = now()", "orphaned_at = now()", "revision = revision + 1", "next_at = next_at + interval '1 hour'"],
)
async def test_what_was_changed_after_the_look_is_not_fired(
    session: Session, connection: asyncpg.Connection, change: str
) -> None:
    (schedule,) = await due(session, definition())
    await connection.execute(f"UPDATE pqrun.schedules SET {change}")
    assert await schedules.fire(session, [firing(schedule)]) == []
    assert await made(connection) == []


async def test_of_a_firing_and_a_skip_that_saw_one_tick_one_moves_it(
    dsn: str, session: Session, connection: asyncpg.Connection
) -> None:
    """Repeated, as each may come first; whichever it was, there is a job or a skip, never both and never neither."""
    for number in range(20):
        name = f"s{number}"
        (seen,) = await due(session, definition(name))
        stored = await get(session, name)
        async with connected(dsn) as one, connected(dsn) as other:
            fired, skipped = await asyncio.gather(
                schedules.fire(Session(one, Statements("pqrun")), [firing(seen)]),
                schedules.skip(Session(other, Statements("pqrun")), stored, LATER),
            )
        jobs = await session.run("list_active", None, 100)
        assert (len(fired), skipped) in ((1, False), (0, True))
        assert len(jobs) == len(fired)
        assert (await get(session, name)).next_at == LATER
        await connection.execute("DELETE FROM pqrun.jobs; DELETE FROM pqrun.schedules")


async def test_a_skip_waits_for_a_firing_that_has_not_committed_and_then_does_nothing(
    dsn: str, session: Session, connection: asyncpg.Connection
) -> None:
    (seen,) = await due(session, definition())
    stored = await get(session)
    transaction = connection.transaction()
    await transaction.start()
    assert len(await schedules.fire(Session(connection, Statements("pqrun")), [firing(seen)])) == 1
    async with connected(dsn) as other:
        skip = asyncio.ensure_future(schedules.skip(Session(other, Statements("pqrun")), stored, LATER + HOUR))
        await wait_until(lambda: is_waiting_for_a_lock(connection, other))
        await transaction.commit()
        assert not await skip
    assert (await get(session)).next_at == LATER


async def test_a_firing_passes_over_a_skip_that_has_not_committed(
    dsn: str, session: Session, connection: asyncpg.Connection
) -> None:
    (seen,) = await due(session, definition())
    async with connection.transaction():
        assert await schedules.skip(Session(connection, Statements("pqrun")), await get(session), LATER)
        assert await schedules.fire(session, [firing(seen)]) == []
    assert await schedules.fire(session, [firing(seen)]) == []
    assert await made(connection) == []


async def is_waiting_for_a_lock(connection: asyncpg.Connection, other: asyncpg.Connection) -> bool:
    query = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $1"
    return bool(await connection.fetchval(query, other.get_server_pid()))


async def test_the_clock_of_the_database_decides_what_is_due(session: Session, connection: asyncpg.Connection) -> None:
    assert await due(session, definition(), at=LATER) == []
    early = DueSchedule("s", check_rule(every=HOUR), "one", timedelta(0), LATER, 1)
    assert await schedules.fire(session, [firing(early)]) == []
    assert await made(connection) == []


async def test_a_schedule_without_a_plan_is_planned_and_nothing_else(
    session: Session, connection: asyncpg.Connection
) -> None:
    await due(session, definition())
    await connection.execute("UPDATE pqrun.schedules SET next_at = NULL")
    (schedule,) = (await look(session)).due
    assert schedule.next_at is None
    assert await schedules.fire(session, [Firing(schedule, [], LATER)]) == [Fired("s", 0, None, False)]
    assert (await get(session)).next_at == LATER
    assert await made(connection) == []


async def test_a_job_that_is_put_off_is_scheduled_and_announced_for_later(
    dsn: str, session: Session, store: PgJobStore
) -> None:
    (schedule,) = await due(session, definition())
    async with hearing(dsn) as heard:
        await schedules.fire(session, [Firing(schedule, [(LONG_AGO, LATER)], LATER)])
        assert await heard.until_now() == [f"due:{LATER.timestamp():.6f}"]
    job = await store.get(1)
    assert job is not None
    assert (job.status, job.run_after, job.scheduled_for) == (Status.SCHEDULED, LATER, LONG_AGO)


async def test_several_missed_firings_become_jobs_in_their_order(
    session: Session, connection: asyncpg.Connection
) -> None:
    (schedule,) = await due(session, definition(catch_up="all"))
    moments = [LONG_AGO + n * HOUR for n in range(3)]
    assert await schedules.fire(session, [firing(schedule, *moments)]) == [Fired("s", 3, 3, False)]
    assert await made(connection) == [("t", moment) for moment in moments]
    assert (await get(session)).last_at == moments[-1]


async def test_overlap_skip_makes_no_job_while_the_last_one_is_active_and_goes_on_after_it(
    session: Session, connection: asyncpg.Connection
) -> None:
    (schedule,) = await due(session, definition(overlap="skip"))
    await schedules.fire(session, [firing(schedule, LONG_AGO, LONG_AGO + HOUR, next_at=LONG_AGO + 2 * HOUR)])
    assert await made(connection) == [("t", LONG_AGO + HOUR)]  # of several the latest
    (schedule,) = (await look(session)).due
    assert await schedules.fire(session, [firing(schedule, next_at=LONG_AGO + 3 * HOUR)]) == [Fired("s", 0, None, True)]
    assert (await get(session)).last_at == LONG_AGO + HOUR
    await connection.execute("DELETE FROM pqrun.jobs")
    (schedule,) = (await look(session)).due
    assert await schedules.fire(session, [firing(schedule)]) == [Fired("s", 1, 2, False)]


async def test_a_dedupe_key_that_is_taken_makes_no_job_and_no_error(
    session: Session, connection: asyncpg.Connection
) -> None:
    job = NewJob(job_type="t", payload="{}", dedupe_key="k")
    taken, free = await due(session, definition("a", job=job, catch_up="all"), definition("b"))
    await make_job(connection, dedupe_key="k")
    fired = await schedules.fire(session, [firing(taken, LONG_AGO, LONG_AGO + HOUR), firing(free)])
    assert sorted(fired) == [
        Fired("a", 0, None, False),
        Fired("b", 1, fired[-1].last_job_id or fired[0].last_job_id, False),
    ]
    assert (await look(session)).due == []


# What the look says.


async def test_a_look_brings_what_is_due_of_the_types_asked_for_and_when_the_next_comes(
    session: Session, connection: asyncpg.Connection
) -> None:
    soon = await connection.fetchval("SELECT clock_timestamp() + interval '40 seconds'")
    await due(session, definition("due"), definition("foreign", job=NewJob(job_type="foreign", payload="{}")))
    await schedules.add(session, definition("soon"), soon)
    await schedules.add(session, definition("paused", is_paused=True), LONG_AGO)
    found = await look(session)
    assert [one.name for one in found.due] == ["due"]
    assert found.next_in_seconds is not None
    assert 20 < found.next_in_seconds <= 40
    assert (await look(session, ["nobody"])).next_in_seconds is None


async def test_the_look_for_due_schedules_reads_its_index_alone(link: KeptLink, connection: asyncpg.Connection) -> None:
    await connection.execute(
        "INSERT INTO pqrun.schedules (name, job_type, every_seconds, next_at) "
        "SELECT 's' || n, 't', 60, now() + n * interval '1 hour' FROM generate_series(1, 5000) n"
    )
    await connection.execute("ANALYZE pqrun.schedules; SET enable_seqscan = off; SET enable_bitmapscan = off")
    text = Statements("pqrun")["find_due_schedules"]
    for number, value in enumerate(("ARRAY['t']", "200", "NULL", "ARRAY[]::text[]"), start=1):
        text = text.replace(f"${number}", value)
    plan = "\n".join(row[0] for row in await connection.fetch(f"EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) {text}"))
    assert "Index Scan using schedules_due" in plan
    assert "Seq Scan on schedules" not in plan
    assert "Rows Removed by Filter" not in plan
    assert (await schedules.find_due(link, ["t"], None, [])).next_in_seconds is not None


# The planned time travels with the job.


async def fired_and_claimed(session: Session, claimer: Claimer) -> Claim:
    (schedule,) = await due(session, definition())
    await schedules.fire(session, [firing(schedule)])
    return await claimed(claimer)


async def claimed(claimer: Claimer) -> Claim:
    batch = await claimer.claim([(Lane("default", 0), 0)], ["t"], [], [], limit=1, look=10, free=1)
    (job,) = batch.jobs
    assert job.scheduled_for == LONG_AGO
    return Claim(job.id, job.claim_id or 0)


async def planned_time(store: PgJobStore, job_id: int) -> datetime | None:
    job = await store.get(job_id)
    assert job is not None
    return job.scheduled_for


async def test_the_planned_time_stays_through_retry_end_and_retry_by_hand(
    session: Session, claimer: Claimer, store: PgJobStore
) -> None:
    claim = await fired_and_claimed(session, claimer)
    await settle(session, [Retrying(claim, 1, error="x", delay_seconds=0.0)])
    await claimer.promote(None)
    claim = await claimed(claimer)
    await settle(session, [Done(claim, 1, None)])
    assert await planned_time(store, claim.job_id) == LONG_AGO
    await store.retry(claim.job_id, force=True)
    assert await planned_time(store, claim.job_id) == LONG_AGO
    await claimed(claimer)


async def test_the_planned_time_stays_through_a_cancel_and_a_lost_worker(
    session: Session, claimer: Claimer, store: PgJobStore, connection: asyncpg.Connection
) -> None:
    claim = await fired_and_claimed(session, claimer)
    (forgotten,) = await claimer.find_forgotten([])
    assert forgotten.scheduled_for == LONG_AGO
    await connection.execute(
        "UPDATE pqrun.jobs SET status = 'READY', lost = 1, worker = NULL, claim_id = NULL, locked_at = NULL, locked_by = NULL"
    )
    suspect = await claimer.claim_suspect(None, ["t"], [])
    assert suspect is not None
    assert suspect.scheduled_for == LONG_AGO
    await connection.execute(
        "UPDATE pqrun.jobs SET status = 'READY', worker = NULL, claim_id = NULL, locked_at = NULL, locked_by = NULL"
    )
    await store.cancel(claim.job_id)
    assert await planned_time(store, claim.job_id) == LONG_AGO


async def test_other_jobs_have_no_planned_time(store: PgJobStore) -> None:
    assert await planned_time(store, await store.enqueue("t", {})) is None


# What the code declares.


async def declare(session: Session, one: ScheduleDefinition, app: str = "app") -> str:
    if one.name in await schedules.touch(session, [one], app):
        return "known"
    return await schedules.declare(session, one, LATER, app)


async def test_code_is_stored_once_and_applied_again_only_when_it_changes(session: Session) -> None:
    assert await declare(session, definition()) == "new"
    first = await get(session)
    assert (first.origin, first.app, first.next_at, first.is_edited) == ("code", "app", LATER, False)
    assert await declare(session, definition()) == "known"
    assert await get(session) == first
    assert await declare(session, definition(cron="5 * * * *")) == "changed"
    changed = await get(session)
    assert (changed.cron, changed.revision, changed.is_edited) == ("5 * * * *", 2, False)


async def test_an_edit_and_a_pause_survive_a_deploy_that_changes_nothing(session: Session) -> None:
    await declare(session, definition())
    edited = msgspec.structs.replace(definition(), rule=check_rule(cron="7 * * * *"))
    assert await schedules.edit(session, edited, LONG_AGO, 1)
    assert await schedules.pause(session, "s")
    assert await declare(session, definition()) == "known"
    kept = await get(session)
    assert (kept.cron, kept.state, kept.is_edited) == ("7 * * * *", "paused", True)


async def test_a_change_of_the_code_wins_over_an_edit_but_not_over_a_pause(session: Session) -> None:
    await declare(session, definition())
    await schedules.edit(session, definition(cron="7 * * * *"), LONG_AGO, 1)
    await schedules.pause(session, "s")
    assert await declare(session, definition(cron="9 * * * *")) == "changed"
    kept = await get(session)
    assert (kept.cron, kept.state, kept.is_edited) == ("9 * * * *", "paused", False)


async def test_a_deploy_that_leaves_the_rule_leaves_the_plan(session: Session, connection: asyncpg.Connection) -> None:
    await declare(session, definition())
    await connection.execute("UPDATE pqrun.schedules SET next_at = $1", LONG_AGO)  # missed while workers were down
    other = definition(job=NewJob(job_type="t", payload='{"a": 2}'))
    assert await declare(session, other) == "changed"
    assert (await get(session)).next_at == LONG_AGO
    assert await declare(session, definition(cron="9 * * * *", job=other.job)) == "changed"
    assert (await get(session)).next_at == LATER


async def test_a_schedule_can_begin_paused_and_that_is_no_change_of_the_code(session: Session) -> None:
    assert await declare(session, definition(is_paused=True)) == "new"
    assert (await get(session)).state == "paused"
    assert await declare(session, definition()) == "known"


@pytest.mark.parametrize("other", ["operator", "app"])
async def test_a_name_that_somebody_else_has_is_left_alone(session: Session, other: str) -> None:
    if other == "operator":
        await schedules.add(session, definition(cron="1 1 * * *"), LATER)
    else:
        await declare(session, definition(cron="1 1 * * *"), "shop")
    assert await declare(session, definition()) == "taken"
    assert (await get(session)).cron == "1 1 * * *"


async def test_equal_definitions_have_equal_texts_whatever_the_order_of_keys() -> None:
    one = definition(job=NewJob(job_type="t", payload='{"a": 1, "b": {"d": 1, "c": 2}}'))
    same = definition(job=NewJob(job_type="t", payload='{"b": {"c": 2, "d": 1}, "a": 1}'))
    assert one.text == same.text
    assert one.text != definition().text


# What the code drops.


async def worker_row(session: Session, *declared: str) -> int:
    return await register(session, "w", "h", 1, schedules=list(declared))


async def test_what_nobody_declares_any_more_is_orphaned_by_a_worker_that_started_later(session: Session) -> None:
    await declare(session, definition("old"))
    await declare(session, definition("kept"))
    await declare(session, definition("foreign"), "shop")
    await schedules.add(session, definition("operators"), LATER)
    assert (await look(session, app="app")).has_dropped
    worker = await worker_row(session, "kept")
    assert await schedules.orphan(session, "app", ["kept"], worker) == ["old"]
    states = {one.name: one.state for one in (await schedules.find(session)).schedules}
    assert states == {"old": "orphaned", "kept": "active", "foreign": "active", "operators": "active"}
    assert not (await schedules.find_due(session, ["t"], "app", ["kept"])).has_dropped


async def test_what_a_living_worker_declares_is_not_orphaned(session: Session) -> None:
    await declare(session, definition("old"))
    older = await worker_row(session, "old")
    newer = await worker_row(session)
    assert await schedules.orphan(session, "app", [], newer) == []
    await deregister(session, older)
    assert await schedules.orphan(session, "app", [], newer) == ["old"]


async def test_older_code_does_not_orphan_what_newer_code_declares_unless_an_hour_has_passed(
    session: Session, connection: asyncpg.Connection
) -> None:
    older = await worker_row(session)
    await declare(session, definition("new"))
    assert await schedules.orphan(session, "app", [], older) == []
    await connection.execute("UPDATE pqrun.schedules SET declared_at = declared_at - interval '61 minutes'")
    assert await schedules.orphan(session, "app", [], older) == ["new"]


async def test_an_orphan_does_not_fire_and_comes_back_with_its_code_and_its_edit_planned_anew(
    session: Session, connection: asyncpg.Connection
) -> None:
    await declare(session, definition())
    await schedules.edit(session, definition(cron="7 * * * *"), LONG_AGO, 1)
    await schedules.orphan(session, "app", [], await worker_row(session))
    assert (await look(session)).due == []
    assert await declare(session, definition()) == "restored"
    back = await get(session)
    assert (back.state, back.next_at, back.cron) == ("active", None, "7 * * * *")


async def test_an_orphan_may_be_declared_by_another_app(session: Session) -> None:
    await declare(session, definition())
    await schedules.orphan(session, "app", [], await worker_row(session))
    assert await declare(session, definition(), "shop") == "restored"
    assert (await get(session)).app == "shop"


# What operators do.


async def test_a_taken_name_is_not_added_again(session: Session) -> None:
    assert await schedules.add(session, definition(), LATER)
    assert not await schedules.add(session, definition(cron="1 1 1 1 1"), LATER)
    assert (await get(session)).cron == "0 * * * *"


async def test_a_change_of_what_was_changed_meanwhile_does_nothing(session: Session) -> None:
    await schedules.add(session, definition(), LATER)
    assert await schedules.edit(session, definition(cron="1 * * * *"), None, 1)
    assert not await schedules.edit(session, definition(cron="2 * * * *"), None, 1)
    assert (await get(session)).cron == "1 * * * *"


async def test_every_change_is_told_to_workers(dsn: str, session: Session) -> None:
    async with hearing(dsn) as heard:
        await schedules.add(session, definition(is_paused=True), LATER)
        assert await heard.until_now() == ["schedules"] * 1
        await schedules.resume(session, "s", LATER, 1)
        assert await heard.until_now() == ["schedules"] * 2
        await schedules.edit(session, definition(), LONG_AGO, 2)
        assert await heard.until_now() == ["schedules"] * 3
        await declare(session, definition("new"))
        assert await heard.until_now() == ["schedules"] * 4


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("cron", "NULL"),
        ("every_seconds", "5"),
        ("catch_up", "'some'"),
        ("overlap", "'never'"),
        ("jitter_seconds", "-1"),
        ("payload", "'[]'"),
        ("max_attempts", "0"),
        ("next_at", "'infinity'"),
        ("origin", "'x'"),
        ("backoff_seconds", "'{NULL}'"),
    ],
)
async def test_rows_that_no_worker_could_use_are_refused(
    session: Session, connection: asyncpg.Connection, column: str, value: str
) -> None:
    await schedules.add(session, definition(), LATER)
    with pytest.raises(asyncpg.CheckViolationError):
        await connection.execute(f"UPDATE pqrun.schedules SET {column} = {value}")


async def test_a_lock_that_is_held_delays_the_firing_of_others_for_a_second_at_most(
    dsn: str, store: PgJobStore, connection: asyncpg.Connection
) -> None:
    work = WorkStore(store, worker_id="w")
    session = store.session(connection)
    (schedule,) = await due(session, definition(job=NewJob(job_type="t", payload="{}", dedupe_key="k")))
    async with connected(dsn) as other, other.transaction():
        await other.execute("SELECT pqrun.enqueue('t', '{}', dedupe_key => 'k')")
        with pytest.raises(StoreError) as refused:
            await work.fire_schedules([firing(schedule)])
    assert refused.value.sqlstate == "55P03"
    assert [one.jobs for one in await work.fire_schedules([firing(schedule)])] == [0]
    await work.close(1.0)


async def test_a_connection_for_schedules_is_opened_only_where_there_are_some(
    store: PgJobStore, session: Session, connection: asyncpg.Connection
) -> None:
    names = """SELECT array_agg(application_name) FROM pg_stat_activity
                WHERE datname = current_database() AND application_name LIKE 'pqrun %'"""
    work = WorkStore(store, worker_id="w")
    for _ in range(3):
        await work.find_due_schedules(["t"], None, [])
    assert await connection.fetchval(names) == ["pqrun maintain"]
    await schedules.add(session, definition(), LATER)
    await work.find_due_schedules(["t"], None, [])
    await work.find_due_schedules(["t"], None, [])
    assert sorted(await connection.fetchval(names)) == ["pqrun maintain", "pqrun schedule"]
    await work.close(1.0)


async def test_the_version_of_the_payload_is_stored_edited_declared_and_goes_into_a_run_out_of_turn(
    session: Session, store: PgJobStore
) -> None:
    job = NewJob(job_type="t", payload="{}", payload_version=2)
    assert await schedules.declare(session, definition(job=job), LATER, "shop") == "new"
    assert (await get(session)).definition.job.payload_version == 2
    raised = msgspec.structs.replace(job, payload_version=3)
    assert await schedules.declare(session, definition(job=raised), LATER, "shop") == "changed"
    assert (await get(session)).payload_version == 3
    edited = definition(job=msgspec.structs.replace(job, payload_version=5))
    assert await schedules.edit(session, edited, None, (await get(session)).revision)
    made_now = await schedules.run_now(session, "s")
    assert made_now is not None
    assert made_now.job_id is not None
    stored = await store.get(made_now.job_id)
    assert stored is not None
    assert stored.payload_version == 5
