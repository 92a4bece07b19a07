"""explain.sql and list_workers.sql: the facts, as the tables have them."""

from datetime import timedelta

import asyncpg
import pytest

from pqrun.errors import JobNotFound
from pqrun.job.explaining import Explanation, Why
from pqrun.job.state import Status
from pqrun.store import PgJobStore
from tests.support.rows import make_job


async def register(
    connection: asyncpg.Connection,
    *tasks: str,
    queues: list[str] | None = None,
    silent: bool = False,
    dead: bool = False,
) -> int:
    query = """
        INSERT INTO pqrun.workers (worker_id, hostname, pid, queues, job_types, beat_at, dead_at)
        VALUES ('w', 'web-1', 11, $1, $2, clock_timestamp() - $3::interval, CASE WHEN $4 THEN clock_timestamp() END) RETURNING id"""
    age = timedelta(minutes=5) if silent else timedelta(0)
    return int(await connection.fetchval(query, queues, [*tasks, "__cleanup"], age, dead))


def whys(found: Explanation) -> list[Why]:
    return [reason.why for reason in found.reasons]


async def test_what_is_served_is_what_living_workers_serve(store: PgJobStore, connection: asyncpg.Connection) -> None:
    job = await make_job(connection, job_type="send", queue="mail")
    assert whys(await store.explain(job)) == [Why.NO_WORKERS]
    await register(connection, "send", silent=True)
    await register(connection, "send", dead=True)
    assert whys(await store.explain(job)) == [Why.NO_WORKERS]
    await register(connection, "pay", queues=["default"])
    found = await store.explain(job)
    assert whys(found) == [Why.TASK_NOT_SERVED]
    assert found.reasons[0].text == "no living worker has the task send; they have pay"
    await register(connection, "send", queues=["other"])
    found = await store.explain(job)
    assert whys(found) == [Why.QUEUE_NOT_SERVED]
    assert found.reasons[0].text == "no living worker serves the queue mail; they serve default, other"
    await register(connection, "pay", queues=["mail"])
    assert whys(await store.explain(job)) == [Why.PAIR_NOT_SERVED]
    await register(connection, "send")
    assert whys(await store.explain(job)) == [Why.NEXT]


async def test_a_pause_of_its_queue_and_of_its_task_is_told(store: PgJobStore, connection: asyncpg.Connection) -> None:
    await register(connection, "send")
    job = await make_job(connection, job_type="send", queue="mail")
    await store.pause(queue="mail", reason="down")
    await store.pause(queue="send")  # a queue of the task's name is another thing
    (reason,) = (await store.explain(job)).reasons
    assert (reason.why, reason.advice) == (Why.PAUSED, "pqrun resume --queue mail")
    assert reason.text.endswith(": down")
    await store.pause(task="send")
    assert whys(await store.explain(job)) == [Why.PAUSED, Why.PAUSED]
    await store.resume(queue="mail")
    await store.resume(task="send")
    assert whys(await store.explain(job)) == [Why.NEXT]


async def test_only_what_comes_first_in_its_queue_is_counted(store: PgJobStore, connection: asyncpg.Connection) -> None:
    worker = await register(connection, "t")
    await make_job(connection, priority=5)
    await make_job(connection)
    await make_job(connection, priority=-1)
    await make_job(connection, queue="other", priority=9)
    await make_job(connection, status=Status.SCHEDULED, priority=9)
    await make_job(connection, lost=1)
    await make_job(connection, status=Status.RUNNING, worker=worker)
    job = await make_job(connection)
    await make_job(connection)
    found = await store.explain(job)
    assert whys(found) == [Why.BEHIND]
    text = "2 jobs come first in queue default; the 1 worker that could run it holds 1 job"
    assert found.reasons[0].text == text


async def test_a_running_job_names_its_worker_and_whether_it_lives(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    worker = await register(connection, "t")
    job = await make_job(connection, status=Status.RUNNING, worker=worker)
    found = await store.explain(job)
    assert whys(found) == [Why.RUNNING]
    assert "somebody (host web-1, pid 11)" in found.reasons[0].text
    await connection.execute("UPDATE pqrun.workers SET beat_at = clock_timestamp() - interval '1 min'")
    assert whys(await store.explain(job)) == [Why.HOLDER_STALE]
    await connection.execute("UPDATE pqrun.workers SET beat_at = clock_timestamp(), dead_at = clock_timestamp()")
    assert whys(await store.explain(job)) == [Why.HOLDER_STALE]
    await connection.execute("DELETE FROM pqrun.workers")
    assert whys(await store.explain(job)) == [Why.HOLDER_STALE]


async def test_a_payload_newer_than_all_code(store: PgJobStore, connection: asyncpg.Connection) -> None:
    await register(connection, "t")
    job = await make_job(connection, payload_version=3)
    assert whys(await store.explain(job)) == [Why.NEXT]
    note = "INSERT INTO pqrun.task_shapes (job_type, version, shape) VALUES ('t', $1, '{}')"
    await connection.execute(note, 2)
    assert whys(await store.explain(job)) == [Why.NEEDS_NEWER_CODE, Why.NEXT]
    await connection.execute(note, 3)
    assert whys(await store.explain(job)) == [Why.NEXT]


async def test_code_is_asked_for_the_payload(store: PgJobStore, connection: asyncpg.Connection) -> None:
    await register(connection, "t")
    job = await make_job(connection, payload='{"n": 1}', payload_version=2)
    asked: list[tuple[str, int, str]] = []

    def decode_error(job_type: str, version: int, payload: str) -> str | None:
        asked.append((job_type, version, payload))
        return "n: not text"

    assert whys(await store.explain(job, decode_error=decode_error)) == [Why.UNDECODABLE, Why.NEXT]
    assert asked == [("t", 2, '{"n": 1}')]


async def test_a_job_that_is_not_there(store: PgJobStore) -> None:
    with pytest.raises(JobNotFound, match="there is no job 7"):
        await store.explain(7)


async def test_workers_are_listed_living_ones_first(store: PgJobStore, connection: asyncpg.Connection) -> None:
    dead = await register(connection, "t", dead=True)
    silent = await register(connection, "t", silent=True)
    alive = await register(connection, "t", queues=["mail"])
    await make_job(connection, status=Status.RUNNING, worker=alive)
    await make_job(connection, status=Status.RUNNING, worker=dead)
    await make_job(connection, status=Status.RUNNING, worker=dead)
    found = await store.list_workers()
    assert [(one.id, one.is_alive, one.running) for one in found] == [
        (alive, True, 1),
        (dead, False, 2),
        (silent, False, 0),
    ]
    assert found[0].queues == ["mail"]
    assert found[0].job_types == ["t", "__cleanup"]
    assert found[1].dead_at is not None
