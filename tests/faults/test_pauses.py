"""Pauses against workers at full speed, against deaths in the middle, and across a failover: real processes."""

import asyncio
import signal

import asyncpg
import pytest

from pqrun.job.state import Status
from pqrun.store import PgJobStore
from tests.faults.test_failover import migrated
from tests.faults.town import Ledger, at_work, enqueue, finished, pause, row
from tests.support.database import connected
from tests.support.waiting import wait_until

ROUNDS = 40
JOBS = 6_000

FILL = """
INSERT INTO pqrun.jobs (job_type, payload)
SELECT 'work', jsonb_build_object('key', 'k' || n, 'seconds', $2::double precision) FROM generate_series(1, $1::integer) n
"""

CLAIMED_MEANWHILE = "SELECT count(*) FROM pqrun.jobs WHERE locked_at > $1::timestamptz AND locked_at < $2::timestamptz"

LEFT = "SELECT count(*) FROM pqrun.jobs WHERE status IN ('READY', 'RUNNING')"


async def claims_go_on(connection: asyncpg.Connection) -> None:
    """Wait until workers have claimed something."""
    claims = "SELECT last_value FROM pqrun.claims_id_seq"
    before = await connection.fetchval(claims)

    async def is_more() -> bool:
        return bool(await connection.fetchval(claims) > before)

    await wait_until(is_more)


async def test_after_a_pause_no_worker_claims_however_fast_they_are(
    store: PgJobStore, dsn: str, connection: asyncpg.Connection, ledger: Ledger
) -> None:
    """A claim that began before the pause must not end after it: each round has its chance to catch one."""
    async with (
        at_work(dsn, ledger, "--concurrency", "5", "--log-level", "WARNING", is_waited_for=False),
        at_work(dsn, ledger, "--concurrency", "5", "--log-level", "WARNING", is_waited_for=False),
        at_work(dsn, ledger, "--concurrency", "1", "--log-level", "WARNING", is_waited_for=False),
    ):
        pauses = 0
        for number in range(ROUNDS):
            if await connection.fetchval(LEFT) < JOBS / 4:
                await connection.execute(FILL, JOBS, 0.0)
            await claims_go_on(connection)
            assert await (store.pause(task="work") if number % 2 else store.pause(queue="default"))
            (told,) = await store.paused()
            await pause(0.01)
            now = await connection.fetchval("SELECT clock_timestamp()")
            assert await connection.fetchval(CLAIMED_MEANWHILE, told.paused_at, now) == 0
            pauses += 1
            assert await (store.resume(task="work") if number % 2 else store.resume(queue="default"))
        assert pauses == ROUNDS
        await connection.execute("DELETE FROM pqrun.jobs WHERE status = 'READY'")


@pytest.mark.parametrize("when", ["paused", "resumed"])
async def test_a_worker_that_is_killed_with_claims_of_a_paused_queue_loses_none(
    store: PgJobStore, dsn: str, connection: asyncpg.Connection, ledger: Ledger, when: str
) -> None:
    async with at_work(dsn, ledger, "--worker-id", "victim", "--concurrency", "2") as victim:
        running = [await enqueue(store, key, "first-sleep", 3600) for key in "ab"]
        for key in "ab":
            await ledger.wait_for("start", key)
        async with at_work(dsn, ledger, "--worker-id", "heir", env={"IDLE_SECONDS": "3600"}):
            await store.pause(queue="default", reason="provider down")
            waiting = [await enqueue(store, key) for key in "cd"]
            if when == "resumed":
                await store.resume(queue="default")
            victim.send(signal.SIGKILL)
            if when == "paused":

                async def is_taken_back() -> bool:
                    query = "SELECT count(*) FROM pqrun.jobs WHERE status = 'READY' AND lost = 1"
                    return bool(await connection.fetchval(query) == len(running))

                await wait_until(is_taken_back, seconds=30)
                await pause(1.5)  # a beat, and looks of the heir's
                assert ledger.starts() == len(running)
                await store.resume(queue="default")
            ended = [await finished(store, job_id) for job_id in [*running, *waiting]]
    assert [(job.status, job.attempts) for job in ended] == [(Status.DONE, 2)] * 2 + [(Status.DONE, 1)] * 2
    assert ledger.starts() == 6


async def test_what_a_worker_holds_unstarted_goes_back_and_is_not_lost_when_it_dies_then(
    store: PgJobStore, dsn: str, connection: asyncpg.Connection, ledger: Ledger
) -> None:
    """The pause, the release of what is held and the kill come as close together as they can."""
    async with at_work(dsn, ledger, "--concurrency", "2", "--log-level", "WARNING", is_waited_for=False) as victim:
        await connection.execute(FILL, 100, 0.05)  # so few are held ahead: what was lost starts one by one
        await wait_until(lambda: ledger.starts() > 20)
        pausing = asyncio.create_task(store.pause(queue="default"))
        await wait_until(lambda: pausing.done())
        victim.send(signal.SIGKILL)
        await victim.end()
    async with at_work(dsn, ledger):
        await store.resume(queue="default")

        async def are_all_done() -> bool:
            return bool(await connection.fetchval("SELECT count(*) FROM pqrun.jobs WHERE status = 'DONE'") == 100)

        await wait_until(are_all_done, seconds=60)


async def test_a_pause_holds_across_a_failover_and_workers_read_it_anew(ledger: Ledger) -> None:
    async with migrated("synchronous") as pair, at_work(pair.dsn, ledger), PgJobStore(pair.dsn) as store:
        await finished(store, await enqueue(store, "before"))
        await store.pause(queue="default")
        await pair.wait_replayed()
        pair.kill_primary()
        await pair.promote()
        async with connected(pair.dsn) as connection:
            query = "SELECT id FROM pqrun.enqueue('work', '{\"key\": \"after\"}')"
            job_id = int(await connection.fetchval(query))
        await pause(2.5)  # the worker has connected again and looked
        assert (await row(store, job_id)).status is Status.READY
        assert await store.resume(queue="default")
        assert (await finished(store, job_id)).attempts == 1
