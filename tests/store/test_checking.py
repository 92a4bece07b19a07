"""What a check reads: piece by piece, without locks; and the shapes that workers note."""

import asyncpg
import pytest

from pqrun.errors import StoreError
from pqrun.job.state import Status
from pqrun.store import PgJobStore, checking
from pqrun.store.checking import (
    CHECK_SETTINGS,
    Counted,
    Noted,
    count_waiting,
    find_shapes,
    find_waiting,
    note_shapes,
    page_waiting,
)
from pqrun.store.link import KeptLink
from tests.support.database import connected
from tests.support.rows import make_job

LAST = 2**62


async def test_jobs_are_counted_by_task_version_and_queue_and_some_are_named(
    link: KeptLink, connection: asyncpg.Connection
) -> None:
    ids = [await make_job(connection) for _ in range(3)]
    newer = await make_job(connection, payload_version=2, status=Status.SCHEDULED)
    running = await make_job(connection, job_type="u", queue="q", status=Status.RUNNING)
    for status in (Status.DONE, Status.FAILED, Status.CANCELLED):
        await make_job(connection, status=status)
    counted, last = await count_waiting(link, 0, ids=2)
    assert sorted(counted) == [
        Counted("t", 1, "default", 3, ids[:2]),
        Counted("t", 2, "default", 1, [newer]),
        Counted("u", 1, "q", 1, [running]),
    ]
    assert last == running
    assert await count_waiting(link, running, ids=2) == ([], None)


async def test_pages_go_on_where_the_last_one_ended_and_end(
    link: KeptLink, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "PAGE_ROWS", 2)
    ids = [await make_job(connection, job_type=name) for name in ("t", "other", "t", "t", "other")]
    pages = []
    after: int | None = 0
    while after is not None:
        page = await page_waiting(link, after, ids[-1], ["t"])
        pages.append(([job.id for job in page.jobs], page.looked))
        after = page.last_id
    assert pages == [([ids[0]], 2), (ids[2:4], 2), ([], 1), ([], 0)]
    assert [job.id for job in (await page_waiting(link, 0, ids[0], ["t"])).jobs] == ids[:1]


async def test_a_page_ends_behind_the_payload_that_fills_it(
    link: KeptLink, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "PAGE_BYTES", 2_500)
    big = (
        '{"text": "'
        + "".join(chr(33 + n * 7919 % 90) for n in range(1_000)).replace("\\", "/").replace('"', "'")
        + '"}'
    )
    ids = [await make_job(connection, payload=big) for _ in range(5)]
    small = [await make_job(connection, job_type="other", payload=big) for _ in range(5)]
    page = await page_waiting(link, 0, LAST, ["t"])
    assert 0 < len(page.jobs) < 5
    assert page.last_id == page.jobs[-1].id
    rest = await page_waiting(link, ids[-1], LAST, ["t"])
    assert (rest.jobs, rest.looked, rest.last_id) == ([], 5, small[-1])  # payloads that are not asked for do not count


async def test_the_payload_and_its_version_come_along(link: KeptLink, connection: asyncpg.Connection) -> None:
    job_id = await make_job(connection, payload='{"a": 1}', payload_version=3)
    (job,) = (await page_waiting(link, 0, LAST, ["t"])).jobs
    assert tuple(job) == (job_id, "t", 3, '{"a": 1}')
    assert await find_waiting(link, [job_id, job_id + 1]) == [job]


async def test_a_check_waits_for_no_lock_and_can_write_nothing(
    store: PgJobStore, dsn: str, connection: asyncpg.Connection
) -> None:
    await make_job(connection)
    link = store.open_link("check", kept=False, settings=CHECK_SETTINGS)
    async with connected(dsn) as other, other.transaction():
        await other.execute("SELECT FROM pqrun.jobs_active FOR UPDATE")
        await other.execute("UPDATE pqrun.jobs_active SET updated_at = clock_timestamp()")
        assert len((await page_waiting(link, 0, LAST, ["t"])).jobs) == 1
        assert (await count_waiting(link, 0, ids=1))[0][0].jobs == 1
    with pytest.raises(StoreError, match="read-only transaction"):
        await note_shapes(link, [Noted("t", 1, "{}")])
    await link.close()


async def test_a_shape_is_written_when_it_is_new_or_differs_and_only_then(
    link: KeptLink, connection: asyncpg.Connection
) -> None:
    shape = '{"a": {"type": "integer", "required": true}}'  # in the order of jsonb
    await note_shapes(link, [Noted("t", 1, shape), Noted("t", 2, shape), Noted("u", 1, shape)])
    before = await connection.fetch("SELECT xmin, xmax, ctid, * FROM pqrun.task_shapes ORDER BY job_type, version")
    await note_shapes(link, [Noted("u", 1, shape), Noted("t", 1, shape)])
    assert before == await connection.fetch(
        "SELECT xmin, xmax, ctid, * FROM pqrun.task_shapes ORDER BY job_type, version"
    )
    await note_shapes(link, [Noted("t", 2, "{}"), Noted("t", 1, shape)])
    assert await find_shapes(link, ["t"]) == [Noted("t", 1, shape), Noted("t", 2, "{}")]
    seen = "SELECT seen_at FROM pqrun.task_shapes WHERE job_type = 't' AND version = $1"
    assert await connection.fetchval(seen, 2) > before[1]["seen_at"]
    assert await connection.fetchval(seen, 1) == before[0]["seen_at"]
