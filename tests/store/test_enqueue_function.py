"""The function enqueue of the schema: what triggers, pg_cron and other languages call."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pqrun.job.dedupe import MAX_KEY_BYTES, stored_key
from pqrun.job.state import Status
from pqrun.store import PgJobStore
from tests.store.listening import hearing
from tests.store.locking import holding, wait_until_waiting
from tests.support.database import Databases, connected, run


async def enqueue(connection: asyncpg.Connection, arguments: str, *values: object) -> tuple[int, bool]:
    row = await connection.fetchrow(f"SELECT * FROM pqrun.enqueue({arguments})", *values)
    assert row is not None
    return row["id"], row["created"]


async def test_type_and_payload_are_enough(connection: asyncpg.Connection, store: PgJobStore) -> None:
    job_id, created = await enqueue(connection, """'send_email', '{"user_id": 1}'""")
    job = await store.get(job_id)
    assert created
    assert job is not None
    assert (job.job_type, job.payload, job.status, job.queue) == ("send_email", {"user_id": 1}, Status.READY, "default")
    assert (job.priority, job.max_attempts, job.timeout_seconds, job.dedupe_key) == (0, 5, None, None)
    assert (job.attempts, job.backoff_seconds, job.claim_id) == (0, None, None)


async def test_a_row_is_the_same_whether_sql_or_python_enqueues_it(
    connection: asyncpg.Connection, store: PgJobStore
) -> None:
    due = datetime(2999, 1, 1, tzinfo=UTC)
    by_sql, _ = await enqueue(
        connection,
        "'t', '{\"a\": 1}', queue => 'q', dedupe_key => 'k', run_after => $1, priority => 10, max_attempts => 3, timeout_seconds => 1.5, "
        "payload_version => 4",
        due,
    )
    other = {
        "queue": "q",
        "priority": 10,
        "max_attempts": 3,
        "timeout_seconds": 1.5,
        "run_after": due,
        "payload_version": 4,
    }
    by_python = await store.enqueue("t", {"a": 1}, dedupe_key="other", **other)  # type: ignore[arg-type]  # a mixed dict
    rows = [
        dict(await connection.fetchrow("SELECT * FROM pqrun.jobs WHERE id = $1", job_id) or {})
        for job_id in (by_sql, by_python)
    ]
    for row in rows:
        for name in ("id", "place", "created_at", "updated_at", "dedupe_key"):
            del row[name]
    assert rows[0] == rows[1]
    assert rows[0]["status"] == "SCHEDULED"


async def test_arguments_go_by_position_in_the_documented_order(
    connection: asyncpg.Connection, store: PgJobStore
) -> None:
    job_id, _ = await enqueue(connection, "'t', '{}', 'q', 'k', '2999-01-01 00:00+00', 10, 3, 1.5")
    job = await store.get(job_id)
    assert job is not None
    assert (job.queue, job.dedupe_key, job.priority, job.max_attempts, job.timeout_seconds) == ("q", "k", 10, 3, 1.5)
    assert job.run_after == datetime(2999, 1, 1, tzinfo=UTC)


async def test_a_duplicate_gives_the_active_id_and_changes_nothing(
    connection: asyncpg.Connection, store: PgJobStore
) -> None:
    first = await enqueue(connection, "'t', '{\"rev\": 1}', dedupe_key => 'k'")
    again = await enqueue(connection, "'t', '{\"rev\": 2}', dedupe_key => 'k', priority => 5")
    assert (first[1], again) == (True, (first[0], False))
    assert await store.enqueue("t", {}, dedupe_key="k") == first[0]
    job = await store.get(first[0])
    assert job is not None
    assert (job.payload, job.priority) == ({"rev": 1}, 0)


KEYS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=300)


@pytest.fixture(scope="module")
def migrated(databases: Databases) -> Iterator[str]:
    """A database for many examples."""
    dsn = run(databases.clone())
    yield dsn
    run(databases.drop(dsn))


@settings(max_examples=30, deadline=None)
@given(st.lists(KEYS, min_size=1, max_size=20))
def test_keys_are_stored_by_the_same_rule_as_in_python(migrated: str, keys: list[str]) -> None:
    async def ask() -> list[str]:
        query = "SELECT pqrun.stored_key(key) FROM unnest($1::text[]) WITH ORDINALITY AS u(key, n) ORDER BY n"
        async with connected(migrated) as connection:
            return [row[0] for row in await connection.fetch(query, keys)]

    stored = run(ask())
    assert stored == [stored_key(key) for key in keys]
    assert all(len(key.encode()) <= MAX_KEY_BYTES for key in stored)


async def test_a_long_key_given_in_sql_and_in_python_is_one_key(
    connection: asyncpg.Connection, store: PgJobStore
) -> None:
    for key in ("k" * 201, "é" * 101, "😀" * 200, "k" * 200, "é" * 100):
        job_id, _ = await enqueue(connection, "'t', '{}', dedupe_key => $1", key)
        assert await store.enqueue("t", {}, dedupe_key=key) == job_id
        assert await connection.fetchval("SELECT pqrun.stored_key($1)", key) == stored_key(key)


async def test_a_delay_and_a_backoff_may_be_given(connection: asyncpg.Connection, store: PgJobStore) -> None:
    before = await connection.fetchval("SELECT clock_timestamp()")
    job_id, _ = await enqueue(connection, "'t', '{}', delay_seconds => 3600, backoff_seconds => '{1, 2.5}'")
    after = await connection.fetchval("SELECT clock_timestamp()")
    job = await store.get(job_id)
    assert job is not None
    assert (job.status, job.backoff_seconds) == (Status.SCHEDULED, (1.0, 2.5))
    assert before <= job.run_after - timedelta(hours=1) <= after


async def test_workers_are_always_told(dsn: str, connection: asyncpg.Connection) -> None:
    async with hearing(dsn) as heard:
        await enqueue(connection, "'t', '{}', 'a:b', priority => -7")
        await enqueue(connection, "'t', '{}', run_after => '2999-01-01 00:00+00'")
        await enqueue(connection, "'t', '{}', dedupe_key => 'k'")
        await enqueue(connection, "'t', '{}', dedupe_key => 'k'")
        ready, due, keyed = await heard.until_now()
    assert (ready, keyed) == ("ready:-7:a:b", "ready:0:default")
    assert float(due.removeprefix("due:")) == datetime(2999, 1, 1, tzinfo=UTC).timestamp()


REFUSED: dict[str, str] = {
    "NULL, '{}'": "job_type: expected 1 to 200 characters; got null",
    "'', '{}'": "job_type: expected 1 to 200 characters; got 0",
    "repeat('x', 201), '{}'": "job_type: expected 1 to 200 characters; got 201",
    "'t', NULL": "payload: expected a JSON object; got null",
    "'t', '[]'": "payload: expected a JSON object; got array",
    "'t', '{}', NULL": "queue: expected 1 to 200 characters; got null",
    "'t', '{}', ''": "queue: expected 1 to 200 characters; got 0",
    "'t', '{}', dedupe_key => ''": "dedupe_key: expected at least one character, or null for no key; got none",
    "'t', '{}', priority => NULL": "priority: expected -32768 to 32767; got null",
    "'t', '{}', priority => 40000": "priority: expected -32768 to 32767; got 40000",
    "'t', '{}', max_attempts => NULL": "max_attempts: expected a whole number from 1; got null",
    "'t', '{}', max_attempts => 0": "max_attempts: expected a whole number from 1; got 0",
    "'t', '{}', timeout_seconds => 0": "timeout_seconds: expected more than 0, .*; got 0",
    "'t', '{}', timeout_seconds => -1": "timeout_seconds: .*; got -1",
    "'t', '{}', timeout_seconds => 'NaN'": "timeout_seconds: .*; got NaN",
    "'t', '{}', timeout_seconds => 'infinity'": "timeout_seconds: .*; got Infinity",
    "'t', '{}', run_after => 'infinity'": "run_after: expected an instant in the years 1 to 9999; got another",
    "'t', '{}', run_after => '-infinity'": "run_after: expected an instant in the years 1 to 9999; got another",
    "'t', '{}', run_after => now(), delay_seconds => 1": "run_after, delay_seconds: expected one of them; got both",
    "'t', '{}', delay_seconds => -1": "delay_seconds: expected 0 to .*; got -1",
    "'t', '{}', delay_seconds => 1e300": "delay_seconds: .*; got 1e\\+300",
    "'t', '{}', delay_seconds => 'NaN'": "delay_seconds: .*; got NaN",
    "'t', '{}', backoff_seconds => '{1,NULL}'": r"backoff_seconds: expected delays of .*; got \{1,NULL\}",
    "'t', '{}', backoff_seconds => '{-1}'": r"backoff_seconds: .*; got \{-1\}",
    "'t', '{}', payload_version => NULL": "payload_version: expected a whole number from 1; got null",
    "'t', '{}', payload_version => 0": "payload_version: expected a whole number from 1; got 0",
}


async def test_impossible_values_are_refused_by_name_and_without_the_row(connection: asyncpg.Connection) -> None:
    for arguments, message in REFUSED.items():
        with pytest.raises(asyncpg.InvalidParameterValueError, match=f"^pqrun.enqueue: {message}$") as caught:
            await enqueue(connection, arguments)
        assert caught.value.detail is None
    with pytest.raises(asyncpg.InvalidTextRepresentationError):
        await enqueue(connection, "'t', 'x'")
    assert await connection.fetchval("SELECT count(*) FROM pqrun.jobs") == 0


async def test_the_callers_search_path_does_not_matter(connection: asyncpg.Connection) -> None:
    await connection.execute("""
        CREATE SCHEMA hostile;
        CREATE TABLE hostile.jobs_active (id bigint, job_type text, dedupe_key text);
        CREATE FUNCTION hostile.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$ SELECT 'infinity'::timestamptz $$;
        SET search_path = hostile, pg_catalog;
    """)
    assert (await enqueue(connection, "'t', '{}', dedupe_key => 'k'"))[1]
    assert not (await enqueue(connection, "'t', '{}', dedupe_key => 'k'"))[1]
    assert await connection.fetchval("SELECT count(*) FROM hostile.jobs_active") == 0


async def test_a_trigger_of_the_users_may_enqueue(dsn: str, connection: asyncpg.Connection) -> None:
    await connection.execute("""
        CREATE TABLE orders (id integer);
        CREATE FUNCTION note_order() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            PERFORM pqrun.enqueue('ship', jsonb_build_object('order', new.id), dedupe_key => 'ship:' || new.id);
            RETURN new;
        END $$;
        CREATE TRIGGER note_order AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION note_order();
    """)
    async with hearing(dsn) as heard:
        await connection.execute("INSERT INTO orders VALUES (1), (2), (1)")
        assert await heard.until_now() == ["ready:0:default"]
    rows = await connection.fetch("SELECT payload, dedupe_key FROM pqrun.jobs ORDER BY id")
    assert [tuple(row) for row in rows] == [('{"order": 1}', "ship:1"), ('{"order": 2}', "ship:2")]


async def test_concurrent_calls_with_one_key_agree(dsn: str, connection: asyncpg.Connection) -> None:
    async with connected(dsn) as second:
        async with holding(dsn, "SELECT pqrun.enqueue('t', '{}', dedupe_key => 'k')"):
            task = asyncio.create_task(enqueue(second, "'t', '{}', dedupe_key => 'k'"))
            await wait_until_waiting(connection)
        job_id = await connection.fetchval("SELECT id FROM pqrun.jobs")
        assert await task == (job_id, False)


async def test_a_conflict_that_a_snapshot_cannot_see_raises_and_does_not_spin(
    dsn: str, connection: asyncpg.Connection, store: PgJobStore
) -> None:
    transaction = connection.transaction(isolation="repeatable_read")
    await transaction.start()
    await connection.fetchval("SELECT 1 FROM pqrun.jobs")
    await store.enqueue("t", {}, dedupe_key="k")
    with pytest.raises(asyncpg.SerializationError):
        await enqueue(connection, "'t', '{}', dedupe_key => 'k'")
    await transaction.rollback()


async def test_a_rollback_leaves_no_job(dsn: str, connection: asyncpg.Connection) -> None:
    async with hearing(dsn) as heard:
        transaction = connection.transaction()
        await transaction.start()
        await enqueue(connection, "'t', '{}'")
        await transaction.rollback()
        assert await heard.until_now() == []
    assert await connection.fetchval("SELECT count(*) FROM pqrun.jobs") == 0


async def test_a_plan_made_while_the_table_was_small_does_not_scan_it_when_it_has_grown(
    connection: asyncpg.Connection,
) -> None:
    await connection.execute("VACUUM ANALYZE pqrun.jobs_active")
    for _ in range(10):  # after five a session may keep its plan
        await enqueue(connection, "'t', '{}', dedupe_key => 'k'")
    await connection.execute("INSERT INTO pqrun.jobs (job_type) SELECT 't' FROM generate_series(1, 5000)")
    async with connection.transaction():
        await enqueue(connection, "'t', '{}', dedupe_key => 'k'")
        query = "SELECT seq_scan FROM pg_stat_xact_user_tables WHERE relid = 'pqrun.jobs_active'::regclass"
        assert await connection.fetchval(query) == 0
