"""delete_many.sql and Selection.delete: finished jobs, waiting ones when told so, running ones never."""

import asyncpg
import pytest

from pqrun.job.bulk import Refusal, RefusalReason
from pqrun.job.filter import JobFilter
from pqrun.job.state import Status
from pqrun.store import PgJobStore, bulk
from tests.store.locking import holding
from tests.support.rows import make_job


async def make_all(connection: asyncpg.Connection) -> dict[Status, int]:
    return {status: await make_job(connection, status=status) for status in Status}


async def left(connection: asyncpg.Connection) -> set[str]:
    return {row["status"] for row in await connection.fetch("SELECT status FROM pqrun.jobs")}


async def test_finished_jobs_go_and_the_others_are_refused(store: PgJobStore, connection: asyncpg.Connection) -> None:
    ids = await make_all(connection)
    report = await store.select([*ids.values(), 999_999]).delete()
    assert set(report.done_ids) == {ids[Status.DONE], ids[Status.FAILED], ids[Status.CANCELLED]}
    assert report.reasons == {"not_found": 1, "running": 1, "waiting": 2}
    assert await left(connection) == {"SCHEDULED", "READY", "RUNNING"}


async def test_waiting_jobs_go_when_told_so_and_running_ones_never(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    ids = await make_all(connection)
    report = await store.select(JobFilter(job_types=["t"])).delete(waiting=True)
    assert report.refusals == (Refusal(ids[Status.RUNNING], RefusalReason.RUNNING),)
    assert await left(connection) == {"RUNNING"}


async def test_a_filter_means_finished_jobs_unless_told_else(store: PgJobStore, connection: asyncpg.Connection) -> None:
    await make_all(connection)
    report = await store.select(JobFilter(job_types=["t"])).delete()
    assert (report.done, report.refused) == (3, 0)
    assert await left(connection) == {"SCHEDULED", "READY", "RUNNING"}


async def test_a_deleted_job_frees_its_key(store: PgJobStore) -> None:
    job_id = await store.enqueue("t", {}, dedupe_key="k")
    assert (await store.select([job_id]).delete(waiting=True)).done == 1
    assert await store.get(job_id) is None
    assert await store.enqueue("t", {}, dedupe_key="k") != job_id


async def test_a_job_that_others_hold_is_busy_and_stays(
    dsn: str, store: PgJobStore, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "BUSY_SECONDS", 0.1)
    ids = [await make_job(connection, status=Status.FAILED) for _ in range(2)]
    async with holding(dsn, "SELECT FROM pqrun.jobs WHERE id = $1 FOR UPDATE", ids[0]):
        report = await store.select(ids).delete()
    assert (report.done_ids, report.refusals) == ((ids[1],), (Refusal(ids[0], RefusalReason.BUSY),))
    assert await store.get(ids[0]) is not None
