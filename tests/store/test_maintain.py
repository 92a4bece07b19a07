"""What the reaper finds and takes back, and how history is pruned."""

import asyncio
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from pqrun.job.outcome import Failed, Recovered, Retrying
from pqrun.job.state import FINISHED, Status
from pqrun.store import PgJobStore
from pqrun.store.link import KeptLink
from pqrun.store.maintaining import (
    GRAVE_SECONDS,
    PRUNE_ROWS,
    Overdue,
    Pruned,
    forget_workers,
    prune,
    prune_audit,
    reap_lost,
    reap_orphans,
    reap_overdue,
)
from tests.store.listening import hearing
from tests.store.locking import holding
from tests.support.rows import make_job, make_worker


async def make_running(connection: asyncpg.Connection, *, age: float = 0.0, **columns: Any) -> int:
    """A RUNNING job that was claimed so many seconds ago."""
    now = await connection.fetchval("SELECT clock_timestamp()")
    return await make_job(connection, status=Status.RUNNING, locked_at=now - timedelta(seconds=age), **columns)


async def states(connection: asyncpg.Connection) -> dict[int, str]:
    return {row["id"]: row["status"] for row in await connection.fetch("SELECT id, status FROM pqrun.jobs")}


async def test_jobs_of_dead_workers_are_recovered_at_whatever_age(
    dsn: str, link: KeptLink, connection: asyncpg.Connection, store: PgJobStore
) -> None:
    dead, alive = await make_worker(connection, "gone", dead=True), await make_worker(connection, "here")
    lost = await make_running(connection, worker=dead, attempts=2, timeout_seconds=600.0)
    held = await make_running(connection, worker=alive, age=10**6)
    orphan = await make_running(connection, age=10**6)
    async with hearing(dsn) as heard:
        (reaped,) = await reap_lost(link)
        assert await heard.until_now() == ["suspect:0:default"]
    assert (reaped.job_type, reaped.worker_id, reaped.settled.claim.job_id) == ("t", "gone", lost)
    assert isinstance(reaped.outcome, Recovered)
    assert await states(connection) == {lost: "READY", held: "RUNNING", orphan: "RUNNING"}
    job = await store.get(lost)
    assert job is not None
    assert (job.attempts, job.lost, job.last_error) == (2, 1, "lost its worker once (last: gone) at attempt 2 of 5")
    assert await reap_lost(link) == []


async def test_a_lost_job_with_no_attempt_left_has_failed_and_one_with_a_request_is_cancelled(
    link: KeptLink, connection: asyncpg.Connection, store: PgJobStore
) -> None:
    dead = await make_worker(connection, "gone", dead=True)
    used_up = await make_running(connection, worker=dead, attempts=3, max_attempts=3, lost=2)
    unwanted = await make_running(connection, worker=dead)
    await store.cancel(unwanted)
    reaped = {r.settled.claim.job_id: r for r in await reap_lost(link)}
    assert isinstance(reaped[used_up].outcome, Failed)
    assert reaped[unwanted].settled.status is Status.CANCELLED
    assert await states(connection) == {used_up: "FAILED", unwanted: "CANCELLED"}
    job = await store.get(used_up)
    assert job is not None
    cancelled = await store.get(unwanted)
    assert cancelled is not None
    assert cancelled.lost == 1
    assert (job.lost, job.last_error) == (3, "lost its worker 3 times (last: gone) at attempt 3 of 3")


async def test_a_row_that_somebody_has_locked_is_left_for_the_next_look(
    dsn: str, link: KeptLink, connection: asyncpg.Connection
) -> None:
    dead = await make_worker(connection, dead=True)
    locked, free = await make_running(connection, worker=dead), await make_running(connection, worker=dead)
    async with holding(dsn, "SELECT FROM pqrun.jobs WHERE id = $1 FOR UPDATE", locked):
        assert [r.settled.claim.job_id for r in await reap_lost(link)] == [free]
    assert [r.settled.claim.job_id for r in await reap_lost(link)] == [locked]


async def test_two_reapers_recover_each_job_once(
    link: KeptLink, connection: asyncpg.Connection, store: PgJobStore
) -> None:
    dead = await make_worker(connection, dead=True)
    for _ in range(30):
        await make_running(connection, worker=dead)
    other = store.open_link("maintain", kept=True)
    one, two = await asyncio.gather(reap_lost(link), reap_lost(other))
    assert len(one) + len(two) == 30
    assert await connection.fetchval("SELECT count(*) FROM pqrun.jobs WHERE attempts = 1 AND lost = 1") == 30
    await other.close()


async def test_orphans_are_recovered_at_the_age_that_their_timeout_says(
    link: KeptLink, connection: asyncpg.Connection
) -> None:
    alive, dead = await make_worker(connection, "here"), await make_worker(connection, "gone", dead=True)
    old = await make_running(connection, age=130)
    young = await make_running(connection, age=110)
    timed_out = await make_running(connection, age=20, timeout_seconds=5.0)
    within = await make_running(connection, age=12, timeout_seconds=5.0)
    long = await make_running(connection, age=1000, timeout_seconds=2000.0)
    forgotten = await make_running(connection, age=130, worker=12345)
    held = await make_running(connection, age=1000, worker=alive)
    of_dead = await make_running(connection, age=1000, worker=dead)  # the quick look for lost jobs has those
    reaped = await reap_orphans(link, stale_seconds=120, margin_seconds=10)
    assert {r.settled.claim.job_id for r in reaped} == {old, timed_out, forgotten}
    assert {r.worker_id for r in reaped} == {"somebody"}
    found = await states(connection)
    assert {found[job_id] for job_id in (old, timed_out, forgotten)} == {"READY"}
    assert {found[job_id] for job_id in (young, within, long, held, of_dead)} == {"RUNNING"}


async def test_an_orphan_that_was_marked_by_hand_without_a_claim_is_recovered(
    link: KeptLink, connection: asyncpg.Connection
) -> None:
    job_id = await make_running(connection, age=100, claim_id=None, attempts=0)
    assert len(await reap_orphans(link, stale_seconds=10, margin_seconds=10)) == 1
    assert await states(connection) == {job_id: "READY"}


async def test_overdue_jobs_of_living_workers_get_the_outcome_that_is_decided(
    link: KeptLink, connection: asyncpg.Connection
) -> None:
    alive = await make_worker(connection, "here")
    overdue = await make_running(
        connection, age=30, worker=alive, timeout_seconds=5.0, attempts=2, backoff_seconds=[7.0]
    )
    await make_running(connection, age=12, worker=alive, timeout_seconds=5.0)
    await make_running(connection, age=10**6, worker=alive)  # no timeout: never for being long
    await make_running(connection, age=30, timeout_seconds=5.0)  # an orphan
    asked: list[Overdue] = []

    def decide(found: Overdue) -> Retrying | Failed:
        asked.append(found)
        return Retrying(found.claim, None, "timed out", 7.0)

    (reaped,) = await reap_overdue(link, margin_seconds=10, decide=decide)
    assert (reaped.settled.claim.job_id, reaped.settled.status) == (overdue, Status.SCHEDULED)
    (found,) = asked
    assert (found.timeout_seconds, found.backoff_seconds, found.job_type) == (5.0, (7.0,), "t")
    assert (found.counts.attempts, found.counts.max_attempts) == (2, 5)
    assert reaped.settled.due_in_seconds is not None
    assert 5 < reaped.settled.due_in_seconds <= 7


async def test_a_decision_that_raises_writes_nothing_and_passes_as_it_is(
    link: KeptLink, connection: asyncpg.Connection
) -> None:
    alive = await make_worker(connection)
    job_id = await make_running(connection, age=30, worker=alive, timeout_seconds=5.0)

    def decide(found: Overdue) -> Retrying | Failed:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await reap_overdue(link, margin_seconds=10, decide=decide)
    assert await states(connection) == {job_id: "RUNNING"}
    assert len(await reap_overdue(link, margin_seconds=10, decide=lambda found: Failed(found.claim, None, "x"))) == 1


async def test_graves_are_kept_a_while_and_while_a_job_is_in_them(
    link: KeptLink, connection: asyncpg.Connection
) -> None:
    fresh = await make_worker(connection, "fresh", dead=True)
    empty = await make_worker(connection, "empty")
    full = await make_worker(connection, "full")
    alive = await make_worker(connection, "alive")
    await connection.execute(
        "UPDATE pqrun.workers SET dead_at = clock_timestamp() - $1 * interval '1 second' WHERE id = ANY($2)",
        GRAVE_SECONDS + 1,
        [empty, full],
    )
    await make_running(connection, worker=full)
    assert await forget_workers(link) == [empty]
    await reap_lost(link)
    assert await forget_workers(link) == [full]
    rows = await connection.fetch("SELECT id FROM pqrun.workers ORDER BY id")
    assert [row["id"] for row in rows] == [fresh, alive]


async def seed_history(connection: asyncpg.Connection, count: int, *, age: float) -> None:
    await connection.execute(
        """INSERT INTO pqrun.jobs (job_type, status, attempts, finished_at)
           SELECT 't', 'FAILED', 1, clock_timestamp() - $2 * interval '1 second' FROM generate_series(1, $1::integer)""",
        count,
        age,
    )


async def test_history_goes_in_pieces_oldest_first(link: KeptLink, connection: asyncpg.Connection) -> None:
    await seed_history(connection, PRUNE_ROWS + 5, age=100)
    await seed_history(connection, 3, age=10)
    assert await prune(link, age_seconds=50) == Pruned(is_mine=True, deleted=PRUNE_ROWS)
    assert await prune(link, age_seconds=50) == Pruned(is_mine=True, deleted=5)
    assert await prune(link, age_seconds=50) == Pruned(is_mine=True, deleted=0)
    assert await connection.fetchval("SELECT count(*) FROM pqrun.jobs") == 3


async def test_only_finished_jobs_are_history(link: KeptLink, connection: asyncpg.Connection) -> None:
    for status in Status:
        await make_job(connection, status=status)
    assert (await prune(link, age_seconds=0)).deleted == len(FINISHED)
    assert set((await states(connection)).values()) == {"READY", "SCHEDULED", "RUNNING"}


async def test_one_worker_prunes_at_a_time(
    dsn: str, link: KeptLink, connection: asyncpg.Connection, store: PgJobStore
) -> None:
    await seed_history(connection, 10, age=100)
    async with holding(dsn, "SELECT 1") as pruning:
        rows = await store.session(pruning).run("prune", 50.0, 4)
        assert (rows[0]["is_mine"], rows[0]["deleted"]) == (True, 4)
        assert await prune(link, age_seconds=50) == Pruned(is_mine=False, deleted=0)
    assert await prune(link, age_seconds=50) == Pruned(is_mine=True, deleted=6)


async def test_the_audit_log_and_ended_operations_go_when_they_are_old(
    dsn: str, link: KeptLink, connection: asyncpg.Connection, store: PgJobStore
) -> None:
    await connection.execute(
        "INSERT INTO pqrun.audit (at, actor, action, target, outcome) "
        "SELECT now() - (100 - n) * interval '1 s', 'ann', 'retry', 'job 1', 'done' FROM generate_series(0, 99) n"
    )
    operation = (
        "INSERT INTO pqrun.operations (actor, action, state, ended_at, beat_at) "
        "VALUES ('ann', 'retry', $1, $2::interval + now(), $3::interval + now())"
    )
    hour, second = timedelta(hours=-1), timedelta(seconds=-1)
    for state, ended, beat in (
        ("DONE", hour, hour),
        ("DONE", second, hour),
        ("RUNNING", None, hour),
        ("RUNNING", None, second),
        ("COUNTED", None, second),
    ):
        await connection.execute(operation, state, ended, beat)
    async with holding(dsn, "SELECT 1") as pruning:
        rows = await store.session(pruning).run("prune_audit", 50.5, 20)
        assert (rows[0]["is_mine"], rows[0]["deleted"]) == (True, 20 + 2)
        assert await prune_audit(link, age_seconds=50.5) == Pruned(is_mine=False, deleted=0)
    assert await prune_audit(link, age_seconds=50.5) == Pruned(is_mine=True, deleted=30)
    assert await prune_audit(link, age_seconds=50.5) == Pruned(is_mine=True, deleted=0)
    assert await connection.fetchval("SELECT count(*) FROM pqrun.audit") == 50
    assert await connection.fetchval("SELECT count(*) FROM pqrun.operations") == 3


async def test_a_row_that_somebody_holds_is_not_waited_for(
    dsn: str, link: KeptLink, connection: asyncpg.Connection
) -> None:
    await seed_history(connection, 3, age=100)
    async with holding(dsn, "SELECT FROM pqrun.jobs WHERE id = (SELECT min(id) FROM pqrun.jobs) FOR UPDATE"):
        assert (await prune(link, age_seconds=50)).deleted == 2
    assert (await prune(link, age_seconds=50)).deleted == 1


async def test_a_timeout_that_no_interval_can_hold_does_not_fail_the_sweep(
    link: KeptLink, connection: asyncpg.Connection
) -> None:
    alive = await make_worker(connection, "here")
    await make_running(connection, timeout_seconds=1e300)
    await make_running(connection, timeout_seconds=1e300, worker=alive)
    orphan = await make_running(connection, timeout_seconds=1.0, age=3600)
    late = await make_running(connection, timeout_seconds=1.0, age=3600, worker=alive)
    reaped = await reap_orphans(link, stale_seconds=60, margin_seconds=10)
    assert [r.settled.claim.job_id for r in reaped] == [orphan]
    decide = lambda o: Retrying(o.claim, None, "x", 1.0)  # noqa: E731  # shorter here
    assert [r.settled.claim.job_id for r in await reap_overdue(link, margin_seconds=11, decide=decide)] == [late]
