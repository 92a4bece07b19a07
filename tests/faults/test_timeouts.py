"""Handlers that do not stop when their time is over: whatever they do, the job is recorded once, as timed out, and others go on."""

import asyncio
import signal
import threading
from typing import Any

import asyncpg

from pqrun.job.record import Job
from pqrun.job.state import Status
from pqrun.run import events
from pqrun.run.context import JobContext
from pqrun.store import PgJobStore
from tests.faults.town import Ledger, at_work, enqueue, finished, row
from tests.run.working import AtOnce, working
from tests.support.waiting import wait_until

Context = JobContext[Any]


def has_timed_out(job: Job) -> bool:
    return job.last_error is not None and "ran longer than its timeout of 0.2 s" in job.last_error


async def test_a_handler_that_swallows_its_timeout_is_recorded_as_timed_out(store: PgJobStore) -> None:
    async def swallow(ctx: Context) -> dict[str, Any]:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            assert ctx.cancel_reason == "timeout"
        return {"late": 1}

    job_id = await store.enqueue("t", {}, timeout_seconds=0.2, max_attempts=2)
    async with working(store, {"t": swallow}, backoff=AtOnce()) as crew:
        job = await finished(store, job_id)
    assert (job.status, job.attempts, job.result) == (Status.FAILED, 2, None)
    assert has_timed_out(job)
    assert not crew.heard.of(events.Done)


async def test_cleanup_after_a_timeout_runs_to_its_end_before_the_failure_is_recorded(store: PgJobStore) -> None:
    cleaned = asyncio.Event()

    async def clean(ctx: Context) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.3)
            assert (await row(store, ctx.job.id)).status is Status.RUNNING
            cleaned.set()

    job_id = await store.enqueue("t", {}, timeout_seconds=0.2, max_attempts=1)
    async with working(store, {"t": clean}):
        job = await finished(store, job_id)
        assert cleaned.is_set()
    assert job.status is Status.FAILED
    assert has_timed_out(job)


async def test_a_handler_that_never_ends_loses_its_slot_and_is_not_started_again_beside_itself(
    store: PgJobStore, dsn: str, ledger: Ledger
) -> None:
    async with at_work(dsn, ledger, "--shutdown-grace", "0.3", "--shutdown-timeout", "5") as worker:
        deaf = await enqueue(store, "deaf", "deaf", 3600, timeout=0.2)
        await ledger.wait_for("ignored", "deaf")
        for key in ("b", "c"):  # the one slot is free again, while the deaf one still lives
            await enqueue(store, key)
            await ledger.wait_for("end", key)
        await worker.wait_line(f"failed work id={deaf}")
        job = await row(store, deaf)
        assert (job.status, job.attempts) in [(Status.SCHEDULED, 1), (Status.READY, 1)]
        assert has_timed_out(job)
        assert ledger.starts("deaf") == 1
        worker.send(signal.SIGTERM)
        assert await worker.end() == 0  # the event loop, too, does not wait for it
        assert "ERROR" not in worker.output
    assert ledger.starts("deaf") == 1


async def test_threads_that_never_end_are_replaced_up_to_a_limit_and_their_late_returns_refused(
    store: PgJobStore,
) -> None:
    go = threading.Event()
    starts: list[int] = []

    def hang(ctx: Context) -> dict[str, Any]:
        starts.append(ctx.job.id)
        go.wait(60)
        return {"late": 1}

    async def quick(ctx: Context) -> None:
        return None

    stuck = [await store.enqueue("hang", {}, timeout_seconds=0.2, max_attempts=1) for _ in range(2)]
    async with working(store, {"hang": hang, "t": quick}, concurrency=2, shutdown_grace=0.1) as crew:
        ended = [await finished(store, job_id) for job_id in stuck]
        third = await store.enqueue("hang", {})
        assert (await crew.heard.wait_for(events.ThreadsExhausted)).threads == 2
        assert (await finished(store, await store.enqueue("t", {}))).status is Status.DONE  # others are served
        assert (await row(store, third)).status is Status.READY
        go.set()
        await crew.heard.wait_for(events.LateReturn, count=2)
        assert (await finished(store, third)).status is Status.DONE  # threads may start again
        late = [await row(store, job_id) for job_id in stuck]
    assert starts == [*stuck, third]
    assert late == ended
    assert {job.status for job in ended} == {Status.FAILED}
    assert all(has_timed_out(job) for job in ended)


async def test_a_reaper_elsewhere_times_out_what_a_worker_with_a_blocked_loop_cannot(
    store: PgJobStore, dsn: str, ledger: Ledger, connection: asyncpg.Connection
) -> None:
    async with at_work(dsn, ledger, "--worker-id", "blocked") as blocked:
        job_id = await enqueue(store, "a", "first-block", 5, timeout=0.2)
        await ledger.wait_for("start", "a")
        # Instead of waiting: as if it had been running for so long.
        await connection.execute(
            "UPDATE pqrun.jobs SET locked_at = locked_at - interval '12 seconds' WHERE id = $1", job_id
        )
        async with at_work(dsn, ledger, "--worker-id", "heir", env={"WORKER_REAP_INTERVAL": "0.5"}):
            job = await finished(store, job_id)
            assert not ledger.lines("end", "a") or ledger.lines("end", "a")[0].attempt == 2
            await blocked.wait_line(f"claim lost work id={job_id} attempt=1/5")
        assert await row(store, job_id) == job
    assert (job.status, job.attempts, job.locked_by) == (Status.DONE, 2, "heir")
    assert has_timed_out(job)
    assert job.last_error is not None
    assert "its worker could not stop it" in job.last_error


async def test_the_worker_of_a_job_whose_timeout_a_reaper_wrote_is_told(store: PgJobStore) -> None:
    deaf_until, reasons = asyncio.Event(), list[str | None]()

    async def deaf(ctx: Context) -> None:
        while not deaf_until.is_set():
            try:
                await deaf_until.wait()
            except asyncio.CancelledError:
                reasons.append(ctx.cancel_reason)

    job_id = await store.enqueue("t", {}, timeout_seconds=3600, max_attempts=1)
    async with working(store, {"t": deaf}, reap_stale_every_seconds=0.2) as crew:
        await crew.heard.wait_for(events.Picked)
        async with store.connection() as connection:
            await connection.execute("UPDATE pqrun.jobs SET locked_at = locked_at - interval '2 hours'")
        assert (await finished(store, job_id)).status is Status.FAILED
        await wait_until(lambda: reasons)
        deaf_until.set()
    assert reasons == ["claim_lost"]
