"""cancel_many.sql and Selection.cancel: each job as by ``cancel`` of one, what is refused and why, and rows that others hold."""

import asyncio

import asyncpg
import pytest

from pqrun.job.bulk import BulkProgress, Refusal, RefusalReason
from pqrun.job.filter import JobFilter
from pqrun.job.state import FINISHED, Status
from pqrun.store import PgJobStore, bulk, selecting
from tests.store.listening import hearing
from tests.store.locking import holding
from tests.support.rows import make_job, make_worker

ROW = "SELECT *, xmin::text FROM pqrun.jobs WHERE id = $1"


async def test_jobs_that_have_not_started_end_and_running_ones_are_asked(
    dsn: str, store: PgJobStore, connection: asyncpg.Connection
) -> None:
    worker = await make_worker(connection)
    ready = await make_job(connection, dedupe_key="k", attempts=2, lost=1, last_error="x", payload_version=3, queue="q")
    later = await make_job(connection, status=Status.SCHEDULED)
    running = await make_job(connection, status=Status.RUNNING, worker=worker)
    before = await store.get(ready)
    async with hearing(dsn) as heard, hearing(dsn, "pqrun:done") as ends:
        report = await store.select([running, ready, later]).cancel()
        assert await heard.until_now() == [f"cancel:{worker}:{running}"]
        assert await ends.until_now() == [f"{ready},{later}"]
    assert (report.action, report.done, report.requested, report.refused) == ("cancel", 3, 1, 0)
    assert report.done_ids == (ready, later, running)
    job, other = await store.get(ready), await store.get(later)
    assert job is not None
    assert other is not None
    assert before is not None
    assert job.status is other.status is Status.CANCELLED
    assert job.finished_at is not None
    assert (job.attempts, job.lost, job.last_error, job.payload_version, job.queue) == (2, 1, "x", 3, "q")
    assert (job.payload, job.run_after, job.created_at) == (before.payload, before.run_after, before.created_at)
    asked = await store.get(running)
    assert asked is not None
    assert asked.status is Status.RUNNING
    assert asked.cancel_requested_at is not None
    assert await store.enqueue("t", {}, dedupe_key="k") != ready


async def test_finished_jobs_are_unchanged_and_unknown_ids_told_apart(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    finished = {status: await make_job(connection, status=status) for status in sorted(FINISHED)}
    ready = await make_job(connection)
    before = [await connection.fetchrow(ROW, job_id) for job_id in finished.values()]
    report = await store.select([*finished.values(), ready, 999_999]).cancel()
    assert [await connection.fetchrow(ROW, job_id) for job_id in finished.values()] == before
    assert report.done_ids == (ready,)
    assert report.reasons == {RefusalReason.ALREADY_FINISHED: 3, RefusalReason.NOT_FOUND: 1}
    assert Refusal(999_999, RefusalReason.NOT_FOUND) in report.refusals
    assert (report.matched, report.refused, report.is_complete) == (5, 4, False)


async def test_cancelling_twice_is_harmless(store: PgJobStore, connection: asyncpg.Connection) -> None:
    running = await make_job(connection, status=Status.RUNNING)
    await store.select([running]).cancel()
    first = await store.get(running)
    assert (await store.select([running]).cancel()).requested == 1
    again = await store.get(running)
    assert first is not None
    assert again is not None
    assert again.cancel_requested_at == first.cancel_requested_at


async def test_a_filter_without_states_means_jobs_that_have_not_finished(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    mail = [
        await make_job(connection, queue="mail", status=s) for s in (Status.READY, Status.SCHEDULED, Status.RUNNING)
    ]
    await make_job(connection, queue="mail", status=Status.DONE)
    other = await make_job(connection)
    report = await store.select(JobFilter(queues=["mail"])).cancel()
    assert (report.done_ids, report.refused) == (tuple(mail), 0)
    kept = await store.get(other)
    assert kept is not None
    assert kept.status is Status.READY


async def test_a_filter_that_names_finished_states_hears_of_them_and_never_of_what_it_has_just_cancelled(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    ready = await make_job(connection)
    cancelled = await make_job(connection, status=Status.CANCELLED)
    report = await store.select(JobFilter(statuses=[Status.READY, Status.CANCELLED])).cancel()
    assert report.done_ids == (ready,)
    assert report.refusals == (Refusal(cancelled, RefusalReason.ALREADY_FINISHED),)


async def test_a_job_that_started_meanwhile_is_not_stopped_by_a_filter_of_ready_jobs(
    dsn: str, store: PgJobStore, connection: asyncpg.Connection
) -> None:
    job_id = await make_job(connection)
    claim = """UPDATE pqrun.jobs SET status = 'RUNNING', attempts = 1, locked_at = now(), locked_by = 'w',
                      claim_id = nextval('pqrun.claims_id_seq') WHERE id = $1"""
    passed = asyncio.Event()
    async with holding(dsn, claim, job_id):
        wanted = store.select(JobFilter(statuses=[Status.READY]))
        task = asyncio.create_task(wanted.cancel(on_progress=lambda _: passed.set()))
        await passed.wait()
    report = await task
    assert report.refusals == (Refusal(job_id, RefusalReason.CHANGED),)
    job = await store.get(job_id)
    assert job is not None
    assert job.cancel_requested_at is None


async def test_a_job_that_others_hold_is_tried_again_at_the_end(
    dsn: str, store: PgJobStore, connection: asyncpg.Connection
) -> None:
    ids = [await make_job(connection) for _ in range(3)]
    passed = asyncio.Event()
    async with holding(dsn, "SELECT FROM pqrun.jobs WHERE id = $1 FOR UPDATE", ids[1]):
        task = asyncio.create_task(store.select(ids).cancel(on_progress=lambda _: passed.set()))
        await passed.wait()
        left = await connection.fetch("SELECT id FROM pqrun.jobs WHERE status = 'READY'")
        assert [row["id"] for row in left] == [ids[1]]
    report = await task
    assert (report.done, report.refused) == (3, 0)


async def test_a_job_that_stays_held_is_reported_as_busy(
    dsn: str, store: PgJobStore, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "BUSY_SECONDS", 0.1)
    ids = [await make_job(connection) for _ in range(3)]
    async with holding(dsn, "SELECT FROM pqrun.jobs WHERE id = $1 FOR UPDATE", ids[1]):
        report = await store.select(ids).cancel()
    assert report.done_ids == (ids[0], ids[2])
    assert report.refusals == (Refusal(ids[1], RefusalReason.BUSY),)


async def test_each_piece_is_told_and_stays_whatever_comes_after_it(
    store: PgJobStore, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "PIECE_ROWS", 2)
    ids = [await make_job(connection) for _ in range(5)]
    told: list[BulkProgress] = []

    class Enough(Exception):
        pass

    def tell(progress: BulkProgress) -> None:
        told.append(progress)
        if progress.done >= 4:
            raise Enough

    selection = store.select(JobFilter(ids=ids))
    with pytest.raises(Enough):
        await selection.cancel(on_progress=tell)
    assert [(one.looked, one.total, one.done, one.refused) for one in told] == [(5, 5, 2, 0), (5, 5, 4, 0)]
    states = await connection.fetch("SELECT status FROM pqrun.jobs ORDER BY id")
    assert [row["status"] for row in states] == ["CANCELLED"] * 4 + ["READY"]


async def test_a_dry_run_counts_and_changes_nothing(store: PgJobStore, connection: asyncpg.Connection) -> None:
    rows = [await make_job(connection, status=status) for status in (Status.READY, Status.RUNNING, Status.DONE)]
    before = [await connection.fetchrow(ROW, job_id) for job_id in rows]
    report = await store.select(rows).cancel(dry_run=True)
    assert (report.dry_run, report.done, report.requested) == (True, 2, 1)
    assert report.reasons == {RefusalReason.ALREADY_FINISHED: 1}
    assert [await connection.fetchrow(ROW, job_id) for job_id in rows] == before


async def test_more_than_a_piece_and_a_page_is_done_whole(store: PgJobStore, connection: asyncpg.Connection) -> None:
    count = selecting.PAGE_ROWS + selecting.PIECE_ROWS + 1
    await connection.execute("INSERT INTO pqrun.jobs (job_type) SELECT 't' FROM generate_series(1, $1::int)", count)
    report = await store.select(JobFilter(job_types=["t"])).cancel()
    assert (report.done, report.refused, len(report.done_ids)) == (count, 0, 1_000)
    assert await connection.fetchval("SELECT count(*) FROM pqrun.jobs WHERE status = 'CANCELLED'") == count
