"""Masses of jobs without keys go by COPY: what they hold comes back equal, all of it or nothing is written, and no error shows a row."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pqrun import App, BackoffPolicy, JobContext
from pqrun.errors import StoreError
from pqrun.job.options import check_job_type, check_queue
from pqrun.job.record import Enqueued, NewJob
from pqrun.job.state import Status
from pqrun.job.storable import dump_object
from pqrun.store import PgJobStore, enqueueing
from pqrun.store.claiming import Claimer, Lane
from pqrun.store.link import KeptLink, Session
from pqrun.store.statements import Statements, quote_identifier
from tests.store.chains import said_by
from tests.store.listening import hearing
from tests.support.database import Databases, connected, run
from tests.support.rows import make_worker

MANY = enqueueing.COPY_LEAST


def jobs(count: int = MANY, **options: Any) -> list[NewJob]:
    return [NewJob(job_type="t", payload=f'{{"n": {n}}}', **options) for n in range(count)]


async def count(connection: asyncpg.Connection) -> int:
    return int(await connection.fetchval("SELECT count(*) FROM pqrun.jobs"))


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many jobs went by COPY, each time."""
    sizes: list[int] = []
    copy_to_table = asyncpg.Connection.copy_to_table

    async def counted(self: asyncpg.Connection, table: str, **options: Any) -> str:
        tag = str(await copy_to_table(self, table, **options))
        sizes.append(int(tag.removeprefix("COPY ")))
        return tag

    monkeypatch.setattr(asyncpg.Connection, "copy_to_table", counted)
    return sizes


# What they hold.

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")) | st.sampled_from(
    ["\\", "\\\\n", "\\N", "\\.", "\t", "\n", "\r\n", '"', "'", "\u2028\u2029", "😀", "\\u0041", "\x01\x7f", "}\t{", ""]
)
NUMBERS = st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
NAMES = st.builds(
    "".join,
    st.lists(st.sampled_from([*"\\\t\n\r\b\f\v'\"N.x😀\u2028\x01\x7f", "\\N", "\\.", "\\t"]), min_size=1, max_size=12),
)
DELAYS = st.none() | st.lists(st.floats(0, 31_536_000), max_size=3).map(tuple)
JOBS = st.builds(
    NewJob,
    job_type=NAMES.map(check_job_type),
    payload=st.dictionaries(TEXT, VALUES, max_size=4).map(lambda value: dump_object(value, "payload")),
    queue=NAMES.map(check_queue),
    priority=st.integers(-32768, 32767),
    max_attempts=st.integers(1, 2**31 - 1),
    timeout_seconds=st.none() | st.floats(1e-9, 3e8),
    backoff_seconds=DELAYS,
    payload_version=st.integers(1, 2**31 - 1),
)


class Copying(NamedTuple):
    """Where COPY is tried, from outside of any event loop."""

    runner: asyncio.Runner
    session: Session

    def written(self, some: Sequence[NewJob]) -> list[asyncpg.Record]:
        """Write jobs and return their rows in order."""

        async def write() -> list[asyncpg.Record]:
            ids = [one.id for one in await enqueueing.copy_jobs(self.session, "pqrun", some)]
            query = "SELECT * FROM pqrun.jobs WHERE id = ANY ($1) ORDER BY place"
            rows = await self.session.connection.fetch(query, ids)
            assert [row["id"] for row in rows] == ids
            return rows

        return self.runner.run(write())


def is_same(stored: object, given: object) -> bool:
    """Whether JSON is equal; a float may come back as the whole number that it is rounded from."""
    if isinstance(given, dict) and isinstance(stored, dict):
        return given.keys() == stored.keys() and all(is_same(stored[key], value) for key, value in given.items())
    if isinstance(given, list) and isinstance(stored, list):
        return len(given) == len(stored) and all(map(is_same, stored, given))
    if isinstance(given, float) and isinstance(stored, int | float):
        return float(stored) == given
    return type(stored) is type(given) and stored == given


def assert_equal(stored: asyncpg.Record, job: NewJob) -> None:
    """What a row says is what the job said."""
    names = ("job_type", "queue", "priority", "max_attempts", "timeout_seconds", "payload_version")
    assert [stored[name] for name in names] == [getattr(job, name) for name in names]
    delays = job.backoff_seconds
    assert stored["backoff_seconds"] == (None if delays is None else list(delays))
    assert is_same(json.loads(stored["payload"]), json.loads(job.payload))


@pytest.fixture(scope="module")
def copying(databases: Databases) -> Iterator[Copying]:
    """A session on a database for all examples of a property."""
    dsn = run(databases.clone())
    with asyncio.Runner() as runner:
        connection = runner.run(asyncpg.connect(dsn))
        yield Copying(runner, Session(connection, Statements("pqrun")))
        runner.run(connection.close())
    run(databases.drop(dsn))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(JOBS, min_size=1, max_size=8))
def test_whatever_can_be_deferred_comes_back_equal(copying: Copying, given_jobs: list[NewJob]) -> None:
    rows = copying.written(given_jobs)
    assert len(rows) == len(given_jobs)
    for row, job in zip(rows, given_jobs, strict=True):
        assert_equal(row, job)


async def test_by_copy_and_by_insert_the_same_rows_come_about(
    store: PgJobStore, connection: asyncpg.Connection, copied: list[int]
) -> None:
    options: dict[str, Any] = {
        "queue": "q\t\\",
        "priority": -7,
        "max_attempts": 3,
        "timeout_seconds": 0.1,
        "backoff_seconds": (0.1, 1e-7, 31_536_000.0),
        "payload_version": 7,
    }
    before = await connection.fetchval("SELECT clock_timestamp()")
    await store.enqueue_jobs(jobs(**options))
    await store.enqueue_jobs(jobs(MANY - 1, **options))
    await store.enqueue_jobs(jobs(1, **options))
    assert copied == [MANY]
    plain = "to_jsonb(j) - ARRAY['id', 'place', 'payload', 'run_after', 'created_at', 'updated_at']"
    rows = await connection.fetch(f"SELECT DISTINCT {plain} AS row FROM pqrun.jobs j")
    assert len(rows) == 1
    times = await connection.fetchrow(
        "SELECT min(least(run_after, created_at, updated_at)), max(greatest(run_after, created_at, updated_at)) FROM pqrun.jobs"
    )
    assert times is not None
    assert before <= times[0]
    assert times[1] <= await connection.fetchval("SELECT clock_timestamp()")


# Order.


async def test_ids_places_and_claims_are_in_the_order_given(
    store: PgJobStore, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch, copied: list[int]
) -> None:
    monkeypatch.setattr(enqueueing, "COPY_ROWS", 90)
    monkeypatch.setattr(enqueueing, "COPY_PIECE", 7)
    await store.enqueue("t", {"n": -1})
    written = await store.enqueue_jobs(jobs())
    assert copied == [90, 90, MANY - 180]
    ids = [one.id for one in written]
    assert ids == sorted(set(ids))
    assert all(one.created for one in written)
    rows = await connection.fetch("SELECT id, (payload->>'n')::int AS n FROM pqrun.jobs ORDER BY place")
    assert [row["n"] for row in rows] == list(range(-1, MANY))
    assert [row["id"] for row in rows][1:] == ids
    link = store.open_link("claim", kept=True)
    claimer = Claimer(link, worker=await make_worker(connection), worker_id="w")
    batch = await claimer.claim([(Lane("default", 0), 0)], ["t"], ["t"], [], limit=9, look=9, free=9)
    assert [job.payload["n"] for job in batch.jobs] == list(range(-1, 8))
    await link.close()


# What does not go by COPY.


@pytest.mark.parametrize(
    "odd",
    [{"dedupe_key": "k"}, {"delay_seconds": 60.0}, {"run_after": datetime(2999, 1, 1, tzinfo=UTC)}],
    ids=["keyed", "delayed", "due_later"],
)
async def test_one_that_copy_cannot_write_sends_all_another_way(
    store: PgJobStore, connection: asyncpg.Connection, copied: list[int], odd: dict[str, Any]
) -> None:
    first = await store.enqueue_jobs(jobs(1, **odd))
    written = await store.enqueue_jobs([*jobs(MANY), *jobs(1, **odd)])
    assert copied == []
    is_keyed = "dedupe_key" in odd
    assert written[-1].created is not is_keyed
    assert (written[-1] == Enqueued(first[0].id, created=False)) is is_keyed
    assert await count(connection) == MANY + (1 if is_keyed else 2)
    last = await store.get(written[-1].id)
    assert last is not None
    assert last.status is (Status.READY if is_keyed else Status.SCHEDULED)


async def test_fewer_than_copy_is_worth_go_another_way(store: PgJobStore, copied: list[int]) -> None:
    written = [await store.enqueue_jobs(jobs(size)) for size in (MANY - 1, MANY, MANY + 1)]
    assert [len(some) for some in written] == [MANY - 1, MANY, MANY + 1]
    assert copied == [MANY, MANY + 1]


class Slowly(BackoffPolicy):
    def retry_delay(self, attempts: int) -> timedelta:
        return timedelta(seconds=attempts)


async def test_a_mix_of_tasks_keeps_the_options_of_each_call(
    dsn: str, connection: asyncpg.Connection, copied: list[int]
) -> None:
    app = App(dsn=dsn)

    @app.task(queue="net", max_attempts=3, backoff=Slowly())
    async def ping(ctx: JobContext[Any], host: str) -> None: ...

    @app.task
    async def add(ctx: JobContext[Any], a: int) -> None: ...

    calls = [call for n in range(MANY) for call in (ping.call(f"h\\{n}"), add.options(priority=n, timeout=2.5).call(n))]
    async with app:
        handles = await app.defer_many(calls)
        (alone,) = await app.defer_many([ping.call("h")])
        last_ping, last_add = await handles[-2].job(), await handles[-1].job()
        by_insert = await alone.job()
    assert copied == [2 * MANY]
    assert [handle.id for handle in handles] == sorted(handle.id for handle in handles)
    assert all(handle.created for handle in handles)
    assert (last_ping.queue, last_ping.max_attempts, last_ping.payload) == ("net", 3, {"host": f"h\\{MANY - 1}"})
    assert last_ping.backoff_seconds == by_insert.backoff_seconds
    assert (last_add.priority, last_add.timeout_seconds, last_add.payload) == (MANY - 1, 2.5, {"a": MANY - 1})


# In the caller's transaction.


class OwnRecord(asyncpg.Record):
    """What a user may set."""


@pytest.fixture(params=["foreign", "lent", "pool"])
async def caller(request: pytest.FixtureRequest, dsn: str) -> AsyncIterator[Any]:
    """A connection of a user's own making, one that the store lends, and one of a user's pool."""
    kind = request.param
    if kind == "lent":
        async with PgJobStore(dsn) as other, other.connection() as connection:
            yield connection
        return
    options: dict[str, Any] = {"record_class": OwnRecord, "server_settings": {"search_path": "elsewhere"}}
    if kind == "pool":
        async with (
            asyncpg.create_pool(dsn, min_size=0, init=set_codecs, **options) as pool,
            pool.acquire() as connection,
        ):
            yield connection
        return
    connection = await asyncpg.connect(dsn, **options)
    await set_codecs(connection)
    yield connection
    await connection.close()


async def set_codecs(connection: asyncpg.Connection) -> None:
    await connection.execute("""
        CREATE SCHEMA IF NOT EXISTS elsewhere;
        CREATE TABLE IF NOT EXISTS elsewhere.jobs_active (id integer);
    """)
    for name in ("json", "jsonb"):
        await connection.set_type_codec(name, schema="pg_catalog", encoder=json.dumps, decoder=json.loads)
    await connection.set_type_codec("text", schema="pg_catalog", encoder=repr, decoder=str)
    await connection.set_type_codec("int8", schema="pg_catalog", encoder=str, decoder=int)


async def test_in_the_callers_transaction_they_are_there_and_announced_with_its_commit_each_lane_once(
    dsn: str, store: PgJobStore, connection: asyncpg.Connection, caller: asyncpg.Connection, copied: list[int]
) -> None:
    mix = [job for pair in zip(jobs(), jobs(queue="b:c", priority=3), strict=True) for job in pair]
    async with hearing(dsn) as heard:
        async with caller.transaction():
            written = await store.enqueue_jobs(mix, connection=caller)
            assert await caller.fetchval("SELECT count(*) FROM pqrun.jobs") == 2 * MANY
            assert await count(connection) == 0
            assert await heard.until_now() == []
        assert sorted(await heard.until_now()) == ["ready:0:default", "ready:3:b:c"]
    assert copied == [2 * MANY]
    rows = await connection.fetch("SELECT id, payload, queue FROM pqrun.jobs ORDER BY id")
    assert [row["id"] for row in rows] == [one.id for one in written]
    assert [(row["payload"], row["queue"]) for row in rows] == [(job.payload, job.queue) for job in mix]


async def test_a_rollback_takes_them_and_their_announcement_with_it(
    dsn: str, store: PgJobStore, connection: asyncpg.Connection, caller: asyncpg.Connection, copied: list[int]
) -> None:
    async with hearing(dsn) as heard:
        transaction = caller.transaction()
        await transaction.start()
        await store.enqueue_jobs(jobs(), connection=caller)
        await transaction.rollback()
        assert await heard.until_now() == []
    assert copied == [MANY]
    assert await count(connection) == 0


async def test_in_a_transaction_of_our_own_each_lane_is_announced_once(dsn: str, store: PgJobStore) -> None:
    async with hearing(dsn) as heard:
        await store.enqueue_jobs([*jobs(MANY), *jobs(MANY, queue="other")])
        assert sorted(await heard.until_now()) == ["ready:0:default", "ready:0:other"]


# What is refused.

SECRET = "very-secret-payload"


@pytest.mark.parametrize("kind", ["own", "caller"])
async def test_a_row_that_is_refused_fails_all_and_is_not_shown(
    store: PgJobStore,
    connection: asyncpg.Connection,
    caplog: pytest.LogCaptureFixture,
    kind: str,
) -> None:
    await connection.execute("ALTER TABLE pqrun.jobs_active ADD CONSTRAINT not_bad CHECK (payload->>'bad' IS NULL)")
    some: Sequence[NewJob] = [*jobs(), NewJob(job_type="t", payload=f'{{"bad": "{SECRET}"}}'), *jobs()]
    caplog.set_level(logging.DEBUG)
    with pytest.raises(StoreError) as caught:  # noqa: PT012  # the error is the caller's, inside the transaction
        if kind == "own":
            await store.enqueue_jobs(some)
        else:
            async with store.transaction() as caller:
                await store.enqueue_jobs(some, connection=caller)
    assert type(caught.value) is StoreError
    assert caught.value.sqlstate == "23514"
    assert "not_bad" in str(caught.value)
    assert SECRET not in said_by(caught.value)
    assert SECRET not in caplog.text
    assert await count(connection) == 0
    await store.enqueue_jobs(jobs())
    assert await count(connection) == MANY


async def test_json_that_the_database_cannot_read_is_not_shown_either(
    store: PgJobStore, connection: asyncpg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """The driver's message of such a line quotes it, and PostgreSQL's own says what is wrong with it."""
    caplog.set_level(logging.DEBUG)
    with pytest.raises(StoreError) as caught:
        await store.enqueue_jobs([*jobs(), NewJob(job_type="t", payload=f'{{"{SECRET}')])
    assert SECRET not in said_by(caught.value)
    assert SECRET not in caplog.text
    assert await count(connection) == 0


async def test_what_a_kept_connection_refuses_in_a_transaction_is_not_shown(link: KeptLink) -> None:
    insert = "INSERT INTO pqrun.jobs_active (job_type, payload) VALUES ('', $1)"
    with pytest.raises(StoreError, match="jobs_active_names") as caught:  # the end of the block raises
        async with link.transaction() as session:
            await session.connection.execute(insert, f'{{"n": "{SECRET}"}}')
    assert SECRET not in said_by(caught.value)


# Where they go.


@pytest.mark.parametrize("schema", ['x"; DROP TABLE jobs; --', "back\\slash\\'", "größe/数据*/ %s {0}"])
async def test_a_schema_of_any_name_takes_them(empty_dsn: str, schema: str, copied: list[int]) -> None:
    async with PgJobStore(empty_dsn, schema=schema) as store, hearing(empty_dsn, schema) as heard:
        await store.migrate()
        written = await store.enqueue_jobs(jobs())
        assert await heard.until_now() == ["ready:0:default"]
        async with connected(empty_dsn) as connection:
            rows = await connection.fetch(f"SELECT id FROM {quote_identifier(schema)}.jobs ORDER BY place")
    assert copied == [MANY]
    assert [row["id"] for row in rows] == [one.id for one in written]


PRODUCER_GRANTS = """
CREATE ROLE {role} LOGIN;
GRANT USAGE ON SCHEMA pqrun TO {role};
GRANT INSERT ON pqrun.jobs_active TO {role};
GRANT USAGE ON SEQUENCE pqrun.jobs_id_seq, pqrun.jobs_place_seq TO {role};
"""


async def test_a_role_that_may_insert_and_nothing_else_writes_them(databases: Databases, copied: list[int]) -> None:
    dsn = await databases.clone()
    parts = urlsplit(dsn)
    role = "producer_" + parts.path[1:]
    async with connected(dsn) as owner:
        await owner.execute(PRODUCER_GRANTS.format(role=role))
        host = parts.netloc.rpartition("@")[2]
        async with PgJobStore(urlunsplit(parts._replace(netloc=f"{role}@{host}"))) as store:
            written = await store.enqueue_jobs(jobs())
            with pytest.raises(StoreError, match="permission denied"):
                await store.get(written[0].id)
        assert await count(owner) == MANY
    assert copied == [MANY]
    await databases.drop(dsn)
    async with connected(databases.admin_dsn) as owner:
        await owner.execute(f"DROP ROLE {role}")
