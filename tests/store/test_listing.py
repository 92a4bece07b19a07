"""Lists of jobs: newest first, page by page, whatever part of the table they are in, and cut by time."""

import re
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from pqrun.errors import NotOpenError, OptionError
from pqrun.job.filter import JobFilter
from pqrun.job.query import parse_query
from pqrun.job.state import Status
from pqrun.store import PgJobStore, listing
from tests.support.rows import make_job


def ago(minutes: int) -> datetime:
    """So long ago as seen from here, not from where the tests began."""
    return datetime.now(UTC) - timedelta(minutes=minutes + 1)


async def all_pages(store: PgJobStore, wanted: JobFilter, limit: int) -> list[list[int]]:
    pages: list[list[int]] = []
    after: int | None = None
    while not pages or after is not None:
        page = await store.list_jobs(wanted, limit=limit, after=after)
        pages.append([job.id for job in page.jobs])
        assert not page.is_cut
        after = page.following
    return pages


@pytest.fixture(params=[2, 5_000], ids=["small pages", "large pages"])
def rows_looked_at(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(listing, "FIRST_ROWS", request.param)
    monkeypatch.setattr(listing, "PAGE_ROWS", request.param)
    return int(request.param)


@pytest.mark.usefixtures("rows_looked_at")
@pytest.mark.parametrize("limit", [1, 2, 3, 50])
@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("", "r2 f3 s1 d2 r1 f2 f1"),
        ("state:failed", "f3 f2 f1"),
        ("state:ready,scheduled", "r2 s1 r1"),
        ("state:failed,ready", "r2 f3 r1 f2 f1"),
        ("state:failed since:1d", "f1 f3 f2"),
        ("finished_after:1d", "f1 f3 d2 f2"),
        ("finished_before:70m", "d2 f2"),
        ("queue:mail", "d2 f2"),
        ("state:ready finished_after:1h", ""),
        ("queue:nowhere", ""),
    ],
)
async def test_jobs_come_newest_first_and_the_pages_make_the_whole(
    store: PgJobStore, connection: asyncpg.Connection, query: str, names: str, limit: int
) -> None:
    made: dict[int, str] = {}
    for name, minutes, queue in (
        ("f1", 1, "default"),
        ("f2", 120, "mail"),
        ("r1", 0, "default"),
        ("d2", 90, "mail"),
        ("s1", 0, "default"),
        ("f3", 60, "default"),
        ("r2", 0, "default"),
    ):
        status = {"f": Status.FAILED, "r": Status.READY, "d": Status.DONE, "s": Status.SCHEDULED}[name[0]]
        ended = {"finished_at": ago(minutes)} if status.is_finished else {}
        made[await make_job(connection, status=status, queue=queue, **ended)] = name
    pages = await all_pages(store, parse_query(query), limit)
    assert [made[job_id] for page in pages for job_id in page] == names.split()
    assert all(len(page) == limit for page in pages[:-1])


@pytest.mark.usefixtures("rows_looked_at")
async def test_jobs_that_ended_at_one_instant_are_all_listed(store: PgJobStore, connection: asyncpg.Connection) -> None:
    ids = [await make_job(connection, status=Status.FAILED, finished_at=ago(0)) for _ in range(7)]
    pages = await all_pages(store, parse_query("finished_after:1d"), 3)
    assert [job_id for page in pages for job_id in page] == ids[::-1]


async def test_ids_of_a_filter_are_listed_newest_first(store: PgJobStore, connection: asyncpg.Connection) -> None:
    ids = [await make_job(connection) for _ in range(3)]
    assert await all_pages(store, JobFilter(ids=[*ids, 999_999]), 2) == [[ids[2], ids[1]], [ids[0]]]


async def test_a_line_says_what_a_list_shows_and_no_payload(store: PgJobStore, connection: asyncpg.Connection) -> None:
    running = await make_job(connection, status=Status.RUNNING, payload='{"card": "4111"}', dedupe_key="k", priority=3)
    failed = await make_job(
        connection, status=Status.FAILED, last_error='Traceback:\n  File "x"\nValueError: no', duration_ms=1500
    )
    page = await store.list_jobs()
    first, second = page.jobs
    assert (first.id, first.error_summary, first.run_seconds, first.attempts) == (failed, "ValueError: no", 1.5, 1)
    assert (second.id, second.dedupe_key, second.priority, second.locked_by) == (running, "k", 3, "somebody")
    assert second.run_seconds is not None
    assert second.age_seconds >= 0
    assert "4111" not in repr(page)
    assert page.looked == 2


async def test_a_walk_for_jobs_made_lately_ends_where_older_ones_begin(
    store: PgJobStore, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "FIRST_ROWS", 10)
    monkeypatch.setattr(listing, "PAGE_ROWS", 10)
    await connection.execute(
        "INSERT INTO pqrun.jobs (job_type, created_at) SELECT 't', clock_timestamp() - interval '1 day' FROM generate_series(1, 500)"
    )
    new = await make_job(connection)
    page = await store.list_jobs(parse_query("since:1h"))
    assert [job.id for job in page.jobs] == [new]
    assert page.following is None
    assert page.looked == 20


async def test_a_list_whose_time_runs_out_says_where_to_go_on(
    store: PgJobStore, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "FIRST_ROWS", 2)
    oldest, *_ = [await make_job(connection, queue=queue) for queue in ("mail", "a", "b", "c", "d")]
    page = await store.list_jobs(JobFilter(queues=["mail"]), seconds=0)
    assert (page.jobs, page.looked, page.is_cut) == ((), 2, True)
    rest = await store.list_jobs(JobFilter(queues=["mail"]), after=page.following)
    assert [job.id for job in rest.jobs] == [oldest]
    counted = await store.count_jobs(JobFilter(), seconds=0)
    assert (counted.count, counted.is_exact) == (2, False)


async def test_a_count_is_exact_up_to_its_cap(store: PgJobStore, connection: asyncpg.Connection) -> None:
    for _ in range(5):
        await make_job(connection)
    for most, count, exact in ((4, 4, False), (5, 5, True), (6, 5, True)):
        counted = await store.count_jobs(most=most)
        assert (counted.count, counted.is_exact) == (count, exact)


async def test_what_cannot_be_is_refused(store: PgJobStore, connection: asyncpg.Connection) -> None:
    with pytest.raises(OptionError, match="limit: expected a whole number from 1 to 1000; got 0"):
        await store.list_jobs(limit=0)
    ready = await make_job(connection)
    for gone in (ready, 999_999):
        with pytest.raises(OptionError, match=re.escape(f"after: expected a job that has ended; {gone} is gone")):
            await store.list_jobs(parse_query("finished_after:1h"), after=gone)


async def test_a_closed_store_says_so(dsn: str) -> None:
    with pytest.raises(NotOpenError):
        await PgJobStore(dsn).list_jobs()
