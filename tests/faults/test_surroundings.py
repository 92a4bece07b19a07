"""What a worker process lives with: a wrong clock, handlers that raise what ends other programs; and the page that lists it all."""

import re
import signal
from pathlib import Path

import asyncpg
import pytest

from pqrun.job.state import Status
from pqrun.store import PgJobStore
from tests.faults.town import ROOT, Ledger, at_work, enqueue, finished, row


@pytest.mark.parametrize("seconds", [300, pytest.param(-300, marks=pytest.mark.slow)])
async def test_a_clock_that_is_minutes_off_delays_nothing_and_makes_nothing_stale(
    store: PgJobStore, dsn: str, ledger: Ledger, connection: asyncpg.Connection, seconds: int
) -> None:
    env = {"CLOCK_AHEAD": str(seconds), "WORKER_STALE_TIMEOUT": "2", "WORKER_REAP_INTERVAL": "0.5"}
    async with at_work(dsn, ledger, "--concurrency", "2", env=env) as worker:
        running = await enqueue(store, "running", "sleep", 2.5)
        failing = await enqueue(store, "failing", "first-raise")
        again = await finished(store, failing)
        job = await finished(store, running)
        assert "recovered" not in worker.output
    assert (again.status, again.attempts) == (Status.DONE, 2)
    assert (job.status, job.attempts) == (Status.DONE, 1)
    # run_after of the second attempt, and all other times, are the database's.
    assert await connection.fetchval(
        "SELECT bool_and(run_after <= locked_at AND locked_at <= finished_at AND finished_at BETWEEN now() - interval '1 minute' AND now()"
        " AND duration_ms >= 0) FROM pqrun.jobs"
    )


async def test_what_ends_other_programs_is_an_ordinary_failure_here(
    store: PgJobStore, dsn: str, ledger: Ledger
) -> None:
    async with at_work(dsn, ledger, "--concurrency", "2") as worker:
        beside = await enqueue(store, "beside", "sleep", 1)
        await ledger.wait_for("start", "beside")
        raised = {
            name: await enqueue(store, name, name, max_attempts=1) for name in ("exit", "interrupt", "odd", "raise")
        }
        for name, kind in zip(raised, ("SystemExit", "KeyboardInterrupt", "Odd", "ValueError"), strict=True):
            job = await finished(store, raised[name])
            assert (job.status, job.attempts) == (Status.FAILED, 1)
            assert job.last_error is not None
            assert kind in job.last_error
        assert (await finished(store, beside)).attempts == 1
        assert (await finished(store, await enqueue(store, "afterwards"))).status is Status.DONE
        worker.send(signal.SIGTERM)
        assert await worker.end() == 0


def test_the_page_of_failures_names_tests_that_exist() -> None:
    sources = "\n".join(path.read_text() for path in Path(__file__).parents[1].glob("**/test_*.py"))
    named = re.findall(r"`(test_\w+)`", (ROOT / "docs" / "failures.md").read_text())
    assert named
    assert [name for name in named if f"def {name}(" not in sources] == []


async def test_a_job_that_is_released_again_and_again_counts_from_the_tenth_time_on(
    store: PgJobStore, dsn: str, ledger: Ledger, connection: asyncpg.Connection
) -> None:
    job_id = await enqueue(store, "a", "sleep", 3600, max_attempts=1)
    counted: list[tuple[Status, int]] = []
    await connection.execute("UPDATE pqrun.jobs SET releases = 9 WHERE id = $1", job_id)  # instead of nine restarts
    for turn in (1, 2):
        async with at_work(dsn, ledger, "--shutdown-grace", "0.1") as worker:
            await ledger.wait_for("start", "a", count=turn)
            worker.send(signal.SIGTERM)
            assert await worker.end() == 0
        job = await row(store, job_id)
        counted.append((job.status, job.attempts))
    assert counted == [(Status.READY, 0), (Status.FAILED, 1)]
