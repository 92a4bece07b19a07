"""retry.sql and PgJobStore.retry: a finished job starts anew, unless somebody else has its key."""

import asyncio

import asyncpg
import pytest

from pqrun.errors import JobNotFound, RetryRefused
from pqrun.job.state import Status
from pqrun.store import PgJobStore
from tests.store.listening import hearing
from tests.store.locking import holding, wait_until_waiting
from tests.support.rows import make_job


async def snapshot(connection: asyncpg.Connection, job_id: int) -> dict[str, object]:
    row = await connection.fetchrow("SELECT *, xmin::text, tableoid::text FROM pqrun.jobs WHERE id = $1", job_id)
    assert row is not None
    return dict(row)


@pytest.mark.parametrize("status", [Status.FAILED, Status.CANCELLED])
async def test_a_finished_job_is_ready_with_all_its_attempts(
    dsn: str, store: PgJobStore, connection: asyncpg.Connection, status: Status
) -> None:
    job_id = await make_job(
        connection,
        status=status,
        payload='{"a": 1}',
        queue="q",
        priority=4,
        attempts=3,
        max_attempts=3,
        timeout_seconds=2.0,
        dedupe_key="k",
        last_error="ValueError: x",
        duration_ms=5,
        claim_id=77,
        lost=2,
        releases=3,
        snoozes=4,
        backoff_seconds=[1.0],
        payload_version=3,
    )
    before = await snapshot(connection, job_id)
    async with hearing(dsn) as heard:
        await store.retry(job_id)
        assert await heard.until_now() == ["ready:4:q"]
    after = await snapshot(connection, job_id)
    cleared = ("finished_at", "duration_ms", "result", "claim_id", "worker", "locked_at", "locked_by")
    assert [after[name] for name in (*cleared, "cancel_requested_at")] == [None] * 8
    assert (after["status"], after["attempts"], after["lost"], after["releases"], after["snoozes"]) == (
        "READY",
        0,
        0,
        0,
        0,
    )
    same = ("payload", "queue", "priority", "max_attempts", "timeout_seconds", "dedupe_key", "created_at", "last_error")
    assert [after[name] for name in same] == [before[name] for name in same]
    assert (after["job_type"], after["backoff_seconds"], after["payload_version"]) == ("t", [1.0], 3)
    assert after["place"] != before["place"]
    assert after["place"] == await connection.fetchval("SELECT last_value FROM pqrun.jobs_place_seq")
    now = await connection.fetchval("SELECT clock_timestamp()")
    assert isinstance(before["finished_at"], type(now))
    assert before["finished_at"] <= after["run_after"] <= now


async def test_a_retry_whose_key_is_taken_names_the_other_job(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    first = await make_job(connection, status=Status.FAILED, dedupe_key="k")
    second = await store.enqueue("t", {}, dedupe_key="k")
    before = await snapshot(connection, first), await snapshot(connection, second)
    with pytest.raises(
        RetryRefused, match=f"job {first} is not retried: job {second} has taken its dedupe key"
    ) as caught:
        await store.retry(first)
    assert (caught.value.job_id, caught.value.conflicting_id) == (first, second)
    assert (await snapshot(connection, first), await snapshot(connection, second)) == before


async def test_each_job_of_many_is_retried_or_refused_by_itself(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    taken = await make_job(connection, status=Status.FAILED, dedupe_key="k")
    await store.enqueue("t", {}, dedupe_key="k")
    free = await make_job(connection, status=Status.FAILED)
    outcomes = await asyncio.gather(*(store.retry(job_id) for job_id in (taken, free)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [RetryRefused, type(None)]
    job = await store.get(free)
    assert job is not None
    assert job.status is Status.READY


async def test_a_done_job_is_retried_only_by_force(store: PgJobStore, connection: asyncpg.Connection) -> None:
    job_id = await make_job(connection, status=Status.DONE)
    before = await snapshot(connection, job_id)
    with pytest.raises(RetryRefused, match="it is DONE; force=True runs it again") as caught:
        await store.retry(job_id)
    assert caught.value.conflicting_id is None
    assert await snapshot(connection, job_id) == before
    await store.retry(job_id, force=True)
    job = await store.get(job_id)
    assert job is not None
    assert (job.status, job.result, job.finished_at, job.attempts) == (Status.READY, None, None, 0)


@pytest.mark.parametrize("status", [Status.READY, Status.SCHEDULED, Status.RUNNING])
async def test_an_active_job_is_not_retried(store: PgJobStore, connection: asyncpg.Connection, status: Status) -> None:
    job_id = await make_job(connection, status=status)
    before = await snapshot(connection, job_id)
    with pytest.raises(RetryRefused, match=f"it is {status.value}, it will run anyway"):
        await store.retry(job_id, force=True)
    assert await snapshot(connection, job_id) == before


async def test_an_unknown_job_is_not_found(store: PgJobStore) -> None:
    with pytest.raises(JobNotFound, match="there is no job 999"):
        await store.retry(999)


async def test_many_retries_of_one_job_make_one_ready_job(store: PgJobStore, connection: asyncpg.Connection) -> None:
    job_id = await make_job(connection, status=Status.FAILED)
    outcomes = await asyncio.gather(*(store.retry(job_id) for _ in range(20)), return_exceptions=True)
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["NoneType"] + ["RetryRefused"] * 19
    assert await connection.fetchval("SELECT count(*) FROM pqrun.jobs") == 1


async def test_a_key_that_is_being_taken_decides_when_that_ends(
    dsn: str, store: PgJobStore, connection: asyncpg.Connection
) -> None:
    job_id = await make_job(connection, status=Status.FAILED, dedupe_key="k")
    async with holding(dsn, "SELECT * FROM pqrun.enqueue('t', '{}', dedupe_key => 'k')"):
        task = asyncio.create_task(store.retry(job_id))
        await wait_until_waiting(connection)
    with pytest.raises(RetryRefused, match="has taken its dedupe key"):
        await task


async def test_a_key_that_becomes_free_meanwhile_lets_the_retry_through(
    dsn: str, store: PgJobStore, connection: asyncpg.Connection
) -> None:
    job_id = await make_job(connection, status=Status.FAILED, dedupe_key="k")
    other = await store.enqueue("t", {}, dedupe_key="k")
    async with holding(dsn, "DELETE FROM pqrun.jobs WHERE id = $1", other):
        task = asyncio.create_task(store.retry(job_id))
        await wait_until_waiting(connection)
    await task
    job = await store.get(job_id)
    assert job is not None
    assert job.status is Status.READY
