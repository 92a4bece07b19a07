"""SIGTERM in every situation: the worker ends within its limits, with its exit code, and nothing that could be written stays RUNNING."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import asyncpg
import pytest

from pqrun.job.record import Job
from pqrun.job.state import Status
from pqrun.store import PgJobStore
from tests.cli.running import Command
from tests.faults.town import Ledger, Server, at_work, cut, enqueue, finished, row
from tests.support.database import connected
from tests.support.waiting import wait_until

SHORT = ("--shutdown-grace", "0.5", "--shutdown-timeout", "3")

MARGIN_SECONDS = 7.0
"""For the interpreter's end, and a busy machine."""


async def terminated(command: Command, *, seconds: float) -> int:
    """Send SIGTERM, wait for the end, which must come within so many seconds and a margin; return the exit code."""
    command.send(signal.SIGTERM)
    began = time.monotonic()
    code = await command.end()
    assert time.monotonic() - began < seconds + MARGIN_SECONDS, command.output
    return code


def is_as_before(job: Job) -> bool:
    """Given back: due at once, owned by nobody, and no attempt counted."""
    return (job.status, job.attempts, job.locked_by, job.locked_at, job.claim_id) == (Status.READY, 0, None, None, None)


async def test_an_idle_worker_ends_at_once(dsn: str, ledger: Ledger) -> None:
    async with at_work(dsn, ledger, env={"IDLE_SECONDS": "3600"}) as worker:
        assert await terminated(worker, seconds=0) == 0
        assert "cancel" not in worker.output


async def test_what_ends_in_the_grace_is_done_what_does_not_goes_back_and_nothing_new_is_started(
    store: PgJobStore, dsn: str, ledger: Ledger
) -> None:
    async with at_work(dsn, ledger, "--concurrency", "2", "--shutdown-grace", "1.5") as worker:
        short = await enqueue(store, "short", "sleep", 0.7)
        long = await enqueue(store, "long", "sleep", 30, max_attempts=1)
        for key in ("short", "long"):
            await ledger.wait_for("start", key)
        waiting = [await enqueue(store, f"waiting-{n}") for n in range(10)]
        assert await terminated(worker, seconds=1.5) == 0
    assert (await row(store, short)).status is Status.DONE
    assert is_as_before(await row(store, long))
    assert ledger.lines("cancelled", "long")[0].reason == "shutdown"
    assert all([is_as_before(await row(store, job_id)) for job_id in waiting])
    assert ledger.starts() == 2


@asynccontextmanager
async def claim_held_up(dsn: str, store: PgJobStore, ledger: Ledger) -> AsyncIterator[int]:
    """A worker's claim that waits for a lock, and that will bring this job once the block ends."""
    await finished(store, await enqueue(store, "warm"))  # from now on the worker knows where jobs come from
    async with connected(dsn) as holder, holder.transaction():
        await holder.execute("LOCK TABLE pqrun.jobs_active IN EXCLUSIVE MODE")
        job_id = int(await holder.fetchval("SELECT id FROM pqrun.enqueue('work', '{\"key\": \"late\"}')"))
        async with connected(dsn) as other:
            await other.execute("SELECT pg_notify('pqrun', 'ready:0:default')")
            await wait_until(lambda: _does_a_claim_wait(other))
        yield job_id


async def _does_a_claim_wait(connection: asyncpg.Connection) -> bool:
    return bool(
        await connection.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' "
            "AND application_name ~ 'claim' AND query ~ 'READY . RUNNING for as many'"
        )
    )


async def test_a_claim_under_way_at_the_signal_gives_back_what_it_brings(
    store: PgJobStore, dsn: str, ledger: Ledger
) -> None:
    async with at_work(dsn, ledger) as worker:
        async with claim_held_up(dsn, store, ledger) as job_id:
            worker.send(signal.SIGTERM)
            await worker.wait_line("stop fetching")
        assert await worker.end() == 0
        assert f"released work id={job_id} attempt=1/5 before its start" in worker.output
    assert is_as_before(await row(store, job_id))
    assert ledger.starts("late") == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)])
async def test_a_claim_that_is_held_up_until_after_the_end_leaves_no_job_that_nobody_runs(
    store: PgJobStore, dsn: str, ledger: Ledger, number: signal.Signals
) -> None:
    async with at_work(dsn, ledger, *SHORT) as worker:
        async with claim_held_up(dsn, store, ledger) as job_id:
            worker.send(number)
            await worker.end()
        job = await recovered_elsewhere(dsn, ledger, job_id)
    assert job.status is Status.DONE
    assert ledger.starts("late") == 1


async def test_a_second_signal_cuts_the_grace_short(store: PgJobStore, dsn: str, ledger: Ledger) -> None:
    async with at_work(dsn, ledger, "--shutdown-grace", "3600", "--shutdown-timeout", "7200") as worker:
        job_id = await enqueue(store, "a", "sleep", 3600)
        await ledger.wait_for("start", "a")
        worker.send(signal.SIGTERM)
        await worker.wait_line("stopping: wait")
        assert await terminated(worker, seconds=0) == 0
    assert is_as_before(await row(store, job_id))


@pytest.mark.parametrize("how", ["deaf", "thread", "block"])
async def test_a_handler_that_never_ends_does_not_hold_the_process_and_its_job_is_given_back(
    store: PgJobStore, dsn: str, ledger: Ledger, how: str
) -> None:
    async with at_work(dsn, ledger, *SHORT) as worker:
        if how == "thread":
            job_id = await store.enqueue("thread", {"key": "a"})
        else:
            job_id = await enqueue(store, "a", how, 2 if how == "block" else 3600)
        await ledger.wait_for("start", "a")
        assert await terminated(worker, seconds=3) == 0
    job = await row(store, job_id)
    assert (
        job.status is Status.DONE if how == "block" else is_as_before(job)
    )  # the signal is heard when the loop runs again


async def recovered_elsewhere(dsn: str, ledger: Ledger, job_id: int) -> Job:
    """What becomes of a job whose release could not be written: the next worker takes it back."""
    async with PgJobStore(dsn) as store, at_work(dsn, ledger):
        return await finished(store, job_id)


@pytest.mark.parametrize("how", ["down", "hanging"])
async def test_the_end_is_bounded_while_the_database_is_away(server: Server, ledger: Ledger, how: str) -> None:
    dsn = await server.make_database()
    async with at_work(dsn, ledger, *SHORT) as worker:
        async with PgJobStore(dsn) as store:
            job_id = await enqueue(store, "a", "first-sleep", 3600)
            await ledger.wait_for("start", "a")
        if how == "down":
            await server.shut_down()
        else:
            server.pause()
        assert await terminated(worker, seconds=3) == 1
        assert "not written in time" in worker.output
    if how == "down":
        await server.start_again()
    else:
        server.resume()
    job = await recovered_elsewhere(dsn, ledger, job_id)
    assert job.status is Status.DONE
    assert job.attempts in (1, 2)  # a release that a hanging server had received may have been written after all


async def test_the_end_is_bounded_while_the_database_is_read_only(
    store: PgJobStore, dsn: str, ledger: Ledger, connection: asyncpg.Connection
) -> None:
    name = urlsplit(dsn).path[1:]
    async with at_work(dsn, ledger, *SHORT) as worker:
        job_id = await enqueue(store, "a", "first-sleep", 3600)
        await ledger.wait_for("start", "a")
        await connection.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
        try:
            await _cut_all_others(connection)
            assert await terminated(worker, seconds=3) == 1
        finally:
            await connection.execute("SET default_transaction_read_only = off")
            await connection.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
    job = await recovered_elsewhere(dsn, ledger, job_id)
    assert (job.status, job.attempts) == (Status.DONE, 2)


async def test_a_worker_that_cannot_register_tries_again_calmly_and_ends_when_told(
    dsn: str, ledger: Ledger, connection: asyncpg.Connection
) -> None:
    name = urlsplit(dsn).path[1:]
    await connection.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    try:
        async with at_work(dsn, ledger, *SHORT, "--log-level", "DEBUG", is_waited_for=False) as worker:
            await worker.wait_line(r"keep met an error \(4 in a row\)")
            assert worker.output.count("WARNING pqrun: keep met an error") == 1
            assert await terminated(worker, seconds=0) == 0
            assert len(worker.lines) < 50
    finally:
        await connection.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')


async def _cut_all_others(connection: asyncpg.Connection) -> None:
    rows = await connection.fetch(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    await cut(connection, {pid for (pid,) in rows})


async def test_a_signal_while_the_start_waits_for_the_database_ends_it_at_once(server: Server, ledger: Ledger) -> None:
    dsn = await server.make_database()
    server.pause()
    async with at_work(dsn, ledger, is_waited_for=False) as worker:
        await asyncio.sleep(1.5)  # by then it has connected, and waits for an answer: nothing tells
        assert await terminated(worker, seconds=0) == 0
        assert "stopped before the worker had started" in worker.output


async def test_an_outcome_that_waits_for_a_locked_row_is_written_before_the_end(
    store: PgJobStore, dsn: str, ledger: Ledger, connection: asyncpg.Connection
) -> None:
    async with at_work(dsn, ledger) as worker:
        job_id = await enqueue(store, "a", "sleep", 0.3)
        await ledger.wait_for("start", "a")
        async with connection.transaction():
            await connection.fetch("SELECT FROM pqrun.jobs_active WHERE id = $1 FOR UPDATE", job_id)
            await ledger.wait_for("end", "a")
            worker.send(signal.SIGTERM)
            await worker.wait_line("stopping: flush, 1 jobs")
        assert await worker.end() == 0
    assert (await row(store, job_id)).status is Status.DONE
