"""relane_many.sql, Selection.move and Selection.prioritize: another lane, a new place in it, and a word to workers."""

import asyncpg
import pytest

from pqrun.errors import OptionError
from pqrun.job.bulk import Refusal, RefusalReason
from pqrun.job.filter import JobFilter
from pqrun.job.state import Status
from pqrun.store import PgJobStore
from pqrun.store.claiming import Claimer, Lane
from tests.store.listening import hearing
from tests.support.rows import make_job

PLACE = "SELECT place FROM pqrun.jobs WHERE id = $1"


async def test_moved_jobs_have_a_new_place_in_the_order_of_ids_and_are_told_once_a_lane(
    dsn: str, store: PgJobStore, connection: asyncpg.Connection
) -> None:
    ids = [await make_job(connection, priority=priority) for priority in (4, 0, 4)]
    last = await connection.fetchval("SELECT last_value FROM pqrun.jobs_place_seq")
    async with hearing(dsn) as heard:
        report = await store.select(reversed(ids)).move("mail")
        assert sorted(await heard.until_now()) == ["ready:0:mail", "ready:4:mail"]
    assert (report.action, report.done_ids) == ("move", tuple(ids))
    places = [await connection.fetchval(PLACE, job_id) for job_id in ids]
    assert last < places[0] < places[1] < places[2]
    jobs = await store.select(ids).find()
    assert [(job.queue, job.priority, job.status) for job in jobs] == [
        ("mail", priority, Status.READY) for priority in (4, 0, 4)
    ]


async def test_a_new_priority_is_a_new_lane(dsn: str, store: PgJobStore, connection: asyncpg.Connection) -> None:
    job_id = await make_job(connection)
    before = await connection.fetchval(PLACE, job_id)
    async with hearing(dsn) as heard:
        report = await store.select([job_id]).prioritize(-3)
        assert await heard.until_now() == ["ready:-3:default"]
    assert (report.action, report.done) == ("prioritize", 1)
    job = await store.get(job_id)
    assert job is not None
    assert (job.priority, job.queue) == (-3, "default")
    assert await connection.fetchval(PLACE, job_id) > before


async def test_jobs_for_later_move_without_a_word_and_lost_ones_are_told_as_such(
    dsn: str, store: PgJobStore, connection: asyncpg.Connection
) -> None:
    later = await make_job(connection, status=Status.SCHEDULED)
    lost = await make_job(connection, lost=1)
    async with hearing(dsn) as heard:
        assert (await store.select([later, lost]).move("mail")).done == 2
        assert await heard.until_now() == ["suspect:0:mail"]
    job = await store.get(later)
    assert job is not None
    assert (job.queue, job.status) == ("mail", Status.SCHEDULED)


async def test_a_job_that_is_there_already_keeps_its_place(
    dsn: str, store: PgJobStore, connection: asyncpg.Connection
) -> None:
    job_id = await make_job(connection, queue="mail", priority=2)
    before = await connection.fetchrow("SELECT *, xmin::text FROM pqrun.jobs WHERE id = $1", job_id)
    async with hearing(dsn) as heard:
        assert (await store.select([job_id]).move("mail")).done == 1
        assert (await store.select([job_id]).prioritize(2)).done == 1
        assert await heard.until_now() == []
    assert await connection.fetchrow("SELECT *, xmin::text FROM pqrun.jobs WHERE id = $1", job_id) == before


async def test_running_and_finished_jobs_stay_where_they_are(store: PgJobStore, connection: asyncpg.Connection) -> None:
    running = await make_job(connection, status=Status.RUNNING)
    done = await make_job(connection, status=Status.DONE)
    ready = await make_job(connection)
    for report in (
        await store.select([running, done, ready]).move("mail"),
        await store.select([running, done, ready]).prioritize(3),
    ):
        assert report.done_ids == (ready,)
        assert set(report.refusals) == {
            Refusal(running, RefusalReason.RUNNING),
            Refusal(done, RefusalReason.ALREADY_FINISHED),
        }
    jobs = await store.select([running, done]).find()
    assert {(job.queue, job.priority) for job in jobs} == {("default", 0)}


async def test_a_filter_hears_of_running_jobs_that_it_could_not_move(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    running = await make_job(connection, status=Status.RUNNING)
    await make_job(connection, status=Status.DONE)
    report = await store.select(JobFilter(queues=["default"])).move("mail")
    assert report.refusals == (Refusal(running, RefusalReason.RUNNING),)


async def test_a_claim_whose_cursor_has_passed_the_old_place_finds_a_moved_job(
    store: PgJobStore, connection: asyncpg.Connection, claimer: Claimer
) -> None:
    job_id = await make_job(connection, queue="other")
    await make_job(connection, queue="mail")
    cursor = await connection.fetchval("SELECT max(place) FROM pqrun.jobs")
    await store.select([job_id]).move("mail")
    batch = await claimer.claim([(Lane("mail", 0), cursor)], ["t"], ["t"], [], limit=5, look=50, free=5)
    assert [job.id for job in batch.jobs] == [job_id]


async def test_an_impossible_lane_is_refused_before_anything_is_read(store: PgJobStore) -> None:
    with pytest.raises(OptionError, match=r"^queue: expected text of 1 to 200 characters"):
        await store.select([1]).move("")
    with pytest.raises(OptionError, match=r"^priority: expected a whole number"):
        await store.select([1]).prioritize(2**15)
