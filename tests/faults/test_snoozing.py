"""A worker is killed in the middle of a snooze: the job is snoozed, or its worker was lost; never both, and never lost itself."""

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg

from pqrun.job.state import Status
from pqrun.store import PgJobStore
from tests.faults.town import Ledger, at_work, enqueue, finished, row
from tests.store.locking import holding, wait_until_waiting
from tests.support.waiting import wait_until

SETTLING = """SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
                 AND application_name LIKE 'pqrun settle%'"""


def let_go(ledger: Ledger) -> None:
    """Let the handlers snooze."""
    Path(f"{ledger.path}.go").touch()


@asynccontextmanager
async def killed_while_snoozing(
    store: PgJobStore, dsn: str, ledger: Ledger, connection: asyncpg.Connection, seconds: float
) -> AsyncIterator[int]:
    """Give a job whose snooze has reached the database, where it waits for a lock, while its worker is dead."""
    async with at_work(dsn, ledger, "--worker-id", "killed") as worker:
        job_id = await enqueue(store, "a", "snooze", seconds)
        await ledger.wait_for("start", "a")
        async with holding(dsn, f"SELECT FROM pqrun.jobs WHERE id = {job_id} FOR UPDATE"):
            let_go(ledger)
            await wait_until_waiting(connection)
            worker.send(signal.SIGKILL)
            assert await worker.end() == -signal.SIGKILL
            yield job_id


async def test_a_snooze_that_was_on_its_way_is_written_once_though_its_worker_is_dead(
    store: PgJobStore, dsn: str, ledger: Ledger, connection: asyncpg.Connection
) -> None:
    async with killed_while_snoozing(store, dsn, ledger, connection, seconds=3600) as job_id:
        before = await row(store, job_id)
    await wait_until(lambda: _is_scheduled(store, job_id))
    snoozed = await row(store, job_id)
    assert (before.status, before.attempts, before.snoozes) == (Status.RUNNING, 1, 0)
    assert (snoozed.attempts, snoozed.snoozes, snoozed.lost, snoozed.claim_id) == (0, 1, 0, None)
    async with at_work(dsn, ledger, "--worker-id", "heir") as heir:
        await heir.wait_line("worker killed is dead")  # and there is nothing of it to recover
        assert await row(store, job_id) == snoozed
        await connection.execute("UPDATE pqrun.jobs SET run_after = clock_timestamp() WHERE id = $1", job_id)
        await enqueue(store, "b")  # its hint, and the next look for what is due
        job = await finished(store, job_id)
    assert (job.status, job.attempts, job.snoozes, job.lost, job.locked_by) == (Status.DONE, 1, 1, 0, "heir")
    assert (ledger.starts("a"), len(ledger.lines("end", "a"))) == (2, 1)


async def test_a_snooze_that_did_not_arrive_is_a_lost_worker_whose_job_may_snooze_anew(
    store: PgJobStore, dsn: str, ledger: Ledger, connection: asyncpg.Connection
) -> None:
    async with killed_while_snoozing(store, dsn, ledger, connection, seconds=0.01) as job_id:
        pids = [pid for (pid,) in await connection.fetch(SETTLING)]
        assert len(pids) == 1
        await connection.execute("SELECT pg_terminate_backend($1)", pids[0])
        await wait_until(lambda: _is_gone(connection))
    assert (await row(store, job_id)).status is Status.RUNNING
    async with at_work(dsn, ledger, "--worker-id", "heir"):
        job = await finished(store, job_id)
    # The first start counts, since the job may have killed its worker; the second snoozed, the third ended.
    assert (job.status, job.attempts, job.snoozes, job.lost) == (Status.DONE, 2, 1, 1)
    assert (ledger.starts("a"), len(ledger.lines("end", "a"))) == (3, 1)


async def _is_scheduled(store: PgJobStore, job_id: int) -> bool:
    return (await row(store, job_id)).status is Status.SCHEDULED


async def _is_gone(connection: asyncpg.Connection) -> bool:
    return not await connection.fetch(SETTLING)
