"""Databases that go away, refuse, or make everybody wait: jobs end once, attempts are not spent, and nothing spins."""

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from pqrun.errors import JobCancelled, PqrunError
from pqrun.job.outcome import CancelOutcome
from pqrun.job.policy import IdlePollPolicy
from pqrun.job.state import Status
from pqrun.run import events
from pqrun.run.context import JobContext
from pqrun.store import PgJobStore
from tests.faults.counted import Counted, assert_done_once, enqueued
from tests.faults.serving import serving
from tests.run.working import Crew, stored, wait_finished, working
from tests.support.database import Databases, connected
from tests.support.proxy import Proxied, proxied
from tests.support.waiting import wait_until

Context = JobContext[Any]

TRIES_PER_SECOND = 20
"""More attempts to connect would be a hot loop."""

POLLING = IdlePollPolicy(0.1, 0.5)


# Restarts.


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT], ids=["fast", "immediate"])
async def test_a_restart_costs_no_attempt_and_no_storm(how: signal.Signals) -> None:
    counted = Counted()
    async with serving() as server, proxied(server.dsn) as proxy, PgJobStore(server.dsn) as store:
        handlers = {"t": counted.quick, "hang": counted.hang}
        async with working(PgJobStore(proxy.dsn), handlers, concurrency=3) as crew:
            await crew.heard.wait_for(events.WorkerStarted)
            running = [await store.enqueue("hang", {}) for _ in range(2)]
            for job_id in running:
                await counted.wait_started(job_id)
            since = time.monotonic()
            await server.end(how)
            counted.go.set()  # both end while there is nobody to tell
            await wait_until(lambda: time.monotonic() - since > 3)
            assert 1 <= proxy.most_tries_per_second(since) < TRIES_PER_SECOND
            await server.start()
            ended = [await wait_finished(store, job_id) for job_id in running]
            ended.append(await wait_finished(store, await enqueued(store)))
            await crew.heard.wait_for(events.Done, count=3)
    assert_done_once(ended, counted)
    assert not crew.heard.of(events.ClaimLost)


async def killing(dsn: str, seconds: float, pause: float) -> int:
    """End every backend of ours again and again; return how many died."""
    killed = 0
    async with connected(dsn) as admin:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await asyncio.sleep(pause)
            killed += await admin.fetchval(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name LIKE 'pqrun%'"
            )
    return killed


@pytest.mark.parametrize(
    ("seconds", "pause"), [(4.0, 0.25), pytest.param(60.0, 1.0, marks=pytest.mark.slow)], ids=["seconds", "a minute"]
)
async def test_backends_that_are_killed_again_and_again_lose_nothing(dsn: str, seconds: float, pause: float) -> None:
    counted = Counted()
    ids: list[int] = []
    async with PgJobStore(dsn) as store:

        async def produce() -> None:
            async with connected(dsn) as connection:  # not killed: what it was told of is written
                while not killer.done():
                    ids.append(await store.enqueue("t", {}, connection=connection))
                    await asyncio.sleep(0.002)

        async with working(PgJobStore(dsn), {"t": counted.quick}, concurrency=5, idle_policy=POLLING) as crew:
            await crew.heard.wait_for(events.WorkerStarted)
            killer = asyncio.create_task(killing(dsn, seconds, pause))
            await produce()
            killed = await killer
            ended = [await wait_finished(store, job_id) for job_id in ids]
    assert killed > 8
    assert_done_once(ended, counted)
    assert not crew.heard.of(events.ClaimLost)


# No room.


async def test_a_server_without_a_free_connection_is_waited_for() -> None:
    counted = Counted()
    async with (
        serving(max_connections="14", superuser_reserved_connections="0") as server,
        proxied(server.dsn) as proxy,
        connected(server.dsn) as admin,
        PgJobStore(server.dsn) as store,
        working(PgJobStore(proxy.dsn), {"t": counted.quick, "hang": counted.hang}) as crew,
    ):
        await crew.heard.wait_for(events.WorkerStarted)
        running = await store.enqueue("hang", {})
        await counted.wait_started(running)
        async with contextlib.AsyncExitStack() as hogs:
            since = time.monotonic()
            proxy.is_unreachable = True  # while the seats are taken
            proxy.each(Proxied.reset)
            await fill(server.dsn, hogs)
            proxy.is_unreachable = False
            counted.go.set()
            await wait_until(lambda: _heard_of(crew, "53300"))
            assert proxy.most_tries_per_second(since) < TRIES_PER_SECOND
            assert await admin.fetchval("SELECT status FROM pqrun.jobs WHERE id = $1", running) == "RUNNING"
        ended = [await wait_finished(store, running), await wait_finished(store, await enqueued(store))]
    assert_done_once(ended, counted)
    assert not crew.heard.of(events.ClaimLost)


async def fill(dsn: str, stack: contextlib.AsyncExitStack) -> None:
    """Take every connection that the server still gives."""
    with contextlib.suppress(asyncpg.TooManyConnectionsError):
        while True:
            await stack.enter_async_context(connected(dsn))


def _heard_of(crew: Crew, text: str) -> bool:
    return any(text in event.error for event in crew.heard.of(events.LoopFailed))


async def test_handlers_that_hold_the_whole_pool_hold_nothing_else_up(
    dsn: str, store: PgJobStore, connection: asyncpg.Connection
) -> None:
    counted, holding, go = Counted(), set[int](), asyncio.Event()

    async def hold(ctx: Context) -> None:
        async with ctx.store.connection():
            holding.add(ctx.job.id)
            await go.wait()

    async with working(PgJobStore(dsn), {"t": counted.quick, "hold": hold}, concurrency=12) as crew:
        held = [await store.enqueue("hold", {}) for _ in range(10)]
        await wait_until(lambda: len(holding) == 10)
        ended = [await wait_finished(store, await store.enqueue("t", {})) for _ in range(3)]
        before = await connection.fetchval("SELECT beat FROM pqrun.workers")

        async def has_beaten() -> bool:
            return bool(await connection.fetchval("SELECT beat > $1 FROM pqrun.workers", before))

        await wait_until(has_beaten)
        assert await store.cancel(held[0]) is CancelOutcome.REQUESTED
        assert (await wait_finished(store, held[0])).status is Status.CANCELLED
        go.set()
        others = [await wait_finished(store, job_id) for job_id in held[1:]]
    assert_done_once(ended, counted)
    assert {(job.status, job.attempts) for job in others} == {(Status.DONE, 1)}
    assert not crew.heard.of(events.LoopFailed)


# Refusals at the claim and at the settle.

REFUSING = """
CREATE SEQUENCE public.refusals;
CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF nextval('public.refusals') <= TG_ARGV[1]::bigint THEN
        RAISE EXCEPTION 'refused by the test' USING ERRCODE = TG_ARGV[0];
    END IF;
    RETURN coalesce(NEW, OLD);
END $$;
GRANT ALL ON SEQUENCE public.refusals TO public;
"""


@pytest.mark.parametrize("where", ["claim", "settle"])
@pytest.mark.parametrize("state", ["40001", "40P01", "57014", "55P03", "53100", "25006", "57P01"])
async def test_a_refusal_of_the_database_is_not_the_handlers_failure(
    dsn: str, store: PgJobStore, connection: asyncpg.Connection, where: str, state: str
) -> None:
    counted = Counted()
    await connection.execute(REFUSING)
    event = "BEFORE UPDATE" if where == "claim" else "BEFORE DELETE"
    await connection.execute(
        f"CREATE TRIGGER refuse {event} ON pqrun.jobs_active FOR EACH ROW EXECUTE FUNCTION public.refuse('{state}', '3')"
    )
    job_id = await store.enqueue("t", {}, max_attempts=1)
    async with working(PgJobStore(dsn), {"t": counted.quick}, idle_policy=POLLING) as crew:
        job = await wait_finished(store, job_id)
        await crew.heard.wait_for(events.Done)
    assert await connection.fetchval("SELECT last_value FROM public.refusals") >= 4
    assert_done_once([job], counted)
    assert job.last_error is None
    assert len(crew.heard.of(events.LoopFailed)) <= 4
    assert not crew.heard.of(events.ClaimLost)


@pytest.mark.parametrize("ending", ["waited for", "cancelled", "lock timeout", "statement timeout"])
async def test_a_session_that_holds_the_row_delays_the_settle_and_spends_no_attempt(
    dsn: str, store: PgJobStore, connection: asyncpg.Connection, ending: str
) -> None:
    counted = Counted()
    through = dsn
    if ending in ("lock timeout", "statement timeout"):  # of the database: the worker's own settings must hold
        name = urlsplit(dsn).path[1:]
        await connection.execute(f'ALTER DATABASE "{name}" SET {ending.replace(" ", "_")} = 300')
    async with working(PgJobStore(through), {"hang": counted.hang}) as crew, connected(dsn) as holder:
        job_id = await store.enqueue("hang", {}, max_attempts=1)
        await counted.wait_started(job_id)
        await holder.execute("SET statement_timeout = 0")
        async with holder.transaction():
            await holder.fetch("SELECT id FROM pqrun.jobs_active WHERE id = $1 FOR UPDATE", job_id)
            counted.go.set()
            await wait_until(lambda: settle_waits(connection))
            if ending == "cancelled":
                await connection.fetch(
                    "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE application_name = 'pqrun settle'"
                )
                await wait_until(lambda: _heard_of(crew, "57014"))
            elif ending != "waited for":
                since = time.monotonic()
                await wait_until(lambda: time.monotonic() - since > 0.6)
        job = await wait_finished(store, job_id)
        await crew.heard.wait_for(events.Done)
    if ending in ("lock timeout", "statement timeout"):
        await connection.execute(f'ALTER DATABASE "{urlsplit(dsn).path[1:]}" RESET {ending.replace(" ", "_")}')
        assert not crew.heard.of(events.LoopFailed)
    assert_done_once([job], counted)
    assert not crew.heard.of(events.ClaimLost)


async def settle_waits(connection: asyncpg.Connection) -> bool:
    return bool(
        await connection.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pqrun settle' AND wait_event_type = 'Lock'"
        )
    )


async def test_cancel_and_completion_at_the_same_moment_end_in_one_of_two_states(dsn: str, store: PgJobStore) -> None:
    counted = Counted()
    async with working(PgJobStore(dsn), {"t": counted.quick}, concurrency=4, idle_policy=POLLING) as crew:
        ids = [await store.enqueue("t", {}) for _ in range(200)]
        await asyncio.gather(*(store.cancel(job_id) for job_id in ids))
        ended = [await wait_finished(store, job_id) for job_id in ids]
    assert {job.status for job in ended} <= {Status.DONE, Status.CANCELLED}
    assert max(counted.starts.values(), default=1) == 1
    assert not crew.heard.of(events.LoopFailed)


# Read-only.


@asynccontextmanager
async def read_only(databases: Databases, dsn: str) -> AsyncIterator[None]:
    """The database refuses to write in every session that begins now, as a standby does, and as some operators do on purpose."""
    name = urlsplit(dsn).path[1:]
    async with connected(databases.admin_dsn) as admin:
        await admin.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
        await admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1 AND application_name LIKE 'pqrun%'",
            name,
        )
        try:
            yield
        finally:
            await admin.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')


async def test_a_database_that_is_read_only_for_a_while_is_written_when_it_takes_writes_again(
    databases: Databases, dsn: str, connection: asyncpg.Connection
) -> None:
    """Nobody ends the sessions that began meanwhile: a setting of the database is read at the login."""
    counted = Counted()
    handlers = {"t": counted.quick, "hang": counted.hang}
    async with PgJobStore(dsn) as store, working(PgJobStore(dsn), handlers, concurrency=2, idle_policy=POLLING) as crew:
        running = await store.enqueue("hang", {}, max_attempts=1)
        await counted.wait_started(running)
        async with read_only(databases, dsn):
            counted.go.set()
            await wait_until(lambda: _heard_of(crew, "25006"))
            with pytest.raises(PqrunError):
                await refused(store)
            assert (await stored(store, running)).status is Status.RUNNING
        ended = [await wait_finished(store, running), await wait_finished(store, await enqueued(store))]
        before = await connection.fetchval("SELECT beat FROM pqrun.workers")

        async def has_beaten() -> bool:
            return bool(await connection.fetchval("SELECT beat > $1 FROM pqrun.workers", before))

        await wait_until(has_beaten)
    assert_done_once(ended, counted)
    assert not crew.heard.of(events.ClaimLost)


async def refused(store: PgJobStore) -> None:
    """Enqueue until it is refused: the first errors may be those of connections that were cut."""
    for _ in range(20):
        await store.enqueue("nobody", {})


async def test_a_worker_that_starts_while_the_database_is_read_only_works_afterwards(
    databases: Databases, dsn: str
) -> None:
    counted = Counted()
    async with PgJobStore(dsn) as store:
        job_id = await store.enqueue("t", {})
        async with contextlib.AsyncExitStack() as stack:
            async with read_only(databases, dsn):
                crew = await stack.enter_async_context(working(PgJobStore(dsn), {"t": counted.quick}))
                await wait_until(lambda: _heard_of(crew, "25006"))
                assert not crew.heard.of(events.WorkerStarted)
            assert_done_once([await wait_finished(store, job_id)], counted)


async def test_what_a_handler_hears_of_a_lost_database_is_its_own_matter_and_named(dsn: str, store: PgJobStore) -> None:
    """A handler that lets the error of its own statement pass has failed; what pqrun writes of it is not counted on top."""
    told: list[BaseException] = []
    cut = asyncio.Event()

    async def asks(ctx: Context) -> None:
        if ctx.job.attempts > 1:
            return
        cut.set()
        try:
            async with ctx.store.connection() as own:
                await own.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        except Exception as error:
            told.append(error)
            raise

    job_id = await store.enqueue("asks", {}, max_attempts=1)
    async with working(PgJobStore(dsn), {"asks": asks}):
        job = await wait_finished(store, job_id)
    assert (job.status, job.attempts) == (Status.FAILED, 1)
    assert len(told) == 1
    assert not isinstance(told[0], JobCancelled)
