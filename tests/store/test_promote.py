"""promote.sql: SCHEDULED jobs become READY when they are due, by the database's clock."""

from datetime import timedelta

import asyncpg

from pqrun.job.state import Status
from pqrun.store import PgJobStore
from pqrun.store.claiming import Claimer, Lane
from tests.store.listening import hearing
from tests.store.locking import holding
from tests.support.rows import make_job


async def make_due(connection: asyncpg.Connection, seconds: float, **columns: object) -> int:
    """A SCHEDULED job that is due so many seconds from now; negative: since then."""
    now = await connection.fetchval("SELECT clock_timestamp()")
    run_after = now + timedelta(seconds=seconds)
    return await make_job(connection, status=Status.SCHEDULED, run_after=run_after, **columns)


async def states(connection: asyncpg.Connection) -> dict[int, str]:
    return {row["id"]: row["status"] for row in await connection.fetch("SELECT id, status FROM pqrun.jobs")}


async def test_due_jobs_become_ready_and_others_stay(connection: asyncpg.Connection, claimer: Claimer) -> None:
    due = await make_due(connection, -10, queue="a", priority=3)
    also = await make_due(connection, -20, queue="a", priority=3)
    other = await make_due(connection, -5)
    later = await make_due(connection, 1000)
    promotion = await claimer.promote(None)
    assert (set(promotion.lanes), promotion.jobs) == ({Lane("a", 3), Lane("default", 0)}, 3)
    assert not promotion.has_suspect
    assert await states(connection) == {due: "READY", also: "READY", other: "READY", later: "SCHEDULED"}
    assert promotion.next_in_seconds is not None
    assert 900 < promotion.next_in_seconds <= 1000
    last = await connection.fetchval("SELECT run_after FROM pqrun.jobs WHERE id = $1", other)
    assert promotion.last_run_after == last


async def test_nothing_due_says_only_when_to_come_again(connection: asyncpg.Connection, claimer: Claimer) -> None:
    promotion = await claimer.promote(None)
    assert promotion[:5] == ([], 0, False, None, None)
    now = await connection.fetchval("SELECT extract(epoch FROM clock_timestamp())::double precision")
    assert promotion.clock is not None
    assert 0 <= now - promotion.clock < 60
    await make_due(connection, 100)
    await make_due(connection, 50)
    promotion = await claimer.promote(None)
    assert promotion[:4] == ([], 0, False, None)
    assert promotion.next_in_seconds is not None
    assert 40 < promotion.next_in_seconds <= 50


async def test_the_place_is_renewed_so_that_no_cursor_has_passed_it(
    connection: asyncpg.Connection, claimer: Claimer
) -> None:
    job_id = await make_due(connection, -1)
    passed = await connection.fetchval("SELECT nextval('pqrun.jobs_place_seq')")
    await claimer.promote(None)
    assert await connection.fetchval("SELECT place FROM pqrun.jobs WHERE id = $1", job_id) > passed


async def test_places_follow_the_time_of_being_due(connection: asyncpg.Connection, claimer: Claimer) -> None:
    third = await make_due(connection, -1)
    first = await make_due(connection, -30)
    second = await make_due(connection, -20)
    await claimer.promote(None)
    rows = await connection.fetch("SELECT id FROM pqrun.jobs ORDER BY place")
    assert [row["id"] for row in rows] == [first, second, third]


async def test_the_cursor_passes_what_was_due_before_it(connection: asyncpg.Connection, claimer: Claimer) -> None:
    early = await make_due(connection, -100)
    edge = await make_due(connection, -50)
    cursor = await connection.fetchval("SELECT run_after FROM pqrun.jobs WHERE id = $1", edge)
    assert (await claimer.promote(cursor)).jobs == 1
    assert await states(connection) == {early: "SCHEDULED", edge: "READY"}
    assert (await claimer.promote(None)).jobs == 1


async def test_a_locked_row_is_passed_over(dsn: str, connection: asyncpg.Connection, claimer: Claimer) -> None:
    locked, free = await make_due(connection, -2), await make_due(connection, -1)
    async with holding(dsn, "SELECT FROM pqrun.jobs WHERE id = $1 FOR UPDATE", locked):
        assert (await claimer.promote(None)).jobs == 1
        assert await states(connection) == {locked: "SCHEDULED", free: "READY"}


async def test_a_suspect_is_announced_as_such(connection: asyncpg.Connection, claimer: Claimer) -> None:
    await make_due(connection, -1, lost=1)
    promotion = await claimer.promote(None)
    assert (promotion.jobs, promotion.has_suspect) == (1, True)


async def test_every_worker_is_told_of_each_lane_once(
    dsn: str, connection: asyncpg.Connection, claimer: Claimer
) -> None:
    """Who promotes need not serve the lane; who does, and comes a moment later to promote, finds nothing."""
    for queue, lost in [("a", 0), ("a", 0), ("b:c", 0), ("b:c", 1)]:
        await make_due(connection, -1, queue=queue, lost=lost, priority=7)
    async with hearing(dsn) as heard:
        await claimer.promote(None)
        assert sorted(await heard.until_now()) == ["ready:7:a", "ready:7:b:c", "suspect:7:b:c"]
        heard.messages.clear()
        await claimer.promote(None)
        assert await heard.until_now() == []


async def test_a_deferred_job_is_promoted_when_due(store: PgJobStore, claimer: Claimer) -> None:
    job_id = await store.enqueue("t", {}, run_after=timedelta(milliseconds=30))
    promoted = 0
    while promoted == 0:  # each look says when the next is worth it
        promotion = await claimer.promote(None)
        promoted = promotion.jobs
        assert promoted or promotion.next_in_seconds is not None
    job = await store.get(job_id)
    assert job is not None
    assert job.status is Status.READY
