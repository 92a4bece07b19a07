"""enqueue.sql and find_active.sql: insert or find, alone and in batches, in the caller's transaction or our own."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from pqrun.errors import ConflictError, DedupeKeyError, DeferError, OptionError, PayloadError, StoreError
from pqrun.job.record import Enqueued, NewJob
from pqrun.job.state import FINISHED, Status
from pqrun.store import PgJobStore, enqueueing
from tests.store.listening import hearing
from tests.store.locking import holding, wait_until_waiting
from tests.support.database import connected
from tests.support.rows import make_job


async def count(connection: asyncpg.Connection) -> int:
    return int(await connection.fetchval("SELECT count(*) FROM pqrun.jobs"))


async def test_an_active_key_gives_the_same_id_again(store: PgJobStore) -> None:
    first = await store.enqueue("send_email", {"user_id": 123}, dedupe_key="welcome:user:123")
    again = await store.enqueue("send_email", {"user_id": 124}, dedupe_key="welcome:user:123")
    job = await store.get(first)
    assert again == first
    assert job is not None
    assert (job.status, job.attempts, job.payload) == (Status.READY, 0, {"user_id": 123})


async def test_every_option_is_stored(store: PgJobStore, connection: asyncpg.Connection) -> None:
    due = datetime(2999, 1, 1, 12, 30, 15, 123456, tzinfo=UTC)
    job_id = await store.enqueue(
        "t" * 200,
        {"ü": [1, 2.5, None, True, {"a": "\\u0000"}]},
        queue="q" * 200,
        dedupe_key="k",
        run_after=due,
        priority=-32768,
        max_attempts=2**31 - 1,
        timeout_seconds=0.5,
    )
    job = await store.get(job_id)
    assert job is not None
    assert (job.job_type, job.queue, job.dedupe_key) == ("t" * 200, "q" * 200, "k")
    assert (job.status, job.run_after, job.priority) == (Status.SCHEDULED, due, -32768)
    assert (job.max_attempts, job.timeout_seconds) == (2**31 - 1, 0.5)
    assert job.payload == {"ü": [1, 2.5, None, True, {"a": "\\u0000"}]}
    assert abs(job.created_at - await connection.fetchval("SELECT clock_timestamp()")) < timedelta(minutes=1)


async def test_a_delay_counts_from_the_databases_clock(store: PgJobStore, connection: asyncpg.Connection) -> None:
    before = await connection.fetchval("SELECT clock_timestamp()")
    job = await store.get(await store.enqueue("t", {}, run_after=timedelta(hours=1)))
    after = await connection.fetchval("SELECT clock_timestamp()")
    assert job is not None
    assert before <= job.run_after - timedelta(hours=1) <= after
    assert job.status is Status.SCHEDULED
    past = await store.get(await store.enqueue("t", {}, run_after=datetime.min.replace(tzinfo=UTC)))
    assert past is not None
    assert past.status is Status.READY
    assert past.run_after < after


async def test_concurrent_duplicates_make_one_row(store: PgJobStore, dsn: str, connection: asyncpg.Connection) -> None:
    async with PgJobStore(dsn) as other:
        for number in range(20):
            ids = await asyncio.gather(
                *(
                    s.enqueue("sync", {"user_id": 7}, dedupe_key=f"sync:{number}")
                    for s in (store, other)
                    for _ in range(25)
                )
            )
            assert len(set(ids)) == 1
    rows = await connection.fetch("SELECT status, attempts FROM pqrun.jobs")
    assert [tuple(row) for row in rows] == [("READY", 0)] * 20


@pytest.mark.parametrize("status", sorted(FINISHED))
async def test_a_finished_job_holds_no_key(store: PgJobStore, connection: asyncpg.Connection, status: Status) -> None:
    ended = await make_job(connection, status=status, dedupe_key="k")
    assert await store.enqueue("t", {}, dedupe_key="k") != ended


async def test_a_running_job_holds_its_key_and_its_payload(store: PgJobStore, connection: asyncpg.Connection) -> None:
    running = await make_job(connection, status=Status.RUNNING, dedupe_key="k", payload='{"rev": 1}')
    for _ in range(3):
        (found,) = await store.enqueue_jobs([NewJob(job_type="t", payload='{"rev": 2}', dedupe_key="k")])
        assert found == Enqueued(running, created=False)
    job = await store.get(running)
    assert job is not None
    assert (job.payload, await count(connection)) == ({"rev": 1}, 1)


async def test_keys_are_unique_per_job_type(store: PgJobStore) -> None:
    assert await store.enqueue("a", {}, dedupe_key="k") != await store.enqueue("b", {}, dedupe_key="k")


async def test_a_batch_gives_ids_in_order_and_duplicates_share_one(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    active = await store.enqueue("t", {}, dedupe_key="c")
    keys = ["b", None, "a", "b", "c", None, "a"]
    jobs = [NewJob(job_type="t", payload=f'{{"n": {n}}}', dedupe_key=key) for n, key in enumerate(keys)]
    found = await store.enqueue_jobs(jobs)
    assert [e.created for e in found] == [True, True, True, False, False, True, False]
    ids = [e.id for e in found]
    assert (ids[3], ids[4], ids[6]) == (ids[0], active, ids[2])
    assert [ids[0], ids[1], ids[2], ids[5]] == sorted({ids[0], ids[1], ids[2], ids[5]})  # in the order given
    payloads = {row["id"]: row["payload"] for row in await connection.fetch("SELECT id, payload FROM pqrun.jobs")}
    assert payloads[ids[0]] == '{"n": 0}'
    assert await store.enqueue_jobs([]) == []


async def test_a_batch_larger_than_a_statement_is_one_transaction(
    store: PgJobStore, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enqueueing, "BATCH_ROWS", 10)
    jobs = [NewJob(job_type="t", payload="{}", dedupe_key=f"k{n % 25}") for n in range(50)]
    found = await store.enqueue_jobs(jobs)
    assert [e.created for e in found] == [True] * 25 + [False] * 25
    assert [e.id for e in found[:25]] == [e.id for e in found[25:]]
    bad = NewJob(job_type="t", payload="[]")  # refused by a CHECK, in the last statement
    with pytest.raises(StoreError):
        await store.enqueue_jobs([*(NewJob(job_type="t", payload="{}") for _ in range(30)), bad])
    assert await count(connection) == 25


async def test_batches_with_the_same_keys_in_other_orders_do_not_deadlock(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    jobs = [NewJob(job_type="t", payload="{}", dedupe_key=f"k{n:03}") for n in range(200)]
    for _ in range(3):
        one, two = await asyncio.gather(store.enqueue_jobs(jobs), store.enqueue_jobs(jobs[::-1]))
        assert [e.id for e in one] == [e.id for e in two[::-1]]
        assert await connection.execute("DELETE FROM pqrun.jobs") == "DELETE 200"


async def test_a_key_that_becomes_free_meanwhile_makes_a_new_job(
    dsn: str, store: PgJobStore, connection: asyncpg.Connection
) -> None:
    first = await store.enqueue("t", {}, dedupe_key="k")
    async with holding(dsn, "DELETE FROM pqrun.jobs WHERE id = $1", first):
        task = asyncio.create_task(store.enqueue("t", {}, dedupe_key="k"))
        await wait_until_waiting(connection)
    second = await task
    assert second != first
    assert await store.get(second) is not None


async def test_an_id_that_did_not_commit_is_never_returned(
    dsn: str, store: PgJobStore, connection: asyncpg.Connection
) -> None:
    async with connected(dsn) as other:
        transaction = other.transaction()
        await transaction.start()
        unborn = await store.enqueue("t", {}, dedupe_key="k", connection=other)
        task = asyncio.create_task(store.enqueue("t", {}, dedupe_key="k"))
        await wait_until_waiting(connection)
        await transaction.rollback()
    job_id = await task
    assert job_id != unborn
    assert await store.get(job_id) is not None


# In the caller's transaction.


async def test_a_duplicate_leaves_the_callers_transaction_usable(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    await connection.execute("CREATE TABLE business (n integer)")
    first = await store.enqueue("t", {}, dedupe_key="k", run_after=timedelta(hours=1))
    async with store.transaction() as caller:
        await caller.execute("INSERT INTO business VALUES (1)")
        assert await store.enqueue("t", {}, dedupe_key="k", connection=caller) == first
        await caller.execute("INSERT INTO business VALUES (2)")
    assert await connection.fetchval("SELECT count(*) FROM business") == 2
    assert await count(connection) == 1


async def test_a_refused_job_leaves_the_callers_transaction_usable(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    async with store.transaction() as caller:
        for payload in ({"text": "a\x00b"}, {"x": float("nan")}, {"s": {1, 2}}):
            with pytest.raises(PayloadError):
                await store.enqueue("t", payload, connection=caller)
        await store.enqueue("t", {}, connection=caller)
    assert await count(connection) == 1


async def test_a_rollback_takes_the_job_and_its_announcement_with_it(
    dsn: str, store: PgJobStore, connection: asyncpg.Connection
) -> None:
    async def fail() -> None:
        async with store.transaction() as caller:
            await store.enqueue("t", {}, connection=caller)
            raise ZeroDivisionError

    async with hearing(dsn) as heard:
        with pytest.raises(ZeroDivisionError):
            await fail()
        assert await heard.until_now() == []
    assert await count(connection) == 0


async def test_a_job_is_visible_and_announced_with_the_commit_and_not_before(
    dsn: str, store: PgJobStore, connection: asyncpg.Connection
) -> None:
    async with hearing(dsn) as heard:
        async with store.transaction() as caller:
            job_id = await store.enqueue("t", {}, connection=caller)
            assert await store.get(job_id) is None
            assert await heard.until_now() == []
        assert await heard.until_now() == ["ready:0:default"]
    assert await store.get(job_id) is not None


@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
async def test_a_conflict_that_the_callers_snapshot_cannot_see_has_a_name(
    dsn: str, store: PgJobStore, isolation: Any
) -> None:
    async with connected(dsn) as caller:
        transaction = caller.transaction(isolation=isolation)
        await transaction.start()
        await caller.fetchval("SELECT 1 FROM pqrun.jobs")
        first = await store.enqueue("t", {}, dedupe_key="k")
        with pytest.raises(ConflictError, match=r"repeat yours: .*\(SQLSTATE 40001\)"):
            await store.enqueue("t", {}, dedupe_key="k", connection=caller)
        await transaction.rollback()
        async with caller.transaction(isolation=isolation):
            assert await store.enqueue("t", {}, dedupe_key="k", connection=caller) == first
            assert await store.enqueue("t", {}, dedupe_key="other", connection=caller) != first


async def test_a_transaction_that_has_failed_before_is_named(store: PgJobStore, dsn: str) -> None:
    async with connected(dsn) as caller:
        transaction = caller.transaction()
        await transaction.start()
        with pytest.raises(asyncpg.PostgresError, match="division by zero"):
            await caller.execute("SELECT 1 / 0")
        with pytest.raises(StoreError, match="current transaction is aborted"):
            await store.enqueue("t", {}, connection=caller)
        await transaction.rollback()


async def test_a_plain_connection_without_a_transaction_will_do(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    job_id = await store.enqueue("t", {}, dedupe_key="k", connection=connection)
    assert await store.enqueue("t", {}, dedupe_key="k", connection=connection) == job_id


# Notifications.


async def test_each_lane_of_a_batch_is_announced_once_and_the_earliest_due_time(
    dsn: str, store: PgJobStore, connection: asyncpg.Connection
) -> None:
    first = datetime(2999, 1, 1, tzinfo=UTC)
    jobs = [NewJob(job_type="t", payload="{}", queue=queue, priority=3) for queue in ("a", "b:c", "a", "b:c")]
    jobs += [NewJob(job_type="t", payload="{}", run_after=first + timedelta(days=day)) for day in (2, 0, 1)]
    async with hearing(dsn) as heard:
        await store.enqueue_jobs(jobs)
        messages = await heard.until_now()
    assert sorted(messages)[1:] == ["ready:3:a", "ready:3:b:c"]
    kind, _, epoch = min(messages).partition(":")
    assert (kind, float(epoch)) == ("due", first.timestamp())


async def test_a_duplicate_wakes_nobody(dsn: str, store: PgJobStore) -> None:
    await store.enqueue("t", {}, dedupe_key="k")
    async with hearing(dsn) as heard:
        await store.enqueue("t", {}, dedupe_key="k")
        assert await heard.until_now() == []


async def test_a_payload_of_ten_megabytes_is_stored_and_not_announced(dsn: str, store: PgJobStore) -> None:
    text = "x" * 10_000_000
    async with hearing(dsn) as heard:
        job_id = await store.enqueue("t" * 200, {"text": text}, queue="ü" * 200)
        assert await heard.until_now() == ["ready:0:" + "ü" * 200]
    job = await store.get(job_id)
    assert job is not None
    assert job.payload == {"text": text}


async def test_five_hundred_in_one_transaction_are_announced_once(dsn: str, store: PgJobStore) -> None:
    async with hearing(dsn) as heard:
        async with store.transaction() as caller:
            for _ in range(500):
                await store.enqueue("t", {}, connection=caller)
        assert await heard.until_now() == ["ready:0:default"]


# What is refused.

REFUSED: list[tuple[dict[str, Any], type[DeferError], str]] = [
    ({"job_type": ""}, OptionError, "job_type"),
    ({"job_type": "t" * 201}, OptionError, "job_type"),
    ({"job_type": "a\x00"}, OptionError, "job_type"),
    ({"job_type": None}, OptionError, "job_type"),
    ({"queue": ""}, OptionError, "queue"),
    ({"queue": "\ud83d"}, OptionError, "queue"),
    ({"priority": 40_000}, OptionError, "priority"),
    ({"priority": 1.5}, OptionError, "priority"),
    ({"max_attempts": 0}, OptionError, "max_attempts"),
    ({"max_attempts": 2**31}, OptionError, "max_attempts"),
    ({"timeout_seconds": 0}, OptionError, "timeout"),
    ({"timeout_seconds": float("nan")}, OptionError, "timeout"),
    ({"run_after": datetime(2026, 1, 1)}, OptionError, "run_after"),  # noqa: DTZ001  # a naive one is the case
    ({"run_after": datetime.max.replace(tzinfo=UTC)}, OptionError, "run_after"),
    ({"run_after": timedelta(seconds=-1)}, OptionError, "run_after"),
    ({"run_after": 5}, OptionError, "run_after"),
    ({"dedupe_key": ""}, DedupeKeyError, "dedupe_key"),
    ({"dedupe_key": "a\x00"}, DedupeKeyError, "dedupe_key"),
    ({"dedupe_key": 5}, DedupeKeyError, "dedupe_key"),
    ({"payload": [1]}, PayloadError, "payload"),
    ({"payload": None}, PayloadError, "payload"),
    ({"payload": {"a": {"b\x00": 1}}}, PayloadError, "a.b"),
    ({"payload": {"a": [float("inf")]}}, PayloadError, r"a\[0\]"),
    ({"payload": {"a": object()}}, PayloadError, "a"),
    ({"payload": {1: 2}}, PayloadError, "payload"),
]


async def test_what_cannot_be_stored_is_refused_by_name_before_anything_is_written(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    for options, error, name in REFUSED:
        arguments: dict[str, Any] = {"job_type": "t", "payload": {}} | options
        with pytest.raises(error, match=name):
            await store.enqueue(**arguments)
    assert await count(connection) == 0
    assert await connection.fetchval("SELECT is_called FROM pqrun.jobs_id_seq") is False  # nothing was even tried
