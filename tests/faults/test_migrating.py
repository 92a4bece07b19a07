"""Migrations under live workers: what is at work goes on, and a role that may create nothing can work."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from pqrun.errors import ConflictError
from pqrun.job.record import NewJob
from pqrun.job.state import Status
from pqrun.run import events
from pqrun.run.context import JobContext
from pqrun.store import PgJobStore
from pqrun.store.migrate import migrations
from tests.faults.counted import Counted
from tests.faults.old_worker import OldProducer, OldWorker
from tests.run.working import wait_finished, working
from tests.support.database import Databases, connected
from tests.support.waiting import wait_until

Context = JobContext[Any]

JOBS = 5_000
"""Deferred while the worker works, and more where it is quick."""

FULL_LOAD = 1_000
"""Jobs per second, about: the handlers are as long as lets so many through on a machine that is not quick."""

READ_SECONDS = 3
"""How long somebody reads the table while it is to be altered."""

STEPS = (
    "ALTER TABLE pqrun.jobs ADD COLUMN note text",
    """DROP INDEX pqrun.jobs_active_dedupe;
    CREATE UNIQUE INDEX jobs_active_dedupe ON pqrun.jobs_active (job_type, dedupe_key) WHERE dedupe_key IS NOT NULL""",
    "ALTER TABLE pqrun.jobs ADD COLUMN more bigint NOT NULL DEFAULT 7",
    "ALTER TABLE pqrun.workers ADD COLUMN note text",
)
"""An additive migration: columns, and an index made anew under its old name."""


async def altered(connection: asyncpg.Connection, step: str) -> int:
    """Take the locks within a limit and try again, as migrations do; return how often."""
    for tries in range(1, 200):
        try:
            async with connection.transaction():
                await connection.execute("SET LOCAL lock_timeout = '100ms'")
                await connection.execute(step)
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
            await asyncio.sleep(0.05)
        else:
            return tries
    raise AssertionError(step)


AHEAD = 1_000
"""Jobs that wait when the migration begins, and about so many all the time: the worker never has nothing to do."""

BATCH = 100


async def waiting(connection: asyncpg.Connection) -> int:
    """How many jobs wait at this moment."""
    return int(await connection.fetchval("SELECT count(*) FROM pqrun.jobs_active WHERE status = 'READY'"))


class Load:
    """Defers so steadily that AHEAD jobs wait, until it is told to end; they have keys, so that the index which is made anew is in use."""

    def __init__(self, store: PgJobStore, connection: asyncpg.Connection) -> None:
        self._store = store
        self._connection = connection
        self._is_over = asyncio.Event()
        self.ids: list[int] = []

    async def run(self) -> None:
        """Defer."""
        while not self._is_over.is_set():
            while await waiting(self._connection) < AHEAD:
                await self._defer()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_over.wait(), 0.02)

    async def _defer(self) -> None:
        keys = range(len(self.ids), len(self.ids) + BATCH)
        jobs = [NewJob(job_type="t", payload="{}", dedupe_key=f"k{key}") for key in keys]
        self.ids += [enqueued.id for enqueued in await self._store.enqueue_jobs(jobs)]

    def end(self) -> None:
        """That was all."""
        self._is_over.set()


async def test_a_worker_at_full_load_goes_on_during_and_after_an_additive_migration(
    dsn: str,
    store: PgJobStore,
    connection: asyncpg.Connection,
    record_testsuite_property: Callable[[str, object], None],
) -> None:
    counted = Counted()
    slots = 20
    backlogs: list[int] = []
    reading = asyncio.Event()

    async def read() -> None:
        async with connected(dsn) as reader, reader.transaction():
            await reader.fetchval("SELECT count(*) FROM pqrun.jobs")
            reading.set()
            await reader.execute(f"SELECT pg_sleep({READ_SECONDS})")

    async def alter() -> int:
        await reading.wait()
        tries = 0
        async with connected(dsn) as operator:
            for step in STEPS:
                backlogs.append(await waiting(operator))
                tries += await altered(operator, step)
                backlogs.append(await waiting(operator))
        return tries

    async def is_ahead() -> bool:
        return await waiting(connection) >= AHEAD

    async def is_settled() -> bool:
        return not await connection.fetchval("SELECT count(*) FROM pqrun.jobs_active")

    async def brief(ctx: Context) -> dict[str, object]:
        await asyncio.sleep(slots / FULL_LOAD / 2)
        return await counted.quick(ctx)

    handlers = {"t": brief, "hang": counted.hang}
    async with (
        working(PgJobStore(dsn), handlers, concurrency=slots) as crew,
        connected(dsn) as looking,
        PgJobStore(dsn) as producer,
    ):
        long = await store.enqueue("hang", {})
        await counted.wait_started(long)
        load = Load(producer, looking)
        loading = asyncio.create_task(load.run())
        await wait_until(is_ahead)
        began, before = time.monotonic(), len(counted.starts)
        tries, _ = await asyncio.gather(alter(), read())
        during = len(counted.starts) - before
        rate = during / (time.monotonic() - began)
        await wait_until(lambda: len(load.ids) >= JOBS)
        load.end()
        await loading
        counted.go.set()
        await wait_until(is_settled, seconds=120)
        ended = await connection.fetch("SELECT status, attempts, count(*) FROM pqrun.jobs GROUP BY 1, 2")
    record_testsuite_property("jobs_per_second_during_migration", round(rate))
    assert tries > len(STEPS)  # the reader was in the way, and nobody waited behind the migration for long
    assert min(backlogs) > 0, backlogs
    assert during > AHEAD  # at work, not merely loaded
    assert [tuple(row) for row in ended] == [(Status.DONE, 1, len(load.ids) + 1)]
    assert len(load.ids) >= JOBS
    assert set(counted.starts.values()) == {1}
    assert not crew.heard.of(events.ClaimLost)
    assert [event.error for event in crew.heard.of(events.LoopFailed)] == []


async def test_a_callers_transaction_that_began_before_the_migration_hears_a_conflict_and_can_be_repeated(
    dsn: str, store: PgJobStore
) -> None:
    async with connected(dsn) as connection, connected(dsn) as caller:
        for _ in range(6):  # the driver has prepared it, and the server made a plan for all
            async with caller.transaction():
                await store.enqueue("t", {}, dedupe_key="same", connection=caller)
        for step in STEPS:
            await altered(connection, step)
        with contextlib.suppress(ConflictError):  # of its plans: "repeat yours", it says
            async with caller.transaction():
                await store.enqueue("t", {}, dedupe_key="once", connection=caller)
        async with caller.transaction():
            job_id = await store.enqueue("t", {}, dedupe_key="again", connection=caller)
    assert (await store.get(job_id)) is not None


# Roles.

GRANTS = """
CREATE ROLE {role} LOGIN;
REVOKE CREATE ON SCHEMA public FROM public;
GRANT USAGE ON SCHEMA pqrun TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA pqrun TO {role};
GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA pqrun TO {role};
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA pqrun TO {role};
"""


@pytest.fixture
async def humble_dsn(databases: Databases) -> AsyncIterator[str]:
    """A database as its owner made it, through a role that may use and create nothing."""
    dsn = await databases.clone()
    role = "humble_" + urlsplit(dsn).path[1:]
    async with connected(dsn) as owner:
        await owner.execute(GRANTS.format(role=role))
    parts = urlsplit(dsn)
    host = parts.netloc.rpartition("@")[2]
    yield urlunsplit(parts._replace(netloc=f"{role}@{host}"))
    await databases.drop(dsn)
    async with connected(databases.admin_dsn) as owner:
        await owner.execute(f"DROP ROLE {role}")


async def test_a_role_without_the_right_to_create_defers_and_works(humble_dsn: str, databases: Databases) -> None:
    counted = Counted()
    async with PgJobStore(humble_dsn) as store, connected(humble_dsn) as plain:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await plain.execute("CREATE TABLE pqrun.mine (x int)")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await plain.execute("ALTER TABLE pqrun.jobs ADD COLUMN mine text")
        async with working(PgJobStore(humble_dsn), {"t": counted.quick, "hang": counted.hang}, concurrency=2) as crew:
            await crew.heard.wait_for(events.WorkerStarted)
            done = [await store.enqueue("t", {}), await store.enqueue("t", {}, dedupe_key="k")]
            async with plain.transaction():
                done.append(await store.enqueue("t", {}, connection=plain))
            done.append(await plain.fetchval("SELECT id FROM pqrun.enqueue('t', '{}')"))
            ended = [await wait_finished(store, job_id) for job_id in done]
            hanging = await store.enqueue("hang", {})
            await counted.wait_started(hanging)
            await store.cancel(hanging)
            assert (await wait_finished(store, hanging)).status is Status.CANCELLED
            await store.retry(hanging)
            counted.go.set()
            assert (await wait_finished(store, hanging)).status is Status.DONE
        assert {(job.status, job.attempts) for job in ended} == {(Status.DONE, 1)}
        assert not crew.heard.of(events.LoopFailed)


async def test_migrating_what_is_up_to_date_needs_no_right_to_create(humble_dsn: str) -> None:
    assert await PgJobStore(humble_dsn).migrate() == []


async def test_a_worker_that_started_before_a_migration_of_the_registry_keeps_beating(
    dsn: str, store: PgJobStore, connection: asyncpg.Connection
) -> None:
    async with working(PgJobStore(dsn), {"t": Counted().quick}) as crew:
        await crew.heard.wait_for(events.WorkerStarted)
        await altered(connection, STEPS[-1])
        before = await connection.fetchval("SELECT beat FROM pqrun.workers")

        async def has_beaten() -> bool:
            return bool(await connection.fetchval("SELECT beat > $1 + 1 FROM pqrun.workers", before))

        await wait_until(has_beaten)
    assert not crew.heard.of(events.LoopFailed)


# 0002: the version of payloads.


async def test_workers_and_producers_of_before_0002_go_on_during_and_after_it(databases: Databases) -> None:
    dsn = await databases.clone(migrated=False)
    first = migrations()[0]
    async with (
        connected(dsn) as operator,
        connected(dsn) as producing,
        connected(dsn) as working_on,
    ):
        await operator.execute("CREATE SCHEMA pqrun")
        await operator.execute(first.template)
        await operator.execute(
            "CREATE TABLE pqrun.migrations (version integer PRIMARY KEY, name text NOT NULL, checksum text NOT NULL, "
            "applied_at timestamptz NOT NULL DEFAULT clock_timestamp())"
        )
        values = (first.version, first.name, first.checksum)
        await operator.execute("INSERT INTO pqrun.migrations (version, name, checksum) VALUES ($1, $2, $3)", *values)
        producer, worker = OldProducer(producing), OldWorker(working_on)
        tasks = [asyncio.create_task(producer.run()), asyncio.create_task(worker.run())]
        await wait_until(lambda: worker.done > 50)
        began = time.monotonic()
        applied = await PgJobStore(dsn).migrate()
        took = time.monotonic() - began
        before = worker.done
        await wait_until(lambda: worker.done > before + 50)
        producer.is_over = worker.is_over = True
        await asyncio.wait_for(asyncio.gather(*tasks), 60)
        ended = await operator.fetch("SELECT payload_version, count(*) FROM pqrun.jobs_finished GROUP BY 1")
        left = await operator.fetchval("SELECT count(*) FROM pqrun.jobs_active")
    await databases.drop(dsn)
    assert [migration.name for migration in applied] == [migration.name for migration in migrations()[1:]]
    assert [tuple(row) for row in ended] == [(1, producer.deferred)]
    assert (left, worker.done) == (0, producer.deferred)
    assert took < 10  # it takes its locks between two statements of theirs
