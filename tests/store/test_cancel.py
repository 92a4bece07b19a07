"""cancel.sql and PgJobStore.cancel: at once before the start, by request while it runs, never after the end."""

import asyncio

import asyncpg
import pytest

from pqrun.errors import JobBusy
from pqrun.job.outcome import CancelOutcome
from pqrun.job.state import FINISHED, Status
from pqrun.store import PgJobStore, intervening
from tests.store.listening import hearing
from tests.store.locking import holding
from tests.support.rows import make_job, make_worker


@pytest.mark.parametrize("status", [Status.READY, Status.SCHEDULED])
async def test_a_job_that_has_not_started_is_cancelled_at_once(
    store: PgJobStore, connection: asyncpg.Connection, status: Status
) -> None:
    job_id = await make_job(
        connection,
        status=status,
        dedupe_key="k",
        attempts=2,
        lost=1,
        releases=1,
        snoozes=4,
        last_error="x",
        payload_version=3,
    )
    before = await store.get(job_id)
    assert await store.cancel(job_id) is CancelOutcome.CANCELLED
    job = await store.get(job_id)
    assert job is not None
    assert before is not None
    assert (job.status, job.attempts, job.lost, job.releases, job.snoozes) == (Status.CANCELLED, 2, 1, 1, 4)
    assert job.last_error == "x"
    assert (job.payload, job.run_after, job.created_at) == (before.payload, before.run_after, before.created_at)
    assert job.payload_version == 3
    assert job.finished_at is not None
    assert job.cancel_requested_at is None
    assert await store.enqueue("t", {}, dedupe_key="k") != job_id


async def test_a_running_job_is_asked_once_and_its_worker_told(
    dsn: str, store: PgJobStore, connection: asyncpg.Connection
) -> None:
    worker = await make_worker(connection)
    job_id = await make_job(connection, status=Status.RUNNING, worker=worker)
    by_hand = await make_job(connection, status=Status.RUNNING)
    async with hearing(dsn) as heard:
        assert await store.cancel(job_id) is CancelOutcome.REQUESTED
        first = await store.get(job_id)
        assert await store.cancel(job_id) is CancelOutcome.REQUESTED
        assert await store.cancel(by_hand) is CancelOutcome.REQUESTED
        told = f"cancel:{worker}:{job_id}"
        assert await heard.until_now() == [told, told, f"cancel:0:{by_hand}"]
    again = await store.get(job_id)
    assert first is not None
    assert again is not None
    assert again.status is Status.RUNNING
    assert again.cancel_requested_at == first.cancel_requested_at is not None


@pytest.mark.parametrize("status", sorted(FINISHED))
async def test_a_finished_job_is_unchanged(store: PgJobStore, connection: asyncpg.Connection, status: Status) -> None:
    job_id = await make_job(connection, status=status)
    before = await connection.fetchrow("SELECT *, xmin::text FROM pqrun.jobs WHERE id = $1", job_id)
    assert await store.cancel(job_id) is CancelOutcome.ALREADY_FINISHED
    assert await connection.fetchrow("SELECT *, xmin::text FROM pqrun.jobs WHERE id = $1", job_id) == before


async def test_cancelling_twice_is_harmless_and_an_unknown_id_is_told_apart(store: PgJobStore) -> None:
    job_id = await store.enqueue("t", {})
    outcomes = [await store.cancel(job_id), await store.cancel(job_id), await store.cancel(999)]
    assert outcomes == [CancelOutcome.CANCELLED, CancelOutcome.ALREADY_FINISHED, CancelOutcome.NOT_FOUND]


async def test_a_cancelled_wait_ends(dsn: str, store: PgJobStore) -> None:
    job_id = await store.enqueue("t", {})
    async with hearing(dsn, "pqrun:done") as ends:
        await store.cancel(job_id)
        assert await ends.until_now() == [str(job_id)]


async def test_a_locked_row_is_looked_at_again_until_it_is_free(
    dsn: str, store: PgJobStore, connection: asyncpg.Connection
) -> None:
    job_id = await store.enqueue("t", {})
    async with holding(dsn, "SELECT FROM pqrun.jobs WHERE id = $1 FOR UPDATE", job_id):
        assert (await store.run("cancel", job_id))[0]["outcome"] == "LOCKED"
        task = asyncio.create_task(store.cancel(job_id))
        assert (await store.run("cancel", job_id))[0]["outcome"] == "LOCKED"
        assert not task.done()
    assert await task is CancelOutcome.CANCELLED


async def test_a_row_that_stays_locked_raises_busy(
    dsn: str, store: PgJobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intervening, "BUSY_SECONDS", 0.01)
    job_id = await store.enqueue("t", {})
    async with holding(dsn, "SELECT FROM pqrun.jobs WHERE id = $1 FOR UPDATE", job_id):
        with pytest.raises(JobBusy, match=f"job {job_id} is held by another transaction") as caught:
            await store.cancel(job_id)
    assert caught.value.job_id == job_id
    job = await store.get(job_id)
    assert job is not None
    assert job.status is Status.READY


async def test_a_job_that_is_claimed_a_moment_before_is_asked(
    dsn: str, store: PgJobStore, connection: asyncpg.Connection
) -> None:
    job_id = await store.enqueue("t", {})
    claim = """UPDATE pqrun.jobs SET status = 'RUNNING', attempts = 1, locked_at = now(), locked_by = 'w',
                      claim_id = nextval('pqrun.claims_id_seq') WHERE id = $1"""
    async with holding(dsn, claim, job_id):
        task = asyncio.create_task(store.cancel(job_id))
        assert (await store.run("cancel", job_id))[0]["outcome"] == "LOCKED"
    assert await task is CancelOutcome.REQUESTED


async def test_many_cancels_of_one_job_agree(store: PgJobStore) -> None:
    job_id = await store.enqueue("t", {})
    outcomes = await asyncio.gather(*(store.cancel(job_id) for _ in range(20)))
    assert outcomes.count(CancelOutcome.CANCELLED) == 1
    assert outcomes.count(CancelOutcome.ALREADY_FINISHED) == 19
