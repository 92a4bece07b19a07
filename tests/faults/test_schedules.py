"""Case F34: many schedulers, a taken key, killed at every step of a tick, a server that crashes. One job per planned time, always."""

import signal
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import pytest

from benchmarks.schedules import SCHEDULE, Counts, count_firings, hurt, second_schedule
from pqrun import Call, PgJobStore, Schedules
from pqrun.job.record import NewJob
from tests.faults.serving import serving
from tests.faults.town import SLOW_MACHINE_SECONDS, Ledger, at_work
from tests.support.database import connected
from tests.support.proxy import Proxied, Proxy, proxied
from tests.support.replication import replicated
from tests.support.waiting import wait_until

NAME = "zebra"
"""Of a schedule: the statement that fires it is the only one that carries this name to the server."""


async def fired(connection: asyncpg.Connection, least: int) -> bool:
    return bool(await connection.fetchval("SELECT count(*) FROM pqrun.jobs WHERE scheduled_for IS NOT NULL") >= least)


async def test_three_processes_make_one_job_per_tick(
    store: PgJobStore, dsn: str, ledger: Ledger, connection: asyncpg.Connection
) -> None:
    async with at_work(dsn, ledger), at_work(dsn, ledger), at_work(dsn, ledger):
        await second_schedule(store)
        await wait_until(lambda: fired(connection, 5), seconds=SLOW_MACHINE_SECONDS)
        await Schedules(store).pause(SCHEDULE)
        counts = await count_firings(connection)
    assert counts == Counts(counts.expected, counts.expected, 0, 0)


async def test_workers_killed_at_random_neither_double_nor_miss_a_firing(dsn: str) -> None:
    counts = await hurt(dsn, workers=4, seconds=15, seed=7)
    assert counts.kills >= 3
    assert counts.expected >= 14
    assert (counts.seen, counts.doubled, counts.missed) == (counts.expected, 0, 0)


# Killed between noting the tick and inserting the job: at each step that one statement has on its way.


async def make_due(connection: asyncpg.Connection) -> datetime:
    planned = await connection.fetchval(
        "UPDATE pqrun.schedules SET next_at = clock_timestamp() WHERE name = $1 RETURNING next_at", NAME
    )
    await connection.execute("SELECT pg_notify('pqrun', 'schedules')")
    assert isinstance(planned, datetime)
    return planned


async def jobs_for(connection: asyncpg.Connection, planned: datetime) -> int:
    return int(await connection.fetchval("SELECT count(*) FROM pqrun.jobs WHERE scheduled_for = $1", planned))


async def zebra(store: PgJobStore, **options: Any) -> None:
    job = NewJob(job_type="work", payload='{"key": "zebra"}')
    await Schedules(store).add(NAME, Call(job, lambda _: None, lambda _: None), cron="0 0 1 1 *", **options)


async def about_to_fire(proxy: Proxy, connection: asyncpg.Connection) -> tuple[Proxied, datetime]:
    """Let the worker behind the proxy fire once, then hold its next statement back before it reaches the server."""
    first = await make_due(connection)
    await wait_until(lambda: jobs_for(connection, first))
    (one,) = proxy.open("pqrun schedule")
    one.to_server.stop_before = NAME.encode()
    planned = await make_due(connection)
    await one.to_server.held.wait()
    return one, planned


@pytest.mark.parametrize("step", ["before the statement", "within the statement", "before the answer"])
async def test_a_scheduler_that_is_killed_at_any_step_of_a_tick_leaves_one_job_for_it(
    store: PgJobStore, dsn: str, ledger: Ledger, connection: asyncpg.Connection, step: str
) -> None:
    await zebra(store)
    async with proxied(dsn) as proxy, at_work(proxy.dsn, ledger) as victim:
        one, planned = await about_to_fire(proxy, connection)
        assert await jobs_for(connection, planned) == 0
        if step == "within the statement":
            async with connected(dsn) as other, other.transaction():
                await other.execute("LOCK TABLE pqrun.jobs_active IN EXCLUSIVE MODE")
                one.to_server.stop_before = b""
                one.to_server.resume()
                await wait_until(lambda: is_waiting(connection))
                victim.send(signal.SIGKILL)
                await victim.end()
        elif step == "before the answer":
            one.to_client.stall()
            one.to_server.stop_before = b""
            one.to_server.resume()
            await wait_until(lambda: jobs_for(connection, planned))
        if step != "within the statement":
            victim.send(signal.SIGKILL)
            await victim.end()
    async with at_work(dsn, ledger):
        await wait_until(lambda: jobs_for(connection, planned), seconds=SLOW_MACHINE_SECONDS)
        after = await make_due(connection)  # the next tick works
        await wait_until(lambda: jobs_for(connection, after), seconds=SLOW_MACHINE_SECONDS)
    assert await jobs_for(connection, planned) == 1


async def is_waiting(connection: asyncpg.Connection) -> bool:
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pqrun schedule' AND wait_event_type = 'Lock'"
    )
    return bool(await connection.fetchval(query))


@pytest.mark.parametrize("step", ["before the statement", "before the answer"])
async def test_a_scheduler_whose_connection_breaks_at_a_tick_makes_one_job_and_goes_on(
    store: PgJobStore, dsn: str, ledger: Ledger, connection: asyncpg.Connection, step: str
) -> None:
    await zebra(store)
    async with proxied(dsn) as proxy, at_work(proxy.dsn, ledger):
        one, planned = await about_to_fire(proxy, connection)
        if step == "before the answer":
            one.to_client.stall()
            one.to_server.stop_before = b""
            one.to_server.resume()
            await wait_until(lambda: jobs_for(connection, planned))
        one.reset()
        await wait_until(lambda: jobs_for(connection, planned), seconds=SLOW_MACHINE_SECONDS)
        after = await make_due(connection)
        await wait_until(lambda: jobs_for(connection, after), seconds=SLOW_MACHINE_SECONDS)
    assert [await jobs_for(connection, moment) for moment in (planned, after)] == [1, 1]


async def test_a_server_that_crashes_and_comes_back_loses_and_doubles_no_firing(ledger: Ledger) -> None:
    async with serving() as server, at_work(server.dsn, ledger), at_work(server.dsn, ledger):
        async with PgJobStore(server.dsn) as store:
            await second_schedule(store)
            await Schedules(store).edit(SCHEDULE, catch_up="all")
        async with connected(server.dsn) as connection:
            await wait_until(lambda: fired(connection, 3), seconds=SLOW_MACHINE_SECONDS)
        await server.end(signal.SIGQUIT)
        await server.start()
        async with connected(server.dsn) as connection:
            before = await connection.fetchval("SELECT count(*) FROM pqrun.jobs")
            await wait_until(lambda: fired(connection, before + 3), seconds=SLOW_MACHINE_SECONDS)
            await connection.execute("UPDATE pqrun.schedules SET paused_at = now()")
            counts = await count_firings(connection)
    assert counts == Counts(counts.expected, counts.expected, 0, 0)


@pytest.mark.parametrize("synchronous", [True, False], ids=["synchronous", "asynchronous"])
async def test_a_failover_loses_and_doubles_no_firing(ledger: Ledger, synchronous: bool) -> None:
    async with replicated(synchronous=synchronous) as pair:
        await PgJobStore(pair.dsn).migrate()
        async with at_work(pair.dsn, ledger), at_work(pair.dsn, ledger):
            async with PgJobStore(pair.dsn) as store:
                await second_schedule(store)
                await Schedules(store).edit(SCHEDULE, catch_up="all")
            async with connected(pair.primary_dsn) as connection:
                await wait_until(lambda: fired(connection, 3), seconds=SLOW_MACHINE_SECONDS)
            await pair.wait_replayed()  # the schedule itself must have arrived; of ticks any number may be lost
            pair.kill_primary()
            await pair.promote()
            async with connected(pair.primary_dsn) as connection:
                before = await connection.fetchval("SELECT count(*) FROM pqrun.jobs")
                await wait_until(lambda: fired(connection, before + 3), seconds=SLOW_MACHINE_SECONDS)
                await connection.execute("UPDATE pqrun.schedules SET paused_at = now()")
                counts = await count_firings(connection)
    assert counts == Counts(counts.expected, counts.expected, 0, 0)


async def test_the_last_ticks_job_still_holds_the_key_and_the_scheduler_goes_on(
    store: PgJobStore, dsn: str, ledger: Ledger, connection: asyncpg.Connection
) -> None:
    job = NewJob(job_type="work", payload='{"key": "long", "how": "sleep", "seconds": 3600}', dedupe_key="k")
    await Schedules(store).add("long", Call(job, lambda _: None, lambda _: None), every=timedelta(seconds=1))
    await second_schedule(store)
    async with at_work(dsn, ledger, "--concurrency", "4") as worker:
        await ledger.wait_for("start", "long")
        await worker.wait_line("schedule long skipped .*: an active job has its dedupe key")
        ticks = len(ledger.lines("end", "tick"))
        await ledger.wait_for("end", "tick", count=ticks + 2)
        assert ledger.starts("long") == 1
        await store.cancel(
            await connection.fetchval("SELECT id FROM pqrun.jobs WHERE dedupe_key = 'k' AND status = 'RUNNING'")
        )
        await ledger.wait_for("start", "long", count=2)
        worker.send(signal.SIGKILL)
