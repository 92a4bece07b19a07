"""page_jobs.sql and Selection: which jobs a filter means, in whatever part of the table, page by page."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from pqrun.errors import ArgumentsError, NotOpenError, OptionError
from pqrun.job.filter import JobFilter
from pqrun.job.state import Status
from pqrun.store import PgJobStore, pg, selecting
from tests.store.locking import holding
from tests.support.rows import make_job
from tests.support.waiting import wait_until

NOW = datetime(2026, 6, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)

ROWS: dict[str, dict[str, Any]] = {
    "plain": {},
    "mail": {"queue": "mail", "priority": 4, "job_type": "send", "payload": '{"to": "a", "cc": ["b", "c"], "n": 1}'},
    "keyed": {"dedupe_key": "k", "created_at": NOW - HOUR},
    "later": {"status": Status.SCHEDULED, "run_after": NOW + HOUR},
    "often": {"attempts": 3, "job_type": "often"},
    "running": {"status": Status.RUNNING, "created_at": NOW},
    "done": {"status": Status.DONE, "finished_at": NOW - 2 * HOUR},
    "failed": {"status": Status.FAILED, "last_error": "ValueError: No Such Card", "finished_at": NOW - HOUR},
    "cancelled": {"status": Status.CANCELLED, "queue": "mail", "finished_at": NOW},
}

FILTERS: dict[str, tuple[JobFilter, str]] = {
    "all": (JobFilter(), " ".join(ROWS)),
    "statuses of both parts": (JobFilter(statuses=[Status.RUNNING, Status.FAILED]), "running failed"),
    "job_types": (JobFilter(job_types=["send", "other"]), "mail"),
    "job_type_patterns": (JobFilter(job_type_patterns=["s*d"]), "mail"),
    "a pattern of LIKE is none": (JobFilter(job_type_patterns=["*_e_d"]), ""),
    "job_types or patterns": (JobFilter(job_type_patterns=["s*"], job_types=["send", "other"]), "mail"),
    "workers": (JobFilter(workers=["somebody"]), "running done"),
    "attempts": (JobFilter(attempts_min=2, attempts_max=3), "often"),
    "attempts at most": (JobFilter(attempts_max=0, job_types=["send"]), "mail"),
    "queues": (JobFilter(queues=["mail"]), "mail cancelled"),
    "priorities": (JobFilter(priorities=[4]), "mail"),
    "dedupe_keys": (JobFilter(dedupe_keys=["k"]), "keyed"),
    "error": (JobFilter(error_contains="no SUCH"), "failed"),
    "error with a pattern": (JobFilter(error_contains="N_ Such%"), ""),
    "payload": (JobFilter(payload={"to": "a", "n": 1}), "mail"),
    "payload, another value": (JobFilter(payload={"to": "a", "n": "1"}), ""),
    "payload, part of an array": (JobFilter(payload={"cc": ["b"]}), "mail"),
    "created, to the instant": (JobFilter(created_after=NOW - HOUR, created_before=NOW), "keyed"),
    "finished, to the instant": (JobFilter(finished_after=NOW - HOUR, finished_before=NOW), "failed"),
    "finished before": (JobFilter(finished_before=NOW - HOUR), "done"),
    "due": (JobFilter(due_after=NOW, due_before=NOW + 2 * HOUR), "later"),
    "all of several": (JobFilter(queues=["mail"], statuses=[Status.READY]), "mail"),
}


@pytest.mark.parametrize(("wanted", "names"), FILTERS.values(), ids=FILTERS)
async def test_a_filter_means_the_jobs_for_which_all_of_it_holds(
    store: PgJobStore,
    connection: asyncpg.Connection,
    monkeypatch: pytest.MonkeyPatch,
    wanted: JobFilter,
    names: str,
) -> None:
    monkeypatch.setattr(selecting, "PAGE_ROWS", 2)
    ids = {name: await make_job(connection, **{"run_after": NOW - HOUR, **row}) for name, row in ROWS.items()}
    by_id = {job_id: name for name, job_id in ids.items()}
    found = await store.select(wanted).find()
    assert sorted(by_id[job.id] for job in found) == sorted(names.split())
    assert await store.select(wanted).count() == len(names.split())


async def test_ids_of_a_filter_are_those_that_match(store: PgJobStore, connection: asyncpg.Connection) -> None:
    ready = await make_job(connection)
    failed = await make_job(connection, status=Status.FAILED)
    wanted = JobFilter(ids=[ready, failed, 999], statuses=[Status.FAILED])
    assert [job.id for job in await store.select(wanted).find()] == [failed]


async def test_a_span_is_counted_by_the_clock_of_the_database(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    query = "UPDATE pqrun.jobs SET created_at = clock_timestamp() - $1::interval WHERE id = $2"
    old, new = [await make_job(connection) for _ in range(2)]
    await connection.execute(query, timedelta(hours=3), old)
    await connection.execute(query, timedelta(hours=1), new)
    assert [job.id for job in await store.select(JobFilter(created_after=timedelta(hours=2))).find()] == [new]
    assert [job.id for job in await store.select(JobFilter(created_before=timedelta(hours=2))).find()] == [old]


async def test_jobs_that_ended_at_one_instant_are_all_found_across_pages(
    store: PgJobStore, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selecting, "PAGE_ROWS", 2)
    ids = [await make_job(connection, status=Status.FAILED, finished_at=NOW) for _ in range(5)]
    before = await make_job(connection, status=Status.FAILED, finished_at=NOW - HOUR)
    found = await store.select(JobFilter(finished_after=NOW - HOUR)).find()
    assert [job.id for job in found] == [before, *ids]


async def test_a_limit_ends_the_selection(
    store: PgJobStore, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selecting, "PAGE_ROWS", 2)
    ids = [await make_job(connection) for _ in range(5)]
    assert await store.select(JobFilter(), limit=3).count() == 3
    assert [job.id for job in await store.select(JobFilter(), limit=3).find(limit=2)] == ids[:2]
    assert [job.id for job in await store.select(reversed(ids), limit=3).find()] == ids[:3]
    assert (await store.select(JobFilter(), limit=3).cancel()).done_ids == tuple(ids[:3])


async def test_a_found_job_is_what_get_returns(store: PgJobStore, connection: asyncpg.Connection) -> None:
    job_id = await make_job(connection, status=Status.DONE, backoff_seconds=[1.0])
    assert await store.select([job_id, 999]).find() == [await store.get(job_id)]


async def test_jobs_that_come_after_the_walk_began_are_not_looked_at(
    store: PgJobStore, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selecting, "PAGE_ROWS", 1)
    for _ in range(3):
        await make_job(connection)
    link = store.open_selection()
    seen = []
    async for page in selecting.pages(link, JobFilter(), [Status.READY]):
        seen += page.ids
        await make_job(connection)
    await link.close()
    assert len(seen) == 3


async def test_what_is_no_selection_is_refused(store: PgJobStore) -> None:
    with pytest.raises(ArgumentsError, match="expected a JobFilter or ids of jobs; got str"):
        store.select("7")  # type: ignore[arg-type]  # the point
    with pytest.raises(ArgumentsError, match="the id of a job is an int; got str"):
        store.select(["7"])  # type: ignore[list-item]  # the point
    with pytest.raises(OptionError, match=r"^limit: expected a whole number from 1"):
        store.select([7], limit=0)
    with pytest.raises(OptionError, match=r"^limit: "):
        await store.select([7]).find(limit=0)


async def test_a_store_that_is_not_open_says_so(dsn: str) -> None:
    with pytest.raises(NotOpenError):
        await PgJobStore(dsn).select([1]).cancel()


async def test_a_lock_on_the_whole_table_is_waited_for(
    dsn: str, store: PgJobStore, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pg, "SELECT_SETTINGS", f"{selecting.SELECT_SETTINGS}; SET lock_timeout = 50")
    job_id = await make_job(connection)
    starts: set[object] = set()

    async def has_looked_again() -> bool:
        query = "SELECT query_start FROM pg_stat_activity WHERE application_name = 'pqrun select' AND wait_event_type = 'Lock'"
        starts.update(row["query_start"] for row in await connection.fetch(query))
        return len(starts) > 2

    async with holding(dsn, "LOCK TABLE pqrun.jobs_active IN ACCESS EXCLUSIVE MODE"):
        task = asyncio.create_task(store.select(JobFilter(statuses=[Status.READY])).cancel())
        await wait_until(has_looked_again)
    assert (await task).done_ids == (job_id,)


async def test_a_handed_in_pool_serves_too(dsn: str, connection: asyncpg.Connection) -> None:
    failed = await make_job(connection, status=Status.FAILED, dedupe_key="k")
    async with asyncpg.create_pool(dsn, min_size=1, max_size=2) as pool, PgJobStore(pool=pool) as store:
        selection = store.select(JobFilter(dedupe_keys=["k"]))
        assert (await selection.retry()).done_ids == (failed,)
        assert (await selection.cancel()).done_ids == (failed,)
        assert [job.id for job in await selection.find()] == [failed]
        assert await pool.fetchval("SHOW lock_timeout") == "0"  # nothing of its settings is left there
