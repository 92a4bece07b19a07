"""retry_many.sql and Selection.retry: each job as by ``retry`` of one; taken keys are refused by themselves (F04)."""

import asyncio

import asyncpg
import pytest

from pqrun.job.bulk import Refusal, RefusalReason
from pqrun.job.filter import JobFilter
from pqrun.job.state import Status
from pqrun.store import PgJobStore, bulk
from tests.store.listening import hearing
from tests.store.locking import holding, wait_until_waiting
from tests.support.rows import make_job

ROW = "SELECT *, xmin::text FROM pqrun.jobs WHERE id = $1"


async def test_ended_jobs_are_ready_with_all_their_attempts_in_the_order_of_ids_and_told_once_a_lane(
    dsn: str, store: PgJobStore, connection: asyncpg.Connection
) -> None:
    full = {"attempts": 3, "max_attempts": 3, "claim_id": 77, "lost": 2, "releases": 3, "duration_ms": 5}
    same = {"queue": "q", "priority": 4, "timeout_seconds": 2.0, "backoff_seconds": [1.0], "payload_version": 3}
    # Their keys come in another order than their ids.
    ids = [
        await make_job(connection, status=status, dedupe_key=key, **full, **same)
        for status, key in ((Status.FAILED, "z"), (Status.CANCELLED, "a"), (Status.FAILED, None))
    ]
    before = [dict(await connection.fetchrow(ROW, job_id) or {}) for job_id in ids]
    async with hearing(dsn) as heard:
        report = await store.select(reversed(ids)).retry()
        assert await heard.until_now() == ["ready:4:q"]
    assert (report.done_ids, report.refused) == (tuple(ids), 0)
    after = [dict(await connection.fetchrow(ROW, job_id) or {}) for job_id in ids]
    cleared = (
        "finished_at",
        "duration_ms",
        "result",
        "claim_id",
        "worker",
        "locked_at",
        "locked_by",
        "cancel_requested_at",
    )
    kept = ("payload", "max_attempts", "dedupe_key", "created_at", "last_error", *same)
    for old, new in zip(before, after, strict=True):
        assert [new[name] for name in cleared] == [None] * len(cleared)
        assert (new["status"], new["attempts"], new["lost"], new["releases"]) == ("READY", 0, 0, 0)
        assert [new[name] for name in kept] == [old[name] for name in kept]
        assert old["finished_at"] <= new["run_after"]
    places = [row["place"] for row in after]
    assert places == sorted(places)
    assert places[0] > max(row["place"] for row in before)
    assert await connection.fetchval("SELECT count(*) FROM pqrun.jobs") == 3


async def test_a_job_whose_key_is_taken_is_refused_with_the_holder_and_the_others_are_retried(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    taken = await make_job(connection, status=Status.FAILED, dedupe_key="k")
    holder = await store.enqueue("t", {}, dedupe_key="k")
    free = await make_job(connection, status=Status.FAILED)
    before = [await connection.fetchrow(ROW, job_id) for job_id in (taken, holder)]
    for dry_run in (True, False):
        report = await store.select([taken, free]).retry(dry_run=dry_run)
        assert report.done_ids == (free,)
        assert report.refusals == (Refusal(taken, RefusalReason.KEY_TAKEN, holder),)
    assert [await connection.fetchrow(ROW, job_id) for job_id in (taken, holder)] == before
    job = await store.get(free)
    assert job is not None
    assert job.status is Status.READY


async def test_of_several_with_one_key_one_is_retried_and_holds_it(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    ids = [await make_job(connection, status=Status.FAILED, dedupe_key="k") for _ in range(3)]
    report = await store.select(ids).retry()
    assert report.done_ids == (ids[0],)
    assert report.refusals == tuple(Refusal(job_id, RefusalReason.KEY_TAKEN, ids[0]) for job_id in ids[1:])


async def test_active_jobs_are_refused_and_done_ones_without_force(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    states = (Status.READY, Status.SCHEDULED, Status.RUNNING, Status.DONE)
    ids = [await make_job(connection, status=status) for status in states]
    before = [await connection.fetchrow(ROW, job_id) for job_id in ids]
    report = await store.select([*ids, 999_999]).retry()
    assert report.done == 0
    assert report.reasons == {"is_done": 1, "not_found": 1, "running": 1, "waiting": 2}
    assert [await connection.fetchrow(ROW, job_id) for job_id in ids] == before
    forced = await store.select(ids).retry(force=True)
    assert forced.done_ids == (ids[3],)
    job = await store.get(ids[3])
    assert job is not None
    assert (job.status, job.result, job.attempts) == (Status.READY, None, 0)


async def test_a_filter_retries_done_jobs_only_by_force_and_by_name(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    done, failed = [await make_job(connection, status=status) for status in (Status.DONE, Status.FAILED)]
    assert (await store.select(JobFilter(queues=["default"])).retry(force=True)).done_ids == (failed,)
    assert (await store.select(JobFilter(statuses=[Status.DONE])).retry()).refused == 1
    assert (await store.select(JobFilter(statuses=[Status.DONE])).retry(force=True)).done_ids == (done,)


async def test_a_filter_that_names_active_states_never_hears_of_what_it_has_just_retried(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    failed = await make_job(connection, status=Status.FAILED)
    ready = await make_job(connection)
    report = await store.select(JobFilter(statuses=[Status.FAILED, Status.READY])).retry()
    assert (report.done_ids, report.refusals) == ((failed,), (Refusal(ready, RefusalReason.WAITING),))


async def test_a_key_that_is_being_taken_holds_up_its_own_job_alone(
    dsn: str, store: PgJobStore, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "BUSY_SECONDS", 4.0)
    ids = [await make_job(connection, status=Status.FAILED, dedupe_key=f"k{n}") for n in range(4)]
    async with holding(dsn, "SELECT * FROM pqrun.enqueue('t', '{}', dedupe_key => 'k2')"):
        report = await store.select(ids).retry()
        assert report.done_ids == (ids[0], ids[1], ids[3])
        assert report.refusals == (Refusal(ids[2], RefusalReason.BUSY),)


async def test_a_key_that_is_taken_meanwhile_is_refused(
    dsn: str, store: PgJobStore, connection: asyncpg.Connection
) -> None:
    job_id = await make_job(connection, status=Status.FAILED, dedupe_key="k")
    async with holding(dsn, "SELECT * FROM pqrun.enqueue('t', '{}', dedupe_key => 'k')"):
        task = asyncio.create_task(store.select([job_id]).retry())
        await wait_until_waiting(connection)
    (refusal,) = (await task).refusals
    assert (refusal.id, refusal.reason) == (job_id, RefusalReason.KEY_TAKEN)


async def test_many_retries_of_the_same_jobs_make_each_ready_once(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    ids = [await make_job(connection, status=Status.FAILED, dedupe_key=f"k{n % 7}") for n in range(20)]
    reports = await asyncio.gather(*(store.select(ids).retry() for _ in range(5)))
    assert sum(report.done for report in reports) == 7
    assert {report.matched for report in reports} == {20}
    assert await connection.fetchval("SELECT count(*) FROM pqrun.jobs") == 20
    assert await connection.fetchval("SELECT count(*) FROM pqrun.jobs_active") == 7
