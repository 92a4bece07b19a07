"""A worker that comes back from the dead changes nothing: it was stopped, its jobs were recovered and ended elsewhere, and it goes on."""

import asyncio
import signal
from typing import Any

import asyncpg
import pytest

from pqrun.job.state import Status
from pqrun.run import events
from pqrun.run.context import JobContext
from pqrun.run.observe import SLOW_MOST_SECONDS
from pqrun.store import PgJobStore
from tests.faults.town import Ledger, at_work, enqueue, finished, row
from tests.run.working import working
from tests.support.waiting import wait_until

EAGER = {"WORKER_STALE_TIMEOUT": "2"}
"""An observer that condemns after 2 s whom no session lock proves alive."""


async def test_a_stopped_worker_that_goes_on_writes_nothing_about_jobs_that_ended_elsewhere(
    store: PgJobStore, dsn: str, ledger: Ledger, connection: asyncpg.Connection
) -> None:
    async with at_work(dsn, ledger, "--worker-id", "zombie", "--concurrency", "4") as zombie:
        returning = await enqueue(store, "returning", "first-sleep", 2)
        raising = await enqueue(store, "raising", "first-raise", 2)
        hanging = await enqueue(store, "hanging", "first-sleep", 3600)
        cancelling = await enqueue(store, "cancelling", "deaf", 2)
        for key in ("returning", "raising", "hanging", "cancelling"):
            await ledger.wait_for("start", key)
        await store.cancel(cancelling)
        await ledger.wait_for("ignored", "cancelling")  # it was told, and will acknowledge at its end
        zombie.send(signal.SIGSTOP)
        async with at_work(dsn, ledger, "--worker-id", "heir", env=EAGER) as heir:
            ended = [await finished(store, job_id) for job_id in (returning, raising, hanging, cancelling)]
            assert "worker zombie is dead" in heir.output
            heir.send(signal.SIGTERM)
            await heir.end()
        before = await _everything(connection)
        zombie.send(signal.SIGCONT)
        assert (await ledger.wait_for("cancelled", "hanging")).reason == "claim_lost"
        for job_id in (returning, raising, hanging, cancelling):
            await zombie.wait_line(f"claim lost work id={job_id} attempt=1/5")
        for key in ("returning", "cancelling"):
            assert ledger.lines(key=key)[-1].pid == zombie.process.pid
        await wait_until(lambda: _is_registered_anew(connection))  # its late beat did not bring the old row to life
        after = await _everything(connection)
        new = await finished(store, await enqueue(store, "afterwards"))
    assert before == after
    assert [(job.status, job.attempts, job.locked_by) for job in ended] == [
        (Status.DONE, 2, "heir"),
        (Status.DONE, 2, "heir"),
        (Status.DONE, 2, "heir"),
        (Status.CANCELLED, 1, None),
    ]
    assert (new.status, new.locked_by, new.attempts) == (Status.DONE, "zombie", 1)
    assert ledger.starts() == 4 + 3 + 1


@pytest.mark.parametrize(
    ("limit", "seconds"), [(2.0, 6), pytest.param(None, 45, marks=pytest.mark.slow)], ids=["eager", "by default"]
)
async def test_a_worker_whose_handler_holds_the_gil_is_taken_for_dead_by_the_slow_limit_and_its_end_is_refused(
    store: PgJobStore, dsn: str, ledger: Ledger, limit: float | None, seconds: int
) -> None:
    """Not even the keeper's thread runs, so nothing beats; the connection stands, so the session lock proves nothing."""
    env = {} if limit is None else {"WORKER_STALE_TIMEOUT": f"{limit:g}"}
    async with (
        at_work(dsn, ledger, "--worker-id", "holder") as holder,
        at_work(dsn, ledger, "--worker-id", "heir", env=env) as heir,
    ):
        heir.send(signal.SIGSTOP)  # so that the holder gets the job
        job_id = await enqueue(store, "a", "first-gil", seconds)
        first = await ledger.wait_for("start", "a")
        heir.send(signal.SIGCONT)
        second = await ledger.wait_for("start", "a", count=2)
        job = await finished(store, job_id)
        assert "worker holder is dead" in heir.output
        await holder.wait_line(f"claim lost work id={job_id} attempt=1/5")
        assert [line.pid for line in ledger.lines("end", "a")] == [heir.process.pid, holder.process.pid]
        assert await row(store, job_id) == job
        heir.send(signal.SIGTERM)
        await heir.end()
        new = await finished(store, await enqueue(store, "afterwards"))
    assert second.at - first.at > (limit or SLOW_MOST_SECONDS) - 1  # its last beat may have been a second before
    assert (job.status, job.attempts, job.locked_by, job.lost) == (Status.DONE, 2, "heir", 1)
    assert (new.status, new.attempts, new.locked_by) == (Status.DONE, 1, "holder")


async def _everything(connection: asyncpg.Connection) -> list[str]:
    return [text for (text,) in await connection.fetch("SELECT j::text FROM pqrun.jobs j ORDER BY id")]


async def _is_registered_anew(connection: asyncpg.Connection) -> bool:
    rows = await connection.fetch("SELECT dead_at IS NULL FROM pqrun.workers WHERE worker_id = 'zombie' ORDER BY id")
    return [is_alive for (is_alive,) in rows] == [False, True]


async def test_a_stopped_worker_whose_job_still_runs_elsewhere_does_not_disturb_it(
    store: PgJobStore, dsn: str, ledger: Ledger
) -> None:
    async with at_work(dsn, ledger, "--worker-id", "zombie") as zombie:
        job_id = await enqueue(store, "a", "sleep", 1.5)
        await ledger.wait_for("start", "a")
        zombie.send(signal.SIGSTOP)
        async with at_work(dsn, ledger, "--worker-id", "heir", env=EAGER) as heir:
            second = await ledger.wait_for("start", "a", count=2)
            assert second.pid == heir.process.pid
            zombie.send(signal.SIGCONT)
            await zombie.wait_line(f"claim lost work id={job_id}")
            during = await row(store, job_id)
            job = await finished(store, job_id)
    assert (during.status, during.locked_by, during.attempts) == (Status.RUNNING, "heir", 2)
    assert (job.status, job.attempts, job.result) == (Status.DONE, 2, {"pid": heir.process.pid, "attempt": 2})
    assert ledger.starts("a") == 2


async def test_a_job_that_the_same_process_claims_again_after_a_release_hears_nothing_of_its_first_run(
    store: PgJobStore,
) -> None:
    first_may_end, second_may_end = asyncio.Event(), asyncio.Event()
    first_runs, second_runs = asyncio.Event(), asyncio.Event()

    async def first(ctx: JobContext[Any]) -> dict[str, Any]:
        first_runs.set()
        while not first_may_end.is_set():
            try:
                await first_may_end.wait()
            except asyncio.CancelledError:
                continue
        return {"by": "first"}

    async def second(ctx: JobContext[Any]) -> dict[str, Any]:
        second_runs.set()
        await second_may_end.wait()
        return {"by": "second"}

    job_id = await store.enqueue("t", {})
    async with working(store, {"t": first}, worker_id="same", shutdown_grace=0.02) as one:
        await asyncio.wait_for(first_runs.wait(), 30)
        await one.stopped()
        async with working(store, {"t": second}, worker_id="same"):
            await asyncio.wait_for(second_runs.wait(), 30)
            running = await row(store, job_id)
            first_may_end.set()
            await one.heard.wait_for(events.LateReturn)
            assert await row(store, job_id) == running
            second_may_end.set()
            job = await finished(store, job_id)
    assert (job.status, job.result, job.attempts) == (Status.DONE, {"by": "second"}, 1)


async def test_of_two_workers_with_one_name_only_the_dead_one_loses_its_job(
    store: PgJobStore, dsn: str, ledger: Ledger
) -> None:
    async with at_work(dsn, ledger, "--worker-id", "twin") as victim:
        lost = await enqueue(store, "lost", "first-sleep", 3600)
        await ledger.wait_for("start", "lost")
        async with at_work(dsn, ledger, "--worker-id", "twin", "--concurrency", "2", env=EAGER) as survivor:
            kept = await enqueue(store, "kept", "sleep", 5)
            await ledger.wait_for("start", "kept")
            victim.send(signal.SIGKILL)
            again = await finished(store, lost)
            job = await finished(store, kept)
            assert "claim lost" not in survivor.output
    assert (again.status, again.attempts, again.result) == (
        Status.DONE,
        2,
        {"pid": survivor.process.pid, "attempt": 2},
    )
    assert (job.status, job.attempts, job.lost) == (Status.DONE, 1, 0)
    assert ledger.starts("kept") == 1
