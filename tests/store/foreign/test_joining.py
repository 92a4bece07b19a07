"""A job joins the transaction of whatever library: with the commit it is there and announced, after a rollback nothing is."""

import asyncio
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from pqrun.errors import ClaimLost, CompletionRefused, ConflictError, DatabaseUnavailableError, SchemaError, StoreError
from pqrun.job.record import Claim, NewJob
from pqrun.job.state import Status
from pqrun.store import PgJobStore, enqueueing
from pqrun.store.work import WorkStore
from tests.store.chains import said_by
from tests.store.listening import hearing
from tests.support.database import connected
from tests.support.doors import KINDS, open_door
from tests.support.rows import make_job
from tests.support.waiting import wait_until

each_kind = pytest.mark.parametrize("kind", KINDS)

OWN_STATEMENT = "INSERT INTO pqrun.workers (worker_id) VALUES ('mine')"
"""Stands for a business row: of the tables that are there."""

SECRET = "payload-nobody-may-see"


def job(payload: str = "{}", **options: Any) -> NewJob:
    return NewJob(job_type="t", payload=payload, **options)


async def counted(connection: asyncpg.Connection) -> tuple[int, int]:
    """Jobs, and business rows, as others see them."""
    row = await connection.fetchrow("SELECT (SELECT count(*) FROM pqrun.jobs), (SELECT count(*) FROM pqrun.workers)")
    assert row is not None
    return row[0], row[1]


@each_kind
async def test_a_commit_makes_the_job_visible_and_announces_it(
    kind: str, store: PgJobStore, dsn: str, connection: asyncpg.Connection
) -> None:
    async with hearing(dsn) as heard, open_door(kind, dsn) as door:
        await door.begin()
        await door.execute(OWN_STATEMENT)
        (enqueued,) = await door.enqueue(store, [job()])
        assert await counted(connection) == (0, 0)
        assert await heard.until_now() == []
        await door.commit()
        assert await heard.wait_for(1) == ["ready:0:default"]
    assert enqueued.created
    assert await counted(connection) == (1, 1)
    stored = await store.get(enqueued.id)
    assert stored is not None
    assert stored.status is Status.READY


@each_kind
async def test_a_rollback_leaves_nothing(
    kind: str, store: PgJobStore, dsn: str, connection: asyncpg.Connection
) -> None:
    async with hearing(dsn) as heard, open_door(kind, dsn) as door:
        await door.begin()
        await door.execute(OWN_STATEMENT)
        await door.enqueue(store, [job()])
        await door.rollback()
        assert await heard.until_now() == []
    assert await counted(connection) == (0, 0)


@each_kind
@pytest.mark.parametrize("count", [1, 3])
async def test_a_job_before_the_first_own_statement_vanishes_on_rollback(
    kind: str, store: PgJobStore, dsn: str, connection: asyncpg.Connection, count: int
) -> None:
    async with open_door(kind, dsn) as door:
        await door.begin()
        await door.enqueue(store, [job()] * count)
        await door.execute(OWN_STATEMENT)
        await door.rollback()
    assert await counted(connection) == (0, 0)


@each_kind
async def test_a_savepoint_takes_its_jobs_along_and_no_others(
    kind: str, store: PgJobStore, dsn: str, connection: asyncpg.Connection
) -> None:
    async with open_door(kind, dsn) as door:
        await door.begin()
        (before,) = await door.enqueue(store, [job('{"n": 1}')])
        inside = 0
        try:
            async with door.savepoint():
                inside = (await door.enqueue(store, [job('{"n": 2}')]))[0].id
                raise ZeroDivisionError
        except ZeroDivisionError:
            pass
        async with door.savepoint():
            (after,) = await door.enqueue(store, [job('{"n": 3}')])
        await door.commit()
    assert await store.get(inside) is None
    assert [row["id"] for row in await connection.fetch("SELECT id FROM pqrun.jobs ORDER BY id")] == [
        before.id,
        after.id,
    ]


@each_kind
async def test_a_duplicate_key_gives_the_active_id_and_leaves_the_transaction_usable(
    kind: str, store: PgJobStore, dsn: str, connection: asyncpg.Connection
) -> None:
    """Card F02, first case."""
    (first,) = await store.enqueue_jobs([job(dedupe_key="k", delay_seconds=3600.0)])
    async with open_door(kind, dsn) as door:
        await door.begin()
        await door.execute(OWN_STATEMENT)
        (again,) = await door.enqueue(store, [job(dedupe_key="k")])
        many = await door.enqueue(store, [job(dedupe_key="k"), job(dedupe_key="other"), job(dedupe_key="other")])
        await door.execute(OWN_STATEMENT)
        await door.commit()
    assert (again.id, again.created) == (first.id, False)
    assert [one.created for one in many] == [False, True, False]
    assert [one.id for one in many] == [first.id, many[1].id, many[1].id]
    assert await counted(connection) == (2, 2)


@each_kind
async def test_a_key_that_a_running_job_holds_gives_its_id_and_does_not_touch_it(
    kind: str, store: PgJobStore, dsn: str, connection: asyncpg.Connection
) -> None:
    """Card F03."""
    running = await make_job(connection, status=Status.RUNNING, dedupe_key="report:1", payload='{"rev": 1}')
    async with open_door(kind, dsn) as door:
        for _ in range(3):
            await door.begin()
            (found,) = await door.enqueue(store, [job('{"rev": 2}', dedupe_key="report:1")])
            await door.commit()
            assert (found.id, found.created) == (running, False)
    stored = await store.get(running)
    assert stored is not None
    assert (stored.payload, stored.attempts, stored.status) == ({"rev": 1}, 1, Status.RUNNING)
    assert await counted(connection) == (1, 0)


AWKWARD = [
    "it's",
    'a "quote"',
    "back\\slash \\\\ \\' \\N",
    "100 % %s %(p1)s %%",
    ":name :p1 a::b \\:c",
    "$1 $2::text $$",
    '{a,b} {"x"} NULL {}',
    "größe 数据 😀 \u2028",
    "tab\tnewline\r\n-- no comment /* nor this */",
    "? ?? {0}",
]


@each_kind
@pytest.mark.parametrize("is_many", [False, True])
async def test_everything_that_a_job_holds_arrives_as_it_is(
    kind: str, store: PgJobStore, dsn: str, is_many: bool
) -> None:
    due = datetime(2031, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
    sent = [
        NewJob(
            job_type=f"t {text.strip()}".replace("\r\n", " ").replace("\t", " "),
            payload=json.dumps({text: [text, 1.5, None, True]}, ensure_ascii=False),
            queue=f"q{number}'%s:q\\",
            priority=-32768 + number,
            max_attempts=2**31 - 1,
            timeout_seconds=1e-9 if number % 2 else None,
            dedupe_key=text.encode("unicode_escape").decode() if number % 3 else None,
            run_after=due if number % 2 else None,
            delay_seconds=None if number % 2 else 3600.25,
            backoff_seconds=(0.5, 1e6) if number % 2 else None,
        )
        for number, text in enumerate(AWKWARD)
    ]
    async with open_door(kind, dsn) as door:
        await door.begin()
        enqueued = (
            await door.enqueue(store, sent) if is_many else [(await door.enqueue(store, [one]))[0] for one in sent]
        )
        await door.commit()
    for one, written in zip(sent, enqueued, strict=True):
        stored = await store.get(written.id)
        assert stored is not None
        assert written.created
        assert stored.payload == json.loads(one.payload)
        assert (stored.job_type, stored.queue, stored.priority) == (one.job_type, one.queue, one.priority)
        assert (stored.max_attempts, stored.timeout_seconds) == (one.max_attempts, one.timeout_seconds)
        assert (stored.dedupe_key, stored.backoff_seconds) == (one.dedupe_key, one.backoff_seconds)
        assert stored.status is Status.SCHEDULED
        if one.run_after is not None:
            assert stored.run_after == due
        else:
            assert timedelta(minutes=59) < stored.run_after - stored.created_at <= timedelta(seconds=3600.5)


@each_kind
async def test_ids_beyond_32_bits_come_back_whole(
    kind: str, store: PgJobStore, dsn: str, connection: asyncpg.Connection
) -> None:
    await connection.execute("SELECT setval('pqrun.jobs_id_seq', (2^40)::bigint)")
    async with open_door(kind, dsn) as door:
        await door.begin()
        (one,) = await door.enqueue(store, [job(dedupe_key="k")])
        (again,) = await door.enqueue(store, [job(dedupe_key="k")])
        two = await door.enqueue(store, [job(), job()])
        await door.commit()
    assert one.id == again.id == 2**40 + 1
    assert min(written.id for written in two) > 2**40
    assert all(type(written.id) is int for written in [one, again, *two])


@each_kind
async def test_a_mass_of_jobs_goes_in_bounded_pieces_and_in_order(
    kind: str, store: PgJobStore, dsn: str, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enqueueing, "BATCH_ROWS", 40)
    async with open_door(kind, dsn) as door:
        await door.begin()
        enqueued = await door.enqueue(store, [job(f'{{"n": {n}}}', dedupe_key=f"k{n % 90}") for n in range(100)])
        assert await counted(connection) == (0, 0)
        await door.commit()
    assert [one.created for one in enqueued] == [True] * 90 + [False] * 10
    assert [one.id for one in enqueued[90:]] == [one.id for one in enqueued[:10]]
    rows = await connection.fetch("SELECT id, (payload->>'n')::int AS n FROM pqrun.jobs ORDER BY id")
    assert [(row["id"], row["n"]) for row in rows] == [(one.id, n) for n, one in enumerate(enqueued[:90])]


@pytest.mark.parametrize("characters", [0, 250])
async def test_a_statement_is_bounded_in_characters_too(
    store: PgJobStore, dsn: str, monkeypatch: pytest.MonkeyPatch, characters: int
) -> None:
    monkeypatch.setattr(enqueueing, "BATCH_CHARACTERS", characters)
    payloads = [f'{{"a": "{"x" * 100}"}}'] * 7
    sizes = [len(batch) for batch in enqueueing._batches([job(payload) for payload in payloads])]
    assert sizes == ([1] * 7 if characters == 0 else [3, 3, 1])
    async with open_door("AsyncSession-asyncpg", dsn) as door:
        assert len(await door.enqueue(store, [job(payload) for payload in payloads])) == 7
        await door.commit()


@each_kind
async def test_with_autocommit_a_job_is_visible_at_once(
    kind: str, store: PgJobStore, dsn: str, connection: asyncpg.Connection
) -> None:
    async with hearing(dsn) as heard, open_door(kind, dsn, autocommit=True) as door:
        await door.enqueue(store, [job()])
        assert await heard.wait_for(1) == ["ready:0:default"]
        assert await counted(connection) == (1, 0)


@each_kind
async def test_with_autocommit_a_batch_is_written_as_a_whole_or_not_at_all(
    kind: str, store: PgJobStore, dsn: str, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enqueueing, "BATCH_ROWS", 2)
    async with open_door(kind, dsn, autocommit=True) as door:
        assert len(await door.enqueue(store, [job()] * 5)) == 5
        assert await counted(connection) == (5, 0)
        with pytest.raises(StoreError):
            await door.enqueue(store, [job(), job(), job(), job(f'["{SECRET}"]')])
        assert await counted(connection) == (5, 0)
        assert len(await door.enqueue(store, [job()] * 3)) == 3  # the connection is as usable as before
        assert await counted(connection) == (8, 0)


@each_kind
async def test_what_the_database_refuses_is_told_without_any_payload(kind: str, store: PgJobStore, dsn: str) -> None:
    async with open_door(kind, dsn) as door:
        await door.begin()
        with pytest.raises(StoreError) as caught:
            await door.enqueue(store, [job(f'["{SECRET}"]', dedupe_key=SECRET)])
        assert caught.value.sqlstate == "23514"
        assert "jobs_active" in str(caught.value)
        assert caught.value.__cause__ is None
        assert caught.value.__context__ is None
        assert SECRET not in said_by(caught.value)
        with pytest.raises(StoreError, match=r"25P02|could not be run") as after:
            await door.enqueue(store, [job(f'{{"a": "{SECRET}"}}')])
        assert SECRET not in said_by(after.value)
        await door.rollback()


@each_kind
async def test_a_missing_schema_names_the_command_that_makes_it(kind: str, dsn: str) -> None:
    async with open_door(kind, dsn) as door:
        await door.begin()
        with pytest.raises(SchemaError, match="pqrun migrate --schema elsewhere"):
            await door.enqueue(PgJobStore(dsn, schema="elsewhere"), [job()])
        await door.rollback()


@each_kind
async def test_under_repeatable_read_a_conflict_says_that_the_transaction_must_be_repeated(
    kind: str, store: PgJobStore, dsn: str
) -> None:
    async with open_door(kind, dsn) as door:
        await door.begin()
        await door.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        await door.execute("SELECT count(*) FROM pqrun.jobs")  # takes the snapshot
        await store.enqueue_jobs([job(dedupe_key="k")])
        with pytest.raises(ConflictError) as caught:
            await door.enqueue(store, [job(dedupe_key="k")])
        assert caught.value.sqlstate == "40001"
        await door.rollback()


@each_kind
async def test_a_connection_that_the_server_has_ended_is_unavailable(
    kind: str, store: PgJobStore, dsn: str, connection: asyncpg.Connection
) -> None:
    async with open_door(kind, dsn) as door:
        await door.begin()
        await door.execute(OWN_STATEMENT)
        await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'"
        )
        with pytest.raises(DatabaseUnavailableError) as caught:
            await door.enqueue(store, [job(f'{{"a": "{SECRET}"}}')])
        assert caught.value.__context__ is None
        assert SECRET not in said_by(caught.value)
    assert await counted(connection) == (0, 0)


@each_kind
async def test_it_works_in_a_schema_of_any_name(kind: str, empty_dsn: str) -> None:
    name = 'my "odd" schema:x% --\\\':p1'
    async with PgJobStore(empty_dsn, schema=name) as store, open_door(kind, empty_dsn) as door:
        await store.migrate()
        async with hearing(empty_dsn, name) as heard:
            await door.begin()
            (one,) = await door.enqueue(store, [job(dedupe_key="k")])
            many = await door.enqueue(store, [job(dedupe_key="k"), job()])
            await door.commit()
            assert await heard.wait_for(1)
        assert [written.created for written in [one, *many]] == [True, False, True]
        assert many[0].id == one.id
        assert await store.get(many[1].id) is not None


# Completing.


async def claimed(connection: asyncpg.Connection, **columns: Any) -> Claim:
    job_id = await make_job(connection, status=Status.RUNNING, **columns)
    return Claim(job_id, await connection.fetchval("SELECT claim_id FROM pqrun.jobs WHERE id = $1", job_id))


async def status(store: PgJobStore, claim: Claim) -> Status | None:
    found = await store.get(claim.job_id)
    return None if found is None else found.status


@each_kind
async def test_a_completion_commits_or_vanishes_with_its_transaction(
    kind: str, store: PgJobStore, dsn: str, connection: asyncpg.Connection
) -> None:
    claim = await claimed(connection)
    work = WorkStore(store, worker_id="w", is_awaited=lambda _: True)
    async with hearing(dsn, "pqrun:done") as heard, open_door(kind, dsn) as door:
        await door.begin()
        await door.complete(work, claim, '{"a": "of the transaction that is rolled back"}')
        await door.rollback()
        assert await status(store, claim) is Status.RUNNING
        await door.begin()
        await door.complete(work, claim, json.dumps({"a": AWKWARD}))
        await door.execute(OWN_STATEMENT)
        assert await status(store, claim) is Status.RUNNING
        await door.commit()
        assert await heard.wait_for(1) == [str(claim.job_id)]
    stored = await store.get(claim.job_id)
    assert stored is not None
    assert (stored.status, stored.result, stored.duration_ms) == (Status.DONE, {"a": AWKWARD}, 1)


@each_kind
async def test_a_completion_of_a_lost_claim_or_after_a_cancel_request_is_refused(
    kind: str, store: PgJobStore, dsn: str, connection: asyncpg.Connection
) -> None:
    cancelled = await claimed(connection, cancel_requested_at=datetime.now(UTC))
    lost = Claim(cancelled.job_id, cancelled.claim_id + 1)
    work = WorkStore(store, worker_id="w")
    async with open_door(kind, dsn) as door:
        await door.begin()
        with pytest.raises(ClaimLost):
            await door.complete(work, lost, None)
        with pytest.raises(CompletionRefused):
            await door.complete(work, cancelled, None)
        await door.rollback()
    assert await status(store, cancelled) is Status.RUNNING


@each_kind
async def test_a_completion_that_the_database_refuses_shows_no_result(
    kind: str, store: PgJobStore, dsn: str, connection: asyncpg.Connection
) -> None:
    claim = await claimed(connection)
    async with open_door(kind, dsn) as door:
        await door.begin()
        with pytest.raises(StoreError) as caught:
            await door.complete(WorkStore(store, worker_id="w"), claim, f'"{SECRET}')  # no JSON
        assert SECRET not in said_by(caught.value)
        await door.rollback()


# What is of one kind only.


async def test_codecs_search_path_and_records_of_the_users_do_not_matter(store: PgJobStore, dsn: str) -> None:
    class Shouting(asyncpg.Record):
        def __getattr__(self, name: str) -> object:
            return self[name]

    def refuse(value: object) -> str:
        raise AssertionError(f"a codec of the user's met {type(value).__name__}")

    async with connected(dsn) as own:
        connection = await asyncpg.connect(dsn, record_class=Shouting, server_settings={"search_path": "pg_temp"})
        try:
            for name in ("json", "jsonb", "timestamptz", "timestamp", "interval", "numeric", "uuid"):
                await connection.set_type_codec(name, schema="pg_catalog", encoder=refuse, decoder=refuse)
            await connection.execute("CREATE TEMPORARY TABLE jobs_active (wrong int)")
            async with connection.transaction():
                due = datetime(2031, 1, 1, tzinfo=UTC)
                jobs: Sequence[NewJob] = [job('{"a": 1}', run_after=due, dedupe_key="k"), job(delay_seconds=1.0)]
                (one,) = await store.enqueue_jobs(jobs[:1], connection=connection)
                many = await store.enqueue_jobs(jobs, connection=connection)
                copied = await store.enqueue_jobs([job()] * 300, connection=connection)
                claim = await claimed(own)
                await WorkStore(store, worker_id="w").complete(claim, '{"b": 2}', connection, duration_ms=1)
        finally:
            await connection.close()
    assert [one.created, *(written.created for written in many)] == [True, False, True]
    assert len({written.id for written in copied}) == 300
    stored = await store.get(one.id)
    assert stored is not None
    assert (stored.payload, stored.run_after) == ({"a": 1}, due)
    assert await status(store, claim) is Status.DONE


async def test_a_cancelled_batch_on_a_foreign_connection_leaves_nothing(
    store: PgJobStore, dsn: str, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enqueueing, "BATCH_ROWS", 1)
    async with connection.transaction():
        # Holds the key, so that the batch waits in its second statement.
        await store.enqueue_jobs([job(dedupe_key="held")], connection=connection)
        async with open_door("AsyncSession-asyncpg", dsn, autocommit=True) as door, connected(dsn) as watching:
            batch = asyncio.create_task(door.enqueue(store, [job(), job(dedupe_key="held")]))
            waiting = (
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
            await wait_until(lambda: watching.fetchval(waiting))
            batch.cancel()
            with pytest.raises(asyncio.CancelledError):
                await batch
    assert await counted(connection) == (1, 0)
