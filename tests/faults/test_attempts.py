"""A worker is killed at each step of a start that does not succeed: the attempt is kept once, as what was written of it, or as lost."""

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from pqrun.job.record import Job
from pqrun.job.state import Status
from pqrun.store import PgJobStore
from tests.cli.running import Command
from tests.faults.test_snoozing import SETTLING, let_go
from tests.faults.town import Ledger, at_work, enqueue, finished, row
from tests.store.locking import holding, wait_until_waiting
from tests.support.waiting import wait_until


async def kept(store: PgJobStore, job_id: int) -> list[tuple[int, str, str | None]]:
    return [(one.number, one.kind.value, one.worker) for one in await store.attempts(job_id)]


async def assert_all_starts_are_accounted_for(store: PgJobStore, ledger: Ledger, key: str, job: Job) -> None:
    """Each start is the one that succeeded, or is kept, once."""
    attempts = await store.attempts(job.id)
    assert ledger.starts(key) == len(attempts) + (job.status is Status.DONE)
    assert [one.number for one in attempts] == list(range(1, len(attempts) + 1))


async def killed(worker: Command) -> None:
    worker.send(signal.SIGKILL)
    assert await worker.end() == -signal.SIGKILL


@asynccontextmanager
async def killed_while_failing(
    store: PgJobStore, dsn: str, ledger: Ledger, connection: asyncpg.Connection
) -> AsyncIterator[int]:
    """Give a job whose failure has reached the database, where it waits for a lock, while its worker is dead."""
    async with at_work(dsn, ledger, "--worker-id", "killed") as worker:
        job_id = await enqueue(store, "a", "first-told")
        await ledger.wait_for("start", "a")
        async with holding(dsn, f"SELECT FROM pqrun.jobs WHERE id = {job_id} FOR UPDATE"):
            let_go(ledger)
            await wait_until_waiting(connection)
            await killed(worker)
            yield job_id


async def test_a_worker_that_dies_in_a_handler_leaves_one_lost_attempt(
    store: PgJobStore, dsn: str, ledger: Ledger
) -> None:
    async with at_work(dsn, ledger, "--worker-id", "killed") as worker:
        job_id = await enqueue(store, "a", "first-sleep", 3600)
        await ledger.wait_for("start", "a")
        await killed(worker)
        assert await kept(store, job_id) == []
    async with at_work(dsn, ledger, "--worker-id", "heir"):
        job = await finished(store, job_id)
    assert await kept(store, job_id) == [(1, "lost", "killed")]
    await assert_all_starts_are_accounted_for(store, ledger, "a", job)


async def test_a_failure_that_was_on_its_way_is_kept_once_though_its_worker_is_dead(
    store: PgJobStore, dsn: str, ledger: Ledger, connection: asyncpg.Connection
) -> None:
    async with killed_while_failing(store, dsn, ledger, connection) as job_id:
        pass
    await wait_until(lambda: _is_scheduled(store, job_id))
    async with at_work(dsn, ledger, "--worker-id", "heir") as heir:
        await heir.wait_line("worker killed is dead")  # and there is nothing of it to recover
        job = await finished(store, job_id)
    assert (job.status, job.lost) == (Status.DONE, 0)
    assert await kept(store, job_id) == [(1, "error", "killed")]
    await assert_all_starts_are_accounted_for(store, ledger, "a", job)


async def test_a_failure_that_did_not_arrive_is_a_lost_attempt(
    store: PgJobStore, dsn: str, ledger: Ledger, connection: asyncpg.Connection
) -> None:
    async with killed_while_failing(store, dsn, ledger, connection) as job_id:
        (pid,) = [pid for (pid,) in await connection.fetch(SETTLING)]
        await connection.execute("SELECT pg_terminate_backend($1)", pid)
        await wait_until(lambda: _is_gone(connection))
    assert await kept(store, job_id) == []
    async with at_work(dsn, ledger, "--worker-id", "heir"):
        job = await finished(store, job_id)
    assert await kept(store, job_id) == [(1, "lost", "killed")]
    await assert_all_starts_are_accounted_for(store, ledger, "a", job)


async def test_a_worker_that_dies_after_it_has_written_a_failure_adds_none(
    store: PgJobStore, dsn: str, ledger: Ledger
) -> None:
    async with at_work(dsn, ledger, "--worker-id", "killed") as worker:
        job_id = await enqueue(store, "a", "raise", max_attempts=3)
        job = await finished(store, job_id)
        await killed(worker)
    async with at_work(dsn, ledger, "--worker-id", "heir") as heir:
        await heir.wait_line("worker killed is dead")
    assert job.status is Status.FAILED
    assert await kept(store, job_id) == [(n, "error", "killed") for n in (1, 2, 3)]
    await assert_all_starts_are_accounted_for(store, ledger, "a", job)


async def test_a_job_that_kills_each_worker_keeps_each_start(store: PgJobStore, dsn: str, ledger: Ledger) -> None:
    job_id = await enqueue(store, "a", "kill", max_attempts=2)
    for name in ("one", "two"):
        async with at_work(dsn, ledger, "--worker-id", name, is_waited_for=False) as worker:
            assert await worker.end() == -signal.SIGKILL
    async with at_work(dsn, ledger, "--worker-id", "heir"):
        job = await finished(store, job_id)
    assert await kept(store, job_id) == [(1, "lost", "one"), (2, "lost", "two")]
    assert (await row(store, job_id)).status is Status.FAILED
    await assert_all_starts_are_accounted_for(store, ledger, "a", job)


async def _is_scheduled(store: PgJobStore, job_id: int) -> bool:
    return (await row(store, job_id)).status is not Status.RUNNING


async def _is_gone(connection: asyncpg.Connection) -> bool:
    return not await connection.fetch(SETTLING)
