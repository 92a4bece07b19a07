"""PgJobStore as a whole: opened and closed, bound to its loop and process, on a pool of its own or a foreign one."""

import asyncio
import contextlib
import gc
import os
import warnings
from collections.abc import Iterator
from typing import Any, cast

import asyncpg
import pytest

from pqrun.errors import (
    ArgumentsError,
    ConfigurationError,
    DatabaseUnavailableError,
    NotOpenError,
    OptionError,
    WrongLoopError,
)
from pqrun.job.outcome import Done, Retrying
from pqrun.job.record import Claim
from pqrun.job.state import Status
from pqrun.store import PgJobStore
from pqrun.store.claiming import Claimer, Lane
from pqrun.store.ports import Connection
from pqrun.store.settling import settle
from tests.support.database import Databases, run
from tests.support.rows import make_worker
from tests.support.waiting import DEADLINE_SECONDS, wait_until


async def sessions(connection: asyncpg.Connection) -> int:
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    return int(await connection.fetchval(query))


# Open and closed.


async def test_a_second_start_and_a_second_close_do_nothing(dsn: str, connection: asyncpg.Connection) -> None:
    store = PgJobStore(dsn)
    assert not store.is_open
    await store.start()
    job_id = await store.enqueue("t", {})
    await store.start()
    assert await store.get(job_id) is not None
    assert await sessions(connection) == 2  # of the pool, and for what is deferred
    await store.close()
    await store.close()
    assert not store.is_open
    async with store:
        assert await store.get(job_id) is not None


async def test_two_that_start_at_once_open_one_pool(dsn: str, connection: asyncpg.Connection) -> None:
    store = PgJobStore(dsn)
    await asyncio.gather(*(store.start() for _ in range(5)))
    await asyncio.gather(*(store.get(1) for _ in range(30)))
    assert await sessions(connection) <= 10
    await store.close()


async def test_before_start_every_call_shows_the_ways_to_open(dsn: str) -> None:
    store = PgJobStore(dsn)
    for call in (
        store.enqueue("t", {}),
        store.get(1),
        store.cancel(1),
        store.retry(1),
        store.wait_end(1),
        store.check_schema(),
        store.run("get", 1),
    ):
        with pytest.raises(NotOpenError) as caught:
            await call
        assert "async with jobs:" in str(caught.value)
        assert "await store.start()" in str(caught.value)
        assert "lifespan=jobs.lifespan" in str(caught.value)
    for lent in (store.connection(), store.transaction()):
        with pytest.raises(NotOpenError):
            async with lent:
                raise AssertionError


async def test_after_close_it_is_not_open(dsn: str) -> None:
    store = PgJobStore(dsn)
    async with store:
        await store.enqueue("t", {})
    with pytest.raises(NotOpenError):
        await store.enqueue("t", {})


async def test_a_start_that_fails_leaves_nothing_open(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[bool] = []

    class Server:
        dsn = "postgresql://app@127.0.0.1:1/db"

        def close(self) -> None:
            closed.append(True)

    async def start(path: str) -> Server:
        return Server()

    monkeypatch.setattr("pqrun.embedded.start_server_async", start)
    store = PgJobStore(f"embedded:{tmp_path}")
    with pytest.raises(DatabaseUnavailableError):
        await store.start()
    assert (store.is_open, closed) == (False, [True])
    assert repr(store) == f"PgJobStore(embedded:{tmp_path}, schema='pqrun')"


async def test_close_does_not_wait_for_a_lent_connection_for_ever(dsn: str, connection: asyncpg.Connection) -> None:
    store = PgJobStore(dsn)
    await store.start()
    is_lent = asyncio.Event()

    async def keep() -> None:
        async with store.connection():
            is_lent.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(keep())
    await is_lent.wait()
    async with asyncio.timeout(DEADLINE_SECONDS):
        await store.close(timeout=0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    async def is_left_alone() -> bool:
        return await sessions(connection) == 0

    await wait_until(is_left_alone)


# Loops and processes.


@pytest.fixture
def dsn_for_loops(databases: Databases) -> Iterator[str]:
    """A database for tests that run loops of their own, and may leave connections to a loop that is gone."""
    dsn = run(databases.clone())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # of what such a loop left open
        yield dsn
        gc.collect()
    run(databases.drop(dsn))


def test_another_event_loop_is_told_at_once_and_may_open_it_anew(dsn_for_loops: str) -> None:
    store = PgJobStore(dsn_for_loops)

    async def use() -> int:
        return await store.enqueue("t", {})

    run(store.start())
    for call in (use, store.start):
        with pytest.raises(WrongLoopError, match="another event loop: close it"):
            run(call())

    async def reopen() -> int:
        await store.close()
        async with store:
            return await use()

    assert run(reopen()) > 0
    assert run(reopen()) > 0


def test_a_store_that_waited_for_results_in_a_loop_that_is_gone_can_be_closed(dsn_for_loops: str) -> None:
    store = PgJobStore(dsn_for_loops)

    async def wait() -> None:
        await store.start()
        await store.cancel(job_id := await store.enqueue("t", {}))
        await store.wait_end(job_id)

    run(wait())
    run(store.close())
    assert not store.is_open
    run(wait())
    run(store.close())


async def test_a_forked_child_is_told_and_its_parent_undisturbed(store: PgJobStore) -> None:
    job_id = await store.enqueue("t", {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking beside threads, which the child does not touch
        pid = os.fork()
    if pid == 0:  # the child: nothing of pytest may run here
        code = 1
        try:
            run(store.get(job_id))
        except WrongLoopError as error:
            code = 0 if "another process" in str(error) and not store.is_open else 2
        except BaseException:  # noqa: BLE001  # whatever it is, the child must not return into the test
            code = 3
        os._exit(code)
    _, status = await asyncio.to_thread(os.waitpid, pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert await store.get(job_id) is not None


# Transactions.


async def test_a_transaction_commits_or_rolls_back(store: PgJobStore, connection: asyncpg.Connection) -> None:
    await connection.execute("CREATE TABLE business (n integer)")
    async with store.transaction() as caller:
        assert caller.is_in_transaction()
        await caller.execute("INSERT INTO business VALUES (1)")

    async def fail() -> None:
        async with store.transaction() as lent:
            await lent.execute("INSERT INTO business VALUES (2)")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert await connection.fetchval("SELECT array_agg(n) FROM business") == [1]
    async with store.connection() as lent:
        assert not lent.is_in_transaction()


async def test_what_the_callers_own_statement_raises_passes_as_it_is(store: PgJobStore) -> None:
    async def fail() -> None:
        async with store.transaction() as caller:
            await caller.execute("SELECT * FROM no_such_table")

    with pytest.raises(asyncpg.UndefinedTableError):
        await fail()


async def cut(connection: asyncpg.Connection, caller: Connection) -> None:
    """End a session from outside."""
    (row,) = await caller.fetch("SELECT pg_backend_pid() AS pid")
    await connection.execute("SELECT pg_terminate_backend($1)", cast("asyncpg.Record", row)["pid"])


async def test_what_is_raised_inside_is_not_hidden_by_a_connection_that_broke(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    async def fail() -> None:
        async with store.transaction() as caller:
            await cut(connection, caller)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()


async def test_a_commit_that_finds_no_connection_says_so(store: PgJobStore, connection: asyncpg.Connection) -> None:
    async def fail() -> None:
        async with store.transaction() as caller:
            await cut(connection, caller)

    with pytest.raises(DatabaseUnavailableError):
        await fail()


# Conflicts on our own transactions.

RAISE_TWICE = """
CREATE SEQUENCE tries;
CREATE FUNCTION fail_at_first() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF nextval('public.tries') <= 2 THEN RAISE EXCEPTION 'injected' USING ERRCODE = '{state}'; END IF;
    RETURN coalesce(new, old);
END $$;
CREATE TRIGGER fail_at_first BEFORE {event} ON pqrun.{table} FOR EACH ROW EXECUTE FUNCTION fail_at_first();
"""


@pytest.mark.parametrize("state", ["40P01", "40001"])
async def test_a_conflict_of_our_own_transaction_is_repeated(
    dsn: str, store: PgJobStore, connection: asyncpg.Connection, state: str
) -> None:
    link = store.open_link("work", kept=True)
    claimer = Claimer(link, worker=await make_worker(connection), worker_id="w")

    async def fail_twice(event: str, table: str) -> None:
        await connection.execute("DROP SEQUENCE IF EXISTS tries; DROP FUNCTION IF EXISTS fail_at_first CASCADE")
        await connection.execute(RAISE_TWICE.format(state=state, event=event, table=table))

    await fail_twice("INSERT", "jobs_active")
    job_id = await store.enqueue("t", {}, dedupe_key="k")
    await fail_twice("UPDATE", "jobs_active")
    (job,) = (await claimer.claim([(Lane("default", 0), 0)], ["t"], [], [], limit=1, look=1, free=1)).jobs
    assert (job.id, job.attempts) == (job_id, 1)
    await fail_twice("DELETE", "jobs_active")
    assert len(await settle(link, [Done(Claim(job.id, job.claim_id or 0), 1, None)])) == 1
    await fail_twice("INSERT", "jobs_active")
    await store.retry(job_id, force=True)
    await fail_twice("DELETE", "jobs_active")
    assert await store.cancel(job_id) == "CANCELLED"
    assert await connection.fetchval("SELECT count(*) FROM pqrun.jobs") == 1
    await link.close()


async def test_a_kept_connection_that_was_killed_is_replaced(store: PgJobStore, connection: asyncpg.Connection) -> None:
    backends = "SELECT pid FROM pg_stat_activity WHERE application_name = 'pqrun settle'"
    link = store.open_link("settle", kept=True)
    await link.run("get", 1)
    killed = await connection.fetchval(backends)
    assert await connection.fetchval("SELECT pg_terminate_backend($1, 30000)", killed)  # waits until it is gone
    with contextlib.suppress(DatabaseUnavailableError):  # raised unless the loop has seen the socket close already
        await link.run("get", 1)
    assert await link.run("get", 1) == []
    (replacement,) = await connection.fetch(backends)
    assert replacement["pid"] != killed
    await link.close()


async def test_a_result_type_that_changes_under_a_prepared_statement_is_no_error(
    dsn: str, connection: asyncpg.Connection
) -> None:
    """Inside a transaction the driver can only report it: then the transaction is repeated, with a new plan."""
    async with asyncpg.create_pool(dsn, min_size=1, max_size=4) as pool, PgJobStore(pool=pool) as store:
        borrowed, kept = store.open_link("claim", kept=False), store.open_link("settle", kept=True)
        job_id = await store.enqueue("t", {})
        for link in (borrowed, kept):
            await link.run("get", job_id)
        await store.get(job_id)
        await connection.execute("ALTER TABLE pqrun.jobs ALTER COLUMN last_error TYPE varchar(100000)")
        for link in (borrowed, kept):
            assert len(await link.run("get", job_id)) == 1
        assert await store.get(job_id) is not None
        await kept.close()


def test_dsn_and_pool_exclude_each_other(dsn_for_loops: str) -> None:
    async def both() -> None:
        async with asyncpg.create_pool(dsn_for_loops, min_size=0, max_size=4) as pool:
            with pytest.raises(ConfigurationError, match="give either dsn= or pool="):
                PgJobStore(dsn_for_loops, pool=pool)

    run(both())


@pytest.mark.parametrize("job_id", [2**63, "1", 1.0, True, None])
async def test_what_is_no_id_is_told(store: PgJobStore, job_id: Any) -> None:
    for call in (store.get, store.cancel, store.retry, store.wait_end):
        with pytest.raises(ArgumentsError, match="the id of a job is an int"):
            await call(job_id)


async def test_what_is_no_connection_is_told(store: PgJobStore) -> None:
    given: Any = object()
    with pytest.raises(OptionError, match=r"connection: expected an asyncpg connection, .*; got object"):
        await store.enqueue("t", {}, connection=given)


async def test_a_missing_job_is_none(store: PgJobStore) -> None:
    assert await store.get(1) is None


async def test_a_job_shows_no_payload_result_or_error_in_its_repr(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    link = store.open_link("work", kept=True)
    claimer = Claimer(link, worker=await make_worker(connection), worker_id="w")
    job_id = await store.enqueue("t", {"token": "hunter2"})
    (job,) = (await claimer.claim([(Lane("default", 0), 0)], ["t"], [], [], limit=1, look=1, free=1)).jobs
    await settle(link, [Retrying(Claim(job_id, job.claim_id or 0), 1, "ValueError: hunter2", 0.0)])
    again = await store.get(job_id)
    assert again is not None
    assert again.status is Status.SCHEDULED
    assert "hunter2" not in repr((job, again))
    await link.close()


async def test_another_store_on_the_same_tables_is_one_for_another_loop(dsn: str) -> None:
    store = PgJobStore(dsn)
    before = store.is_open_here
    async with store, store.another() as other:
        assert (before, store.is_open_here) == (False, True)
        job_id = await store.enqueue("t", {})
        assert await other.get(job_id) is not None
        assert other.schema == store.schema


async def test_a_store_on_a_handed_in_pool_has_no_other(dsn: str) -> None:
    async with asyncpg.create_pool(dsn, min_size=0, max_size=1) as pool:
        with pytest.raises(ConfigurationError, match="belongs to the event loop of its pool"):
            PgJobStore(pool=pool).another()
