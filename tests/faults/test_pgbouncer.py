"""The real PgBouncer in transaction mode: all works by polling, it is said once, and nothing stays behind in its server connections."""

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import pytest

from benchmarks.recovery import measure
from pqrun import IdlePollPolicy, PgJobStore
from pqrun.errors import ConfigurationError
from pqrun.job.filter import JobFilter
from pqrun.job.outcome import CancelOutcome
from pqrun.job.state import Status
from pqrun.run import events
from pqrun.run.context import JobContext
from pqrun.store.ports import Connection
from pqrun.worker import WorkerOptions
from tests.cli.running import Command, environment, running
from tests.faults.town import Ledger
from tests.run.working import wait_finished, working
from tests.store.locking import wait_until_waiting
from tests.support.database import connected
from tests.support.pgbouncer import PgBouncer, pgbouncer
from tests.support.rows import make_job, make_worker
from tests.support.waiting import wait_until

WORKER = Path(__file__).with_name("pooled.py")
ROOT = Path(__file__).parents[2]

SAID = "through a pooler in transaction mode"


class Rarely(IdlePollPolicy):
    """So long that only a notification can start a job in time."""

    def next_sleep(self, empty_streak: int) -> float:
        return 600.0


@pytest.fixture
async def bouncer(dsn: str) -> AsyncIterator[PgBouncer]:
    """A pooler with two server connections to this test's database."""
    async with pgbouncer(dsn) as started:
        yield started


@pytest.fixture
async def pooled(bouncer: PgBouncer) -> AsyncIterator[PgJobStore]:
    """A store that reaches its database through the pooler."""
    async with PgJobStore(bouncer.dsn) as opened:
        yield opened


@asynccontextmanager
async def worker_process(dsn: str, name: str, *, stale_seconds: int = 30) -> AsyncIterator[Command]:
    """Run a worker as a process of its own."""
    env = environment(PYTHONPATH=str(ROOT))
    async with running(str(WORKER), dsn, name, str(stale_seconds), env=env, program=(sys.executable,)) as command:
        yield command


RECOVERING = re.compile(r"running \d+|WARNING pqrun (worker \w+ is dead|recovered).*")


async def stop(command: Command) -> None:
    """Stop a worker in order; it must have said that there is a pooler, once, and nothing is wrong."""
    command.send(signal.SIGTERM)
    assert await command.end() == 0, command.output
    said = [line for line in command.lines if not RECOVERING.match(line)]
    assert len(said) == 1, command.output
    assert said[0].startswith("WARNING pqrun worker ")
    assert SAID in said[0]
    assert "direct_dsn=" in said[0]


async def defer_500(store: PgJobStore) -> None:
    """Defer 300 jobs by themselves, ten at a time, 199 in twenty transactions, and one that defers another when it completes."""

    async def one_by_one(start: int) -> None:
        for number in range(start, 300, 10):
            await store.enqueue("quick", {"n": number})

    async def together(size: int) -> None:
        async with store.transaction() as connection:
            for number in range(size):
                await store.enqueue("quick", {"n": number}, connection=connection)

    await asyncio.gather(*(one_by_one(start) for start in range(10)), *(together(10) for _ in range(19)), together(9))
    with pytest.raises(ZeroDivisionError):  # noqa: PT012  # the error is the caller's, inside the transaction
        async with store.transaction() as connection:
            await store.enqueue("quick", {}, connection=connection)
            raise ZeroDivisionError
    await store.enqueue("complete", {})


async def is_all_finished(connection: asyncpg.Connection) -> bool:
    """Whether no job is left to do."""
    return not await connection.fetchval("SELECT EXISTS (SELECT FROM pqrun.jobs_active)")


async def find_working(processes: list[Command], job_id: int) -> None:
    """Wait until one of the workers says that it runs this job."""
    await wait_until(lambda: any(f"running {job_id}" in process.lines for process in processes))


async def test_two_workers_and_a_producer_work_behind_a_pooler_as_without_one(
    bouncer: PgBouncer, pooled: PgJobStore, connection: asyncpg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    later = await pooled.enqueue("quick", {}, run_after=timedelta(days=1))
    assert await pooled.cancel(later) is CancelOutcome.CANCELLED
    lost = await make_job(
        connection, status=Status.RUNNING, job_type="quick", locked_at=datetime.now(UTC) - timedelta(days=1)
    )
    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(worker_process(bouncer.dsn, name)) for name in ("one", "two")]
        await defer_500(pooled)
        await pooled.retry(later)
        stays = await pooled.enqueue("stay", {}, priority=1)
        await find_working(workers, stays)
        assert await pooled.cancel(stays) is CancelOutcome.REQUESTED
        assert (await wait_finished(pooled, stays)).status is Status.CANCELLED
        recovered = await wait_finished(pooled, lost)
        assert (recovered.status, recovered.attempts) == (Status.DONE, 2)
        await wait_until(lambda: is_all_finished(connection))
        assert not await connection.fetchval("SELECT bool_or(has_lock) FROM pqrun.workers")
        assert not await connection.fetchval("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
        for worker in workers:
            await stop(worker)
    rows = await connection.fetch(
        "SELECT status, attempts, count(*) AS jobs FROM pqrun.jobs WHERE id <> ALL ($1::bigint[]) GROUP BY 1, 2",
        [stays, lost],
    )
    assert [tuple(row) for row in rows] == [("DONE", 1, 502)]
    assert await bouncer.left_in_sessions() == []
    assert not caplog.records


async def test_a_worker_killed_behind_a_pooler_is_recovered_within_the_slow_limit(
    bouncer: PgBouncer, pooled: PgJobStore
) -> None:
    job_id = await pooled.enqueue("stay", {})
    async with (
        worker_process(bouncer.dsn, "one", stale_seconds=2) as one,
        worker_process(bouncer.dsn, "two", stale_seconds=2) as two,
    ):
        await find_working([one, two], job_id)
        first, second = (one, two) if f"running {job_id}" in one.lines else (two, one)
        first.send(signal.SIGKILL)
        await first.end()
        await find_working([second], job_id)
        job = await pooled.get(job_id)
        assert job is not None
        assert (job.status, job.attempts) == (Status.RUNNING, 2)
        await pooled.cancel(job_id)
        await wait_finished(pooled, job_id)
        await stop(second)
    assert await bouncer.left_in_sessions() == []


async def test_with_default_settings_it_takes_less_than_thirty_five_seconds(
    dsn: str, bouncer: PgBouncer, ledger: Ledger
) -> None:
    async with pgbouncer(dsn) as other:
        assert max(await measure(bouncer.dsn, other.dsn, ledger, tries=2)) < 35
        assert await other.left_in_sessions() == []
    assert await bouncer.left_in_sessions() == []


async def quick(ctx: JobContext[object]) -> None:
    """Done at once."""


async def test_a_direct_dsn_gives_a_worker_behind_a_pooler_its_lock_and_notifications(
    dsn: str,
    bouncer: PgBouncer,
    pooled: PgJobStore,
    connection: asyncpg.Connection,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with working(pooled, {"quick": quick}, direct_dsn=dsn, idle_policy=Rarely()) as crew:
        for count in range(1, 4):
            await pooled.enqueue("quick", {})
            await crew.heard.wait_for(events.Done, count=count)
        rows = await connection.fetch("SELECT has_lock FROM pqrun.workers WHERE dead_at IS NULL")
        assert [row["has_lock"] for row in rows] == [True]
    assert SAID not in caplog.text
    assert await bouncer.left_in_sessions() == []


async def test_a_worker_that_hears_nothing_starts_at_once_what_it_recovers_itself(
    pooled: PgJobStore, connection: asyncpg.Connection
) -> None:
    first = await pooled.enqueue("quick", {})
    options: WorkerOptions = {"idle_policy": Rarely(), "reap_stale_every_seconds": 0.5}
    async with working(pooled, {"quick": quick}, **options) as crew:
        await wait_finished(pooled, first)
        dead = await make_worker(connection, dead=True)
        job_id = await make_job(connection, status=Status.RUNNING, job_type="quick", worker=dead)
        await crew.heard.wait_for(events.Recovered)
        assert (await wait_finished(pooled, job_id)).status is Status.DONE


async def test_a_worker_that_hears_nothing_starts_at_once_what_another_recovers(
    pooled: PgJobStore, connection: asyncpg.Connection
) -> None:
    first = await pooled.enqueue("quick", {})
    reaper: WorkerOptions = {"default_stale_after": 2.0}
    async with (
        working(pooled, {"quick": quick}, idle_policy=Rarely(), enable_reaper=False),
        working(pooled, {"other": quick}, **reaper) as other,
    ):
        await wait_finished(pooled, first)
        silent = await make_worker(connection, dead=False)
        job_id = await make_job(connection, status=Status.RUNNING, job_type="quick", worker=silent)
        await other.heard.wait_for(events.Recovered)
        assert (await wait_finished(pooled, job_id)).status is Status.DONE


async def test_a_pooler_that_ends_and_comes_back_is_gone_on_with_and_not_told_again(
    bouncer: PgBouncer, pooled: PgJobStore, caplog: pytest.LogCaptureFixture
) -> None:
    async with working(pooled, {"quick": quick}) as crew:
        await wait_finished(pooled, await pooled.enqueue("quick", {}))
        await bouncer.stop()
        await crew.heard.wait_for(events.LoopFailed)
        await bouncer.start()
        job = await wait_finished(pooled, await pooled.enqueue("quick", {}))
        assert (job.status, job.attempts) == (Status.DONE, 1)
    assert caplog.text.count(SAID) == 1
    assert await bouncer.left_in_sessions() == []


async def test_a_direct_dsn_that_is_none_is_found_out_and_said(
    bouncer: PgBouncer, pooled: PgJobStore, connection: asyncpg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    async with working(pooled, {"quick": quick}, direct_dsn=bouncer.dsn):
        await wait_finished(pooled, await pooled.enqueue("quick", {}))
        assert not await connection.fetchval("SELECT bool_or(has_lock) FROM pqrun.workers")
    assert caplog.text.count(SAID) == 1


async def test_a_connection_of_a_function_behind_a_pooler_must_keep_no_statements(
    bouncer: PgBouncer, pooled: PgJobStore
) -> None:
    async def connect(statement_cache_size: int) -> Connection:
        return await asyncpg.connect(bouncer.dsn, statement_cache_size=statement_cache_size)

    opener = pooled.open_direct("keeper", lambda: connect(100))
    assert opener is not None
    assert await opener.is_pooled()
    with pytest.raises(ConfigurationError, match=r"direct_dsn= returned .* statement_cache_size=0"):
        await opener.open()
    async with working(pooled, {"quick": quick}, direct_dsn=lambda: connect(0)):
        await wait_finished(pooled, await pooled.enqueue("quick", {}))
    assert await bouncer.left_in_sessions() == []


async def test_a_pool_with_a_statement_cache_is_refused_behind_a_pooler_and_the_setting_is_named(
    bouncer: PgBouncer,
) -> None:
    async with asyncpg.create_pool(bouncer.dsn, min_size=0, max_size=4) as pool, PgJobStore(pool=pool) as store:
        for _ in range(2):
            with pytest.raises(ConfigurationError, match=r"pool= leads through a pooler .* statement_cache_size=0"):
                await store.enqueue("quick", {})
        with pytest.raises(ConfigurationError, match="statement_cache_size=0"):
            await store.migrate()
    assert await bouncer.left_in_sessions() == []


async def test_a_pool_without_a_statement_cache_serves_producer_and_worker_behind_a_pooler(
    bouncer: PgBouncer, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        asyncpg.create_pool(bouncer.dsn, min_size=0, max_size=6, statement_cache_size=0) as pool,
        PgJobStore(pool=pool) as store,
    ):
        assert await store.migrate() == []
        ids = [await store.enqueue("quick", {}) for _ in range(20)]
        async with working(store, {"quick": quick}, concurrency=3):
            ended = [await wait_finished(store, job_id) for job_id in ids]
    assert {(job.status, job.attempts) for job in ended} == {(Status.DONE, 1)}
    assert caplog.text.count(SAID) == 1
    assert await bouncer.left_in_sessions() == []


async def test_the_schema_is_migrated_through_a_pooler(empty_dsn: str) -> None:
    async with pgbouncer(empty_dsn) as bouncer, PgJobStore(bouncer.dsn) as store:
        assert await store.migrate()
        await store.check_schema()
        assert await store.migrate() == []
        assert await bouncer.left_in_sessions() == []


async def test_handlers_that_hold_all_server_connections_delay_a_worker_and_lose_nothing(
    bouncer: PgBouncer, pooled: PgJobStore
) -> None:
    both, go = asyncio.Barrier(3), asyncio.Event()

    async def hold(ctx: JobContext[object]) -> None:
        async with ctx.store.transaction() as held:
            await held.execute("SELECT 1")
            await both.wait()
            await go.wait()
            await ctx.complete(connection=held)

    ids = [await pooled.enqueue("hold", {}) for _ in range(2)]
    async with working(pooled, {"hold": hold, "quick": quick}, concurrency=3) as crew:
        await both.wait()
        waiting = asyncio.ensure_future(pooled.enqueue("quick", {}))
        done, _ = await asyncio.wait({waiting}, timeout=0.2)
        assert not done
        go.set()
        ended = [await wait_finished(pooled, job_id) for job_id in [*ids, await waiting]]
        assert {(job.status, job.attempts) for job in ended} == {(Status.DONE, 1)}
        assert not crew.heard.of(events.ClaimLost)
    assert await bouncer.left_in_sessions() == []


async def test_many_jobs_are_changed_through_a_pooler_and_nothing_stays_behind_in_its_server_connections(
    bouncer: PgBouncer, pooled: PgJobStore, dsn: str, connection: asyncpg.Connection
) -> None:
    ids = [await make_job(connection, status=Status.FAILED, dedupe_key=f"k{n}") for n in range(5)]
    async with connected(dsn) as other, other.transaction():
        await other.execute("SELECT * FROM pqrun.enqueue('t', '{}', dedupe_key => 'k2')")
        task = asyncio.create_task(pooled.select(ids).retry())
        await wait_until_waiting(connection)  # for half a second, by a setting of that transaction alone
    report = await task
    assert (report.done, report.reasons) == (4, {"key_taken": 1})
    assert (await pooled.select(JobFilter(job_types=["t"])).cancel()).done == 5
    assert await bouncer.left_in_sessions() == []
