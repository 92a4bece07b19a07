"""Workers steered from outside, and killed, drained or replaced in the middle of it: real processes."""

import signal

import asyncpg
import pytest

from pqrun.job.registered import RegisteredWorker
from pqrun.job.state import Status
from pqrun.store import PgJobStore
from pqrun.workers import Workers
from tests.faults.town import Ledger, at_work, enqueue, finished, row
from tests.support.waiting import wait_until


async def living(store: PgJobStore) -> dict[str, RegisteredWorker]:
    return {one.worker_id: one for one in await store.list_workers() if one.dead_at is None}


async def says_that_it_claims_nothing(store: PgJobStore, name: str) -> None:
    async def is_so() -> bool:
        found = (await living(store)).get(name)
        return found is not None and not found.fetching

    await wait_until(is_so)


@pytest.mark.parametrize("order", ["pause", "drain"])
async def test_a_worker_killed_while_it_follows_loses_no_job_and_its_successor_starts_fresh(
    store: PgJobStore, dsn: str, ledger: Ledger, order: str
) -> None:
    """What was wanted of the old row is not wanted of the new one, though it has the same name."""
    workers = Workers(store)
    async with at_work(dsn, ledger, "--worker-id", "web-1", "--concurrency", "1") as victim:
        running = await enqueue(store, "a", "first-sleep", 3600)
        await ledger.wait_for("start", "a")
        waiting = await enqueue(store, "b")
        (number,) = await (workers.set("web-1", fetching=False) if order == "pause" else workers.drain("web-1"))
        await says_that_it_claims_nothing(store, "web-1")
        victim.send(signal.SIGKILL)
        await victim.end()
    async with at_work(dsn, ledger, "--worker-id", "web-1", "--concurrency", "1"):
        ended = [await finished(store, job_id) for job_id in (running, waiting)]
        one = (await living(store))["web-1"]
        assert (one.id > number, one.fetching, one.wanted) == (True, True, {})
        assert number not in await workers.set("web-1", fetching=False)
    assert [(job.status, job.attempts) for job in ended] == [(Status.DONE, 2), (Status.DONE, 1)]


async def test_orders_to_a_worker_that_is_stopped_are_followed_when_it_goes_on(
    store: PgJobStore, dsn: str, connection: asyncpg.Connection, ledger: Ledger
) -> None:
    """Its process stands still when it is told to drain: nothing is lost, and the other worker goes on meanwhile."""
    async with (
        at_work(dsn, ledger, "--worker-id", "one") as one,
        at_work(dsn, ledger, "--worker-id", "other") as other,
    ):
        one.send(signal.SIGSTOP)
        try:
            assert len(await Workers(store).drain("one")) == 1
            jobs = [await enqueue(store, key) for key in "abc"]
            for job_id in jobs:
                assert (await finished(store, job_id)).status is Status.DONE
        finally:
            one.send(signal.SIGCONT)

        async def is_over() -> bool:
            """Told before it was taken for dead, or after: then it registered anew, and nobody has told the new row."""
            if one.process.returncode is not None:
                return True
            found = (await living(store)).get("one")
            if found is not None and not found.wanted:
                await Workers(store).drain(found.id)
            return False

        await wait_until(is_over)
        assert await one.end() == 0
        assert other.process.returncode is None


async def test_the_process_of_a_drained_worker_ends_by_itself_when_its_jobs_have(
    store: PgJobStore, dsn: str, ledger: Ledger
) -> None:
    async with at_work(dsn, ledger, "--worker-id", "web-1", "--shutdown-grace", "60") as worker:
        running = await enqueue(store, "a", "sleep", 2.0)
        await ledger.wait_for("start", "a")
        await Workers(store).drain("web-1")
        await says_that_it_claims_nothing(store, "web-1")
        left = await enqueue(store, "b")
        assert (await row(store, running)).status is Status.RUNNING
        await worker.wait_line("worker web-1 was told to drain")
        assert await worker.end() == 0
    assert ((await row(store, running)).status, (await row(store, left)).status) == (Status.DONE, Status.READY)
