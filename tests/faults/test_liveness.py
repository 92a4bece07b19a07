"""A dead worker is noticed fast, a live one is never suspected: real processes, signals and connections that are cut."""

import itertools
import signal
import statistics
import time
from collections.abc import Callable

import asyncpg
import pytest

from pqrun.job.record import Job
from pqrun.job.state import Status
from pqrun.store import PgJobStore
from tests.cli.running import Command
from tests.faults.town import Ledger, Server, at_work, backends, cut, enqueue, finished, pause
from tests.support.waiting import wait_until

EAGER = {"WORKER_STALE_TIMEOUT": "2"}
"""An observer that condemns after 2 s whom no session lock proves alive."""

LONGER_THAN_ALL_LIMITS = 4.0


def was_never_suspected(observer: Command, *jobs: Job, ledger: Ledger) -> None:
    """Nobody was taken for dead, and each job has run once, to its end."""
    assert "is dead" not in observer.output
    assert "recovered" not in observer.output
    for job in jobs:
        assert (job.status, job.attempts, job.lost) == (Status.DONE, 1, 0)
    assert ledger.starts() == len(jobs)


async def test_jobs_of_a_killed_worker_start_elsewhere_within_seconds(
    store: PgJobStore, dsn: str, ledger: Ledger
) -> None:
    async with at_work(dsn, ledger, "--worker-id", "victim") as victim:
        job_id = await enqueue(store, "a", "first-sleep", 3600, timeout=3600)  # no timeout is waited for
        await ledger.wait_for("start", "a")
        async with at_work(dsn, ledger, "--worker-id", "heir") as heir:
            victim.send(signal.SIGKILL)
            await ledger.wait_for("start", "a", count=2, seconds=20)
            job = await finished(store, job_id)
            assert "worker victim is dead" in heir.output
    assert (job.status, job.attempts, job.locked_by, job.lost) == (Status.DONE, 2, "heir", 1)
    assert job.last_error is not None
    assert "lost its worker once (last: victim)" in job.last_error


@pytest.mark.parametrize("seconds", [6.0, pytest.param(60.0, marks=pytest.mark.slow)])
async def test_a_handler_that_blocks_the_loop_costs_nobody_a_job_and_is_reported(
    store: PgJobStore, dsn: str, ledger: Ledger, seconds: float
) -> None:
    async with at_work(dsn, ledger, "--concurrency", "4") as blocked:
        others = [await enqueue(store, key, "sleep", seconds / 2) for key in "abc"]
        for key in "abc":
            await ledger.wait_for("start", key)
        blocker = await enqueue(store, "blocker", "block", seconds)
        await ledger.wait_for("start", "blocker")
        async with at_work(dsn, ledger, env=EAGER) as observer:
            line = (await blocked.wait_line("event loop has been blocked")).string
            assert not ledger.lines("end", "blocker")  # told while it blocks
            ended = [await finished(store, job_id) for job_id in (*others, blocker)]
            was_never_suspected(observer, *ended, ledger=ledger)
        told = await blocked.wait_line(r"blocked for (\d+\.\d) s by work id=\d+ attempt=1/5, and runs again")
        assert seconds - 1 < float(told[1]) < seconds + 5
    assert f"by work id={blocker};" in line
    assert "time.sleep(seconds)" in line


@pytest.mark.parametrize("seconds", [5.0, pytest.param(10.0, marks=pytest.mark.slow)])
async def test_a_database_that_stands_still_makes_nobody_dead(server: Server, ledger: Ledger, seconds: float) -> None:
    dsn = await server.make_database()
    async with PgJobStore(dsn) as store, at_work(dsn, ledger) as worker:
        job_id = await enqueue(store, "a", "sleep", seconds + 2)
        await ledger.wait_for("start", "a")
        async with at_work(dsn, ledger, env=EAGER) as observer:
            server.pause()
            await pause(seconds)
            server.resume()
            was_never_suspected(observer, await finished(store, job_id), ledger=ledger)
            assert "is dead" not in worker.output


@pytest.mark.parametrize(
    "how",
    [pytest.param(signal.SIGINT, marks=pytest.mark.slow, id="fast"), pytest.param(signal.SIGQUIT, id="immediate")],
)
async def test_a_database_that_is_restarted_makes_nobody_dead_and_no_outcome_is_lost(
    server: Server, ledger: Ledger, how: signal.Signals
) -> None:
    dsn = await server.make_database()
    async with at_work(dsn, ledger) as worker:
        async with PgJobStore(dsn) as store:
            job_id = await enqueue(store, "a", "sleep", 0.5)  # ends while nobody can write it
            await ledger.wait_for("start", "a")
        async with at_work(dsn, ledger, env=EAGER) as observer:
            await server.shut_down(how)
            await ledger.wait_for("end", "a")
            await pause(1)
            await server.start_again()
            async with PgJobStore(dsn) as store:
                was_never_suspected(observer, await finished(store, job_id), ledger=ledger)
                await enqueue(store, "b")
                await ledger.wait_for("end", "b")
            assert "is dead" not in worker.output


async def test_a_worker_whose_connections_are_all_cut_at_once_is_not_taken_for_dead(
    store: PgJobStore, dsn: str, ledger: Ledger, connection: asyncpg.Connection
) -> None:
    async with at_work(dsn, ledger) as worker:
        job_id = await enqueue(store, "a", "sleep", LONGER_THAN_ALL_LIMITS)
        await ledger.wait_for("start", "a")
        of_the_worker = await backends(connection)
        assert len(of_the_worker) >= 2
        async with at_work(dsn, ledger, env=EAGER) as observer:
            await cut(connection, of_the_worker)
            was_never_suspected(observer, await finished(store, job_id), ledger=ledger)
            assert "is dead" not in worker.output


async def test_a_worker_that_loses_a_connection_again_and_again_is_not_taken_for_dead(
    store: PgJobStore, dsn: str, ledger: Ledger, connection: asyncpg.Connection
) -> None:
    async with at_work(dsn, ledger, env=EAGER) as observer:
        await pause(1)
        of_the_observer = await backends(connection)
        async with at_work(dsn, ledger, "--worker-id", "harassed"):
            await enqueue(store, "warm")
            await enqueue(store, "long", "sleep", LONGER_THAN_ALL_LIMITS)
            for turn in itertools.count():
                if ledger.lines("end", "long") or turn == 15:
                    break
                await pause(0.3)
                if victims := sorted(await backends(connection) - of_the_observer):
                    await cut(connection, {victims[turn % len(victims)]})
            await ledger.wait_for("end", "long")
            await wait_until(lambda: _is_quiet(connection))
            assert "is dead" not in observer.output
            assert ledger.starts("long") == 1


async def _is_quiet(connection: asyncpg.Connection) -> bool:
    return not await connection.fetchval("SELECT count(*) FROM pqrun.jobs_active")


async def test_neither_a_worker_that_only_waits_nor_one_beside_an_observer_that_slept_is_taken_for_dead(
    dsn: str, ledger: Ledger
) -> None:
    async with (
        at_work(dsn, ledger, "--worker-id", "victim") as victim,
        at_work(dsn, ledger, "--worker-id", "idle") as idle,
        at_work(dsn, ledger, env=EAGER) as observer,
    ):
        observer.send(signal.SIGSTOP)
        await pause(4)
        observer.send(signal.SIGCONT)
        await pause(1.5)
        assert "is dead" not in observer.output
        victim.send(signal.SIGKILL)
        # By one of the two, after longer than all limits; for so long they have observed each other, too.
        await wait_until(lambda: "worker victim is dead" in idle.output + observer.output)
        assert (idle.output + observer.output).count("is dead") == 1


@pytest.mark.slow
async def test_from_a_kill_to_the_start_elsewhere_it_takes_less_than_five_seconds(
    store: PgJobStore, dsn: str, ledger: Ledger, record_testsuite_property: Callable[[str, object], None]
) -> None:
    took: list[float] = []
    async with at_work(dsn, ledger, "--concurrency", "4") as heir:
        for turn in range(20):
            async with at_work(dsn, ledger) as victim:
                heir.send(signal.SIGSTOP)  # so that the victim gets the job
                await enqueue(store, f"{turn}", "first-sleep", 3600)
                await ledger.wait_for("start", f"{turn}")
                heir.send(signal.SIGCONT)
                await pause(3)  # what it has slept through must not count
                killed = time.time()
                victim.send(signal.SIGKILL)
                took.append((await ledger.wait_for("start", f"{turn}", count=2)).at - killed)
                await ledger.wait_for("end", f"{turn}")
    record_testsuite_property("kill_to_start_p50_seconds", round(statistics.median(took), 2))
    record_testsuite_property("kill_to_start_max_seconds", round(max(took), 2))
    assert max(took) < 5.0
