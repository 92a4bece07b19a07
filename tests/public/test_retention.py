"""History goes when it is old enough, by itself or on demand; what is active or young stays."""

from datetime import timedelta

import asyncpg
import pytest

from pqrun import PgJobStore, Status
from pqrun.run.events import Done, Pruned, Retrying
from tests.public.at_work import count_jobs, low_level
from tests.support.rows import make_job

AGE = "UPDATE pqrun.jobs SET finished_at = now() - $1::interval WHERE status IN ('DONE', 'FAILED', 'CANCELLED')"


async def history(connection: asyncpg.Connection, age: timedelta) -> list[int]:
    """One job of each finished state, so old."""
    ids = [await make_job(connection, status=status) for status in Status if status.is_finished]
    await connection.execute(AGE, age)
    return ids


async def test_finished_jobs_older_than_the_retention_are_removed_and_all_others_stay(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    old = await history(connection, timedelta(days=8))
    active = [await make_job(connection, status=status) for status in (Status.SCHEDULED, Status.READY)]
    young = await make_job(connection, status=Status.FAILED)
    async with low_level(store, {}) as told:
        assert (await told.wait_for(Pruned)).deleted == len(old)
    left = await connection.fetch("SELECT id FROM pqrun.jobs ORDER BY id")
    assert [row["id"] for row in left] == [*active, young]


async def test_without_retention_nothing_is_removed(store: PgJobStore, connection: asyncpg.Connection) -> None:
    old = await history(connection, timedelta(days=1000))

    async with low_level(store, {}, retention=None) as told:
        job_id = await store.enqueue("__cleanup", {})
        # This worker does not know what is old, and says so; one that does may run the next attempt.
        assert (await told.wait_for(Retrying)).job.id == job_id
        job = await store.get(job_id)
    assert job is not None
    assert "older_than_seconds" in (job.last_error or "")
    assert await count_jobs(connection) == len(old) + 1


@pytest.mark.parametrize("retention", [timedelta(days=7), None])
async def test_sql_can_ask_for_a_cleanup_of_any_age(
    store: PgJobStore, connection: asyncpg.Connection, retention: timedelta | None
) -> None:
    await history(connection, timedelta(days=2))
    async with low_level(store, {}, retention=retention) as told:
        (row,) = await connection.fetch("""SELECT * FROM pqrun.enqueue('__cleanup', '{"older_than_seconds": 86400}')""")
        await told.wait_for(Done)
        job = await store.get(row["id"])
    assert job is not None
    assert job.result == {"deleted": 3}
    assert await count_jobs(connection) == 1


async def test_sql_can_ask_for_a_cleanup_by_the_workers_retention(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    await history(connection, timedelta(hours=2))
    async with low_level(store, {}, retention=timedelta(hours=1)) as told:
        await told.wait_for(Pruned)  # its own round is over, the next is a minute away
        await history(connection, timedelta(hours=2))
        (row,) = await connection.fetch("SELECT * FROM pqrun.enqueue('__cleanup', '{}')")
        await told.wait_for(Done)
        job = await store.get(row["id"])
    assert job is not None
    assert job.result == {"deleted": 3}
    assert await count_jobs(connection) == 1


async def test_history_is_removed_in_pieces_until_none_is_left(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    await connection.execute(
        "INSERT INTO pqrun.jobs (job_type, status, attempts, finished_at)"
        " SELECT 't', 'FAILED', 1, now() - interval '8 days' FROM generate_series(1, 5000)"
    )
    async with low_level(store, {}) as told:
        assert (await told.wait_for(Pruned)).deleted == 5000
    assert await count_jobs(connection) == 0
