"""Reports in the database: written for claims that hold, never waiting, and gone with their jobs."""

import asyncio
from datetime import UTC, datetime

import asyncpg
import pytest

from pqrun.errors import JobNotFound
from pqrun.job.outcome import Done, Outcome, Recovered, Retrying
from pqrun.job.progress import Progress, Report
from pqrun.job.record import Claim
from pqrun.job.state import Status
from pqrun.store import PgJobStore, maintaining, reporting
from pqrun.store.claiming import Claimer, Lane
from pqrun.store.link import KeptLink
from pqrun.store.reporting import report, sweep
from pqrun.store.settling import settle
from tests.store.locking import holding, wait_until_waiting
from tests.support.rows import make_job

HALF = Report(0.5, "half")


async def make_claim(connection: asyncpg.Connection, **columns: object) -> Claim:
    job_id = await make_job(connection, status=Status.RUNNING, **columns)
    return Claim(job_id, await connection.fetchval("SELECT claim_id FROM pqrun.jobs WHERE id = $1", job_id))


async def rows(connection: asyncpg.Connection) -> list[tuple[object, ...]]:
    query = "SELECT job_id, claim_id, attempt, value, message FROM pqrun.progress ORDER BY job_id"
    return [tuple(row) for row in await connection.fetch(query)]


async def test_a_report_is_kept_and_replaced_by_the_next(
    link: KeptLink, store: PgJobStore, connection: asyncpg.Connection
) -> None:
    claim = await make_claim(connection, attempts=2)
    assert await store.progress(claim.job_id) is None
    before = datetime.now(UTC)
    assert await report(link, {claim: HALF}) == set()
    first = await store.progress(claim.job_id)
    assert first is not None
    assert (first.value, first.message, first.attempt) == (0.5, "half", 2)
    assert (before - first.reported_at).total_seconds() < 5
    assert await report(link, {claim: Report(1.0, None)}) == set()
    second = await store.progress(claim.job_id)
    assert second is not None
    assert (second.value, second.message) == (1.0, None)
    assert second.reported_at > first.reported_at


async def test_a_report_rewrites_neither_the_job_nor_an_index(link: KeptLink, connection: asyncpg.Connection) -> None:
    claims = [await make_claim(connection) for _ in range(50)]
    where = "SELECT array_agg(ctid ORDER BY id)::text FROM pqrun.jobs_active"
    before = await connection.fetchval(where)
    await connection.execute("SELECT pg_stat_reset()")  # the database is lent to one test after another
    for n in range(20):
        await report(link, {claim: Report(n / 20, "x" * 100) for claim in claims})
    assert await connection.fetchval(where) == before
    await link.close()  # a session tells what it did at its end
    query = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'progress'"
    async with asyncio.timeout(30):
        while (
            not (counted := await connection.fetchrow(query)) or counted["n_tup_upd"] < 19 * 50
        ):  # it may tell in parts
            await connection.execute("SELECT pg_stat_clear_snapshot()")
    assert counted["n_tup_upd"] == 19 * 50
    assert counted["n_tup_hot_upd"] > 0.9 * counted["n_tup_upd"]


async def test_the_reports_of_many_are_one_statement(link: KeptLink, connection: asyncpg.Connection) -> None:
    claims = [await make_claim(connection) for _ in range(300)]
    assert await report(link, dict.fromkeys(reversed(claims), HALF)) == set()
    assert [row[:2] for row in await rows(connection)] == [(claim.job_id, claim.claim_id) for claim in claims]


async def test_no_report_of_a_claim_that_is_lost_shows(
    link: KeptLink, claimer: Claimer, connection: asyncpg.Connection
) -> None:
    """Two real claims of one job: what the first says late neither appears nor overwrites what the second said."""
    await make_job(connection)

    async def claimed() -> Claim:
        batch = await claimer.claim([(Lane("default", 0), 0)], ["t"], ["t"], [], limit=1, look=10, free=1)
        return Claim(batch.jobs[0].id, batch.jobs[0].claim_id or 0)

    first = await claimed()
    await settle(link, [Retrying(first, 1, "ValueError", 0.0)])
    assert await report(link, {first: HALF}) == set()  # between the claims: it is nobody's
    assert await rows(connection) == []
    await connection.execute("UPDATE pqrun.jobs SET status = 'READY'")
    second = await claimed()
    assert second.claim_id > first.claim_id
    assert await report(link, {first: HALF}) == set()  # before the second has reported
    assert await rows(connection) == []
    await report(link, {second: Report(0.1, "again")})
    await report(link, {first: Report(0.9, "late")})
    assert await rows(connection) == [(second.job_id, second.claim_id, 2, 0.1, "again")]
    await settle(link, [Done(second, 1, None)])
    await report(link, {first: Report(0.9, "late"), second: Report(0.9, "late")})
    assert await rows(connection) == [(second.job_id, second.claim_id, 2, 0.1, "again")]


async def test_a_row_that_somebody_has_locked_is_not_waited_for_and_named(
    dsn: str, link: KeptLink, connection: asyncpg.Connection
) -> None:
    locked, free, gone = [await make_claim(connection) for _ in range(3)]
    await settle(link, [Done(gone, 1, None)])
    async with holding(dsn, "SELECT FROM pqrun.jobs WHERE id = $1 FOR UPDATE", locked.job_id), asyncio.timeout(10):
        assert await report(link, {locked: HALF, free: HALF, gone: HALF}) == {locked}
    assert [row[0] for row in await rows(connection)] == [free.job_id]
    assert await report(link, {locked: HALF}) == set()
    assert [row[0] for row in await rows(connection)] == [locked.job_id, free.job_id]


@pytest.mark.parametrize("end", ["an end", "a recovery"])
async def test_whatever_ends_the_claim_waits_for_a_report_under_way_and_the_report_stands(
    dsn: str, link: KeptLink, connection: asyncpg.Connection, store: PgJobStore, end: str
) -> None:
    claim = await make_claim(connection)
    outcome: Outcome = Done(claim, 1, None) if end == "an end" else Recovered(claim, "lost its worker")
    sql = store.statements["report_progress"]
    async with holding(dsn, sql, [claim.job_id], [claim.claim_id], [0.5], ["half"]):
        settling = asyncio.create_task(settle(link, [outcome]))
        await wait_until_waiting(connection)
        assert not settling.done()
    assert len(await settling) == 1
    assert [row[3] for row in await rows(connection)] == [0.5]


async def test_a_report_that_meets_an_end_under_way_is_dropped_with_it(
    dsn: str, link: KeptLink, connection: asyncpg.Connection
) -> None:
    claim = await make_claim(connection)
    async with holding(dsn, "DELETE FROM pqrun.jobs WHERE id = $1", claim.job_id):
        assert await report(link, {claim: HALF}) == {claim}
    assert await report(link, {claim: HALF}) == set()
    assert await rows(connection) == []


async def test_reports_and_settles_of_the_same_jobs_never_deadlock(
    dsn: str, link: KeptLink, connection: asyncpg.Connection
) -> None:
    claims = [await make_claim(connection) for _ in range(200)]

    async def report_again() -> None:
        for n in range(20):
            await report(link, {claim: Report(n / 20, None) for claim in claims})

    async def settle_piecemeal(store: PgJobStore) -> int:
        backwards = claims[::-1]
        pieces = [backwards[start : start + 20] for start in range(0, 200, 20)]
        return sum([len(await settle(store, [Done(claim, 1, None) for claim in piece])) for piece in pieces])

    deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    async with PgJobStore(dsn) as store:
        _, settled = await asyncio.gather(report_again(), settle_piecemeal(store))
    assert settled == 200
    assert await connection.fetchval(deadlocks) == 0


async def test_the_last_report_stays_after_the_end_and_goes_with_the_job(
    link: KeptLink, store: PgJobStore, connection: asyncpg.Connection
) -> None:
    old, young = await make_claim(connection), await make_claim(connection)
    await report(link, {old: HALF, young: HALF})
    await settle(link, [Done(old, 1, None), Done(young, 1, None)])
    assert await store.progress(old.job_id) is not None
    await connection.execute("UPDATE pqrun.jobs SET finished_at = now() - interval '1 day' WHERE id = $1", old.job_id)
    assert (await maintaining.prune(link, age_seconds=3600)).deleted == 1
    assert [row[0] for row in await rows(connection)] == [young.job_id]
    with pytest.raises(JobNotFound):
        await store.progress(old.job_id)
    assert (await store.select([young.job_id]).delete()).done == 1
    assert await rows(connection) == []


async def test_a_deleted_job_that_waits_for_its_next_attempt_takes_its_report_along(
    link: KeptLink, store: PgJobStore, connection: asyncpg.Connection
) -> None:
    claim = await make_claim(connection)
    await report(link, {claim: HALF})
    await settle(link, [Retrying(claim, 1, "ValueError", 3600.0)])
    assert await store.progress(claim.job_id) is not None
    assert (await store.select([claim.job_id]).delete(waiting=True)).done == 1
    assert await rows(connection) == []


@pytest.mark.parametrize("is_bulk", [False, True])
async def test_a_retry_by_hand_begins_without_a_report(
    link: KeptLink, store: PgJobStore, connection: asyncpg.Connection, is_bulk: bool
) -> None:
    claims = [await make_claim(connection, dedupe_key=key) for key in ("free", "taken")]
    await report(link, dict.fromkeys(claims, HALF))
    await settle(link, [Done(claim, 1, None) for claim in claims])
    await make_job(connection, dedupe_key="taken")
    retried, refused = [claim.job_id for claim in claims]
    if is_bulk:
        assert (await store.select([retried, refused]).retry(force=True)).done == 1
    else:
        await store.retry(retried, force=True)
    assert await store.progress(retried) is None
    assert (await store.progress(refused) or Progress(0, None, 0, datetime.now(UTC))).value == 0.5


async def test_what_plain_sql_leaves_behind_is_swept_up_in_pieces(
    link: KeptLink, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporting, "SWEEP_ROWS", 4)
    claims = [await make_claim(connection) for _ in range(10)]
    await report(link, dict.fromkeys(claims, HALF))
    await settle(link, [Done(claim, 1, None) for claim in claims[:5]])
    orphans = [claims[n].job_id for n in (1, 4, 7)]
    await connection.execute("DELETE FROM pqrun.jobs WHERE id = ANY ($1)", orphans)
    ids = [claim.job_id for claim in claims]
    assert await sweep(link, 0) == (ids[3], 4, 1)
    assert await sweep(link, ids[3]) == (ids[7], 4, 2)
    assert await sweep(link, ids[7]) == (ids[9], 2, 0)
    assert await sweep(link, ids[9]) == (None, 0, 0)
    assert [row[0] for row in await rows(connection)] == [job_id for job_id in ids if job_id not in orphans]


@pytest.mark.parametrize(("value", "message"), [(1.5, None), (float("nan"), None), (0.5, "x" * 501)])
async def test_the_table_takes_no_report_that_could_not_be_made(
    link: KeptLink, connection: asyncpg.Connection, value: float, message: str | None
) -> None:
    claim = await make_claim(connection)
    with pytest.raises(asyncpg.CheckViolationError):
        await connection.execute("INSERT INTO pqrun.progress VALUES ($1, 1, 1, $2, $3)", claim.job_id, value, message)
