"""Whole workers on a real database: how they start, share, survive and stop."""

import asyncio
import contextlib
import gc
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from pqrun.errors import ConfigurationError, DatabaseUnavailableError, SchemaError, StoreError
from pqrun.job.policy import IdlePollPolicy
from pqrun.job.state import Status
from pqrun.run import events
from pqrun.run.context import CancelReason, JobContext
from pqrun.store import PgJobStore
from pqrun.worker import Worker
from tests.run.working import AtOnce, kick_everybody_out, stored, wait_finished, working
from tests.support.database import Databases, connected
from tests.support.rows import make_job, make_worker
from tests.support.waiting import Recorder, wait_until

Context = JobContext[Any]

DOOMED = Path(__file__).parent / "doomed.py"


async def quick(ctx: Context) -> dict[str, object]:
    return {"attempt": ctx.job.attempts}


class Hanging:
    """Runs until it is cancelled; a deaf one until it is let go."""

    def __init__(self, *, is_deaf: bool = False) -> None:
        self.is_deaf = is_deaf
        self.started = asyncio.Event()
        self.go = asyncio.Event()
        self.reasons: list[CancelReason | None] = []

    async def __call__(self, ctx: Context) -> None:
        self.started.set()
        while not self.go.is_set():
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.reasons.append(ctx.cancel_reason)
                if not self.is_deaf:
                    raise

    async def wait_started(self) -> None:
        await asyncio.wait_for(self.started.wait(), 30)


def steps(heard: Recorder) -> list[str]:
    return [event.step for event in heard.of(events.WorkerStopping)]


# Working.


async def test_jobs_from_before_and_after_the_start_are_done(store: PgJobStore) -> None:
    before = await store.enqueue("t", {})
    async with working(store, {"t": quick}) as crew:
        await crew.heard.wait_for(events.Done)
        after = await store.enqueue("t", {})
        for job_id in (before, after):
            job = await wait_finished(store, job_id)
            assert (job.status, job.attempts, job.result) == (Status.DONE, 1, {"attempt": 1})
            assert job.locked_by == crew.worker.worker_id


async def test_many_jobs_are_each_done_once(store: PgJobStore) -> None:
    ran: list[int] = []

    async def note(ctx: Context) -> None:
        ran.append(ctx.job.id)

    ids = [await store.enqueue("t", {}) for _ in range(300)]
    async with working(store, {"t": note}, concurrency=5) as crew:
        await crew.heard.wait_for(events.Done, count=300)
    assert sorted(ran) == ids
    assert not crew.heard.of(events.Released)


async def test_two_workers_share_the_work(store: PgJobStore) -> None:
    both = asyncio.Barrier(2)

    async def meet(ctx: Context) -> None:
        async with asyncio.timeout(30):
            await both.wait()  # passes only when the other worker runs one too

    ids = [await store.enqueue("t", {}, max_attempts=1) for _ in range(10)]
    async with (
        working(store, {"t": meet}, worker_id="one"),
        working(store, {"t": meet}, worker_id="two"),
    ):
        ended = [await wait_finished(store, job_id) for job_id in ids]
    assert {(job.status, job.attempts) for job in ended} == {(Status.DONE, 1)}
    assert sorted(str(job.locked_by) for job in ended) == ["one"] * 5 + ["two"] * 5


async def test_retries_end_failed_with_a_bounded_traceback(store: PgJobStore) -> None:
    async def fail(ctx: Context) -> None:
        raise ValueError("x" * 100_000 + f"\x00 attempt {ctx.job.attempts}")

    job_id = await store.enqueue("t", {}, max_attempts=3)
    async with working(store, {"t": fail}, backoff=AtOnce()) as crew:
        job = await wait_finished(store, job_id)
    assert (job.status, job.attempts) == (Status.FAILED, 3)
    assert len(crew.heard.of(events.Retrying)) == 2
    assert job.last_error is not None
    assert job.last_error.startswith("Traceback")
    assert job.last_error.endswith("\\x00 attempt 3")
    assert len(job.last_error) <= 20_000
    assert job.finished_at is not None
    assert job.locked_by is None


async def test_an_unknown_job_type_stays_ready_and_is_told_once_and_costs_nothing(store: PgJobStore) -> None:
    unknown = await store.enqueue("gone", {}, priority=10)
    known = await store.enqueue("t", {})
    async with working(store, {"t": quick}, reap_stale_every_seconds=0.02) as crew:
        await wait_finished(store, known)
        assert await crew.heard.wait_for(events.Unserved) == events.Unserved("default", "gone")
        reaper = crew.heard
        for _ in range(3):
            again = await store.enqueue("t", {})
            await wait_finished(store, again)
    assert len(reaper.of(events.Unserved)) == 1
    job = await stored(store, unknown)
    assert (job.status, job.attempts) == (Status.READY, 0)
    async with working(store, {"gone": quick}):
        assert (await wait_finished(store, unknown)).status is Status.DONE


async def test_an_outcome_is_acknowledged_before_the_next_start_with_ack_sync(store: PgJobStore) -> None:
    seen: list[Status | None] = []
    ids: list[int] = []

    async def look_back(ctx: Context) -> None:
        last = ids[ids.index(ctx.job.id) - 1] if ctx.job.id != ids[0] else None
        if last is not None:
            seen.append((await stored(ctx.store, last)).status)

    ids += [await store.enqueue("t", {}) for _ in range(6)]
    async with working(store, {"t": look_back}, ack="sync") as crew:
        await crew.heard.wait_for(events.Done, count=6)
    assert seen == [Status.DONE] * 5


async def test_a_running_job_is_cancelled_on_request(store: PgJobStore) -> None:
    hanging = Hanging()
    job_id = await store.enqueue("t", {})
    async with working(store, {"t": hanging}) as crew:
        await hanging.wait_started()
        await store.cancel(job_id)
        assert (await wait_finished(store, job_id)).status is Status.CANCELLED
        await crew.heard.wait_for(events.JobCancelled)
    assert hanging.reasons == ["cancelled"]


async def test_a_handler_whose_row_was_deleted_is_told_that_the_claim_is_lost(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    hanging = Hanging()
    job_id = await store.enqueue("t", {})
    async with working(store, {"t": hanging}) as crew:
        await hanging.wait_started()
        await connection.execute("DELETE FROM pqrun.jobs WHERE id = $1", job_id)
        await crew.heard.wait_for(events.ClaimLost)
    assert hanging.reasons == ["claim_lost"]
    assert await store.get(job_id) is None


async def test_a_handed_in_pool_is_enough(dsn: str) -> None:
    async with asyncpg.create_pool(dsn, min_size=0, max_size=4) as pool, PgJobStore(pool=pool) as store:
        async with working(store, {"t": quick}) as crew:
            await crew.heard.wait_for(events.WorkerStarted)
            job_id = await store.enqueue("t", {})
            assert (await wait_finished(store, job_id)).status is Status.DONE
        assert crew.heard.of(events.WorkerStopped)[0].clean


# Starting.


async def test_a_worker_whose_database_is_unreachable_at_the_start_raises() -> None:
    worker = Worker(store=PgJobStore("postgresql://127.0.0.1:1/nothing"), handlers={"t": quick}, environ={})
    with pytest.raises(DatabaseUnavailableError, match=r"127\.0\.0\.1:1"):
        await asyncio.wait_for(worker.run(), 60)
    with pytest.raises(DatabaseUnavailableError):
        async with asyncio.timeout(60), worker.lifespan():
            pytest.fail("it did not start")


async def test_without_a_schema_it_raises_and_works_once_there_is_one(empty_dsn: str) -> None:
    store = PgJobStore(empty_dsn)
    worker = Worker(store=store, handlers={"t": quick}, environ={})
    for _ in range(2):
        with pytest.raises(SchemaError):
            async with asyncio.timeout(60), worker.lifespan():
                pytest.fail("it did not start")
    await store.migrate()
    async with asyncio.timeout(60), worker.lifespan():
        job_id = await store.enqueue("t", {})
        assert (await wait_finished(store, job_id)).status is Status.DONE


async def test_a_disabled_worker_opens_the_store_and_runs_nothing(dsn: str) -> None:
    store = PgJobStore(dsn)
    worker = Worker(store=store, handlers={"t": quick}, enabled=False, environ={})
    await asyncio.wait_for(worker.run(), 30)
    assert not store.is_open
    async with worker.lifespan():
        job_id = await store.enqueue("t", {})
        assert (await stored(store, job_id)).status is Status.READY
    assert not store.is_open


async def test_one_worker_cannot_run_twice_at_once_but_again_later(store: PgJobStore) -> None:
    async with working(store, {"t": quick}) as crew:
        await crew.heard.wait_for(events.WorkerStarted)
        with pytest.raises(ConfigurationError, match="runs already"):
            await crew.worker.run()
    async with crew.worker.lifespan():
        job_id = await store.enqueue("t", {})
        assert (await wait_finished(store, job_id)).status is Status.DONE


async def test_a_stop_before_the_run_makes_it_a_short_one(store: PgJobStore) -> None:
    worker = Worker(store=store, handlers={"t": quick}, environ={})
    worker.stop()
    await asyncio.wait_for(worker.run(), 10)


async def test_resources_that_cannot_be_opened_are_told_to_whoever_runs_it(store: PgJobStore) -> None:
    async def fail() -> None:
        raise ValueError("no such bucket")

    @asynccontextmanager
    async def resources() -> AsyncIterator[object]:
        await fail()
        yield None

    worker = Worker.for_tasks(store=lambda: store, handlers={}, resources=lambda: resources, environ={})
    with pytest.raises(ValueError, match="no such bucket"):
        await worker.run()


# Stopping.


async def test_it_stops_in_order_and_gives_back_what_hangs_without_counting_it(store: PgJobStore) -> None:
    hanging = Hanging()
    job_id = await store.enqueue("t", {}, max_attempts=1)
    waiting = await store.enqueue("t", {})
    async with working(store, {"t": hanging}, shutdown_grace=0.01) as crew:
        await hanging.wait_started()
        await crew.stopped()
    assert steps(crew.heard) == ["stop fetching", "wait", "cancel", "flush"]
    assert hanging.reasons == ["shutdown"]
    assert isinstance(crew.heard.seen[-1], events.WorkerStopped)
    assert crew.heard.seen[-1].clean
    for one in (job_id, waiting):
        job = await stored(store, one)
        assert (job.status, job.attempts, job.claim_id, job.locked_by, job.locked_at) == (
            Status.READY,
            0,
            None,
            None,
            None,
        )
    async with working(store, {"t": quick}):
        assert (await wait_finished(store, job_id)).result == {"attempt": 1}


async def test_a_handler_that_ends_within_the_grace_is_done(store: PgJobStore) -> None:
    hanging = Hanging()
    job_id = await store.enqueue("t", {})
    async with working(store, {"t": hanging}) as crew:
        await hanging.wait_started()
        crew.worker.stop()
        await wait_until(lambda: "wait" in steps(crew.heard))
        hanging.go.set()
        await crew.stopped()
    assert steps(crew.heard) == ["stop fetching", "wait", "flush"]
    assert (await stored(store, job_id)).status is Status.DONE


@pytest.mark.parametrize(
    ("grace", "expected"),
    [
        (0.02, ["stop fetching", "wait", "cancel", "flush"]),  # given up after the grace
        (0.6, ["stop fetching", "wait", "cancel", "give up", "flush"]),  # given up because the time is over
    ],
)
async def test_a_handler_that_ignores_everything_holds_nothing_up_and_its_job_is_given_back(
    store: PgJobStore, grace: float, expected: list[str]
) -> None:
    deaf = Hanging(is_deaf=True)
    job_id = await store.enqueue("t", {})
    async with working(store, {"t": deaf}, shutdown_grace=grace, shutdown_timeout=1) as crew:
        await deaf.wait_started()
        await crew.stopped()
        assert steps(crew.heard) == expected
        assert crew.heard.of(events.WorkerStopped)[0].clean
        job = await stored(store, job_id)
        assert (job.status, job.attempts) == (Status.READY, 0)
        deaf.go.set()
        await crew.heard.wait_for(events.LateReturn)
    assert deaf.reasons == ["shutdown"]


async def test_a_thread_that_never_ends_does_not_hold_up_the_stop(store: PgJobStore) -> None:
    started, go = threading.Event(), threading.Event()

    def block(ctx: Context) -> None:
        started.set()
        go.wait(60)

    job_id = await store.enqueue("t", {})
    async with working(store, {"t": block}, shutdown_grace=0.05, shutdown_timeout=1) as crew:
        await wait_until(started.is_set)
        await crew.stopped()
        assert (await stored(store, job_id)).status is Status.READY
        go.set()
        await crew.heard.wait_for(events.LateReturn)
    assert (await stored(store, job_id)).status is Status.READY


async def test_a_second_stop_cuts_the_grace_short(store: PgJobStore) -> None:
    hanging = Hanging()
    await store.enqueue("t", {})
    async with working(store, {"t": hanging}, shutdown_grace=1800, shutdown_timeout=3600) as crew:
        await hanging.wait_started()
        crew.worker.stop()
        await wait_until(lambda: "wait" in steps(crew.heard))
        await crew.stopped()
    assert hanging.reasons == ["shutdown"]


async def test_a_cancelled_run_cleans_up_first(store: PgJobStore) -> None:
    hanging = Hanging()
    job_id = await store.enqueue("t", {})
    worker = Worker(store=store, handlers={"t": hanging}, shutdown_grace=1800, shutdown_timeout=3600, environ={})
    run = asyncio.create_task(worker.run())
    await hanging.wait_started()
    run.cancel()
    done, _ = await asyncio.wait({run}, timeout=60)
    assert done
    assert run.cancelled()
    assert (await stored(store, job_id)).status is Status.READY


async def test_it_can_be_stopped_from_another_thread(store: PgJobStore) -> None:
    async with working(store, {"t": quick}) as crew:
        await crew.heard.wait_for(events.WorkerStarted)
        thread = threading.Thread(target=crew.worker.stop)
        thread.start()
        assert crew.run is not None
        await asyncio.wait_for(asyncio.shield(crew.run), 60)
        thread.join()


async def test_an_idle_worker_leaves_the_registry_when_it_stops(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    async with working(store, {"t": quick}) as crew:
        await crew.heard.wait_for(events.WorkerStarted)
        assert await connection.fetchval("SELECT count(*) FROM pqrun.workers WHERE dead_at IS NULL") == 1
        await crew.stopped()
    assert await connection.fetchval("SELECT count(*) FROM pqrun.workers WHERE dead_at IS NULL") == 0
    assert steps(crew.heard) == ["stop fetching", "flush"]


async def test_the_stop_is_bounded_while_nobody_can_connect(databases: Databases, dsn: str) -> None:
    name = urlsplit(dsn).path[1:]
    hanging = Hanging()
    store = PgJobStore(dsn)
    async with connected(databases.admin_dsn) as admin, store:
        await store.enqueue("t", {})
        async with working(store, {"t": hanging}, shutdown_grace=0.05, shutdown_timeout=2) as crew:
            await hanging.wait_started()
            await admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
            await kick_everybody_out(admin, name)
            await crew.stopped()
        assert not crew.heard.of(events.WorkerStopped)[0].clean
        await admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')


# Surviving.


async def test_a_worker_whose_connections_are_all_cut_goes_on(databases: Databases, dsn: str) -> None:
    hanging = Hanging()
    async with connected(databases.admin_dsn) as admin, PgJobStore(dsn) as store:
        running = await store.enqueue("hang", {})
        async with working(store, {"t": quick, "hang": hanging}, concurrency=2) as crew:
            await hanging.wait_started()
            for _ in range(2):
                await kick_everybody_out(admin, urlsplit(dsn).path[1:])
                job_id = await _enqueued(store)
                assert (await wait_finished(store, job_id)).attempts == 1
            hanging.go.set()
            ended = await wait_finished(store, running)
        assert (ended.status, ended.attempts) == (Status.DONE, 1)
        assert not crew.heard.of(events.ClaimLost)


async def _enqueued(store: PgJobStore) -> int:
    """Enqueue, again while the pool still hands out what was cut."""
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(StoreError):
                return await store.enqueue("t", {})


async def test_jobs_of_a_worker_that_was_killed_are_recovered_by_another(store: PgJobStore, dsn: str) -> None:
    job_id = await store.enqueue("stay", {})
    last = await store.enqueue("stay", {}, max_attempts=1, priority=-1)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(DOOMED),
        dsn,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
    )
    assert process.stdout is not None
    async with asyncio.timeout(60):
        assert await process.stdout.readline() == f"running {job_id}\n".encode()
        async with working(store, {"stay": quick}, worker_id="heir") as crew:
            await crew.heard.wait_for(events.WorkerStarted)
            process.send_signal(signal.SIGKILL)
            await process.wait()
            job = await wait_finished(store, job_id)
            other = await wait_finished(store, last)
    assert (job.status, job.attempts, job.locked_by, job.lost) == (Status.DONE, 2, "heir", 1)
    assert job.last_error is not None
    assert "lost its worker once (last: doomed)" in job.last_error
    assert (other.status, other.attempts) == (Status.DONE, 1)  # it was never started there
    assert [event.worker_id for event in crew.heard.of(events.WorkerDied)] == ["doomed"]
    (told,) = crew.heard.of(events.Recovered)
    assert (told.job_id, told.worker_id, told.status) == (job_id, "doomed", "READY")


async def test_rows_left_by_the_dead_and_by_nobody_are_settled_at_the_start(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    dead = await make_worker(connection, "gone", dead=True)
    last = await make_job(connection, status=Status.RUNNING, job_type="t", worker=dead, attempts=5)
    again = await make_job(connection, status=Status.RUNNING, job_type="t", worker=dead, attempts=1)
    old = await make_job(connection, status=Status.RUNNING, job_type="t", timeout_seconds=1.0)
    young = await make_job(connection, status=Status.RUNNING, job_type="t")
    await connection.execute("UPDATE pqrun.jobs SET locked_at = locked_at - interval '1 minute' WHERE id = $1", old)
    async with working(store, {"t": quick}) as crew:
        failed = await wait_finished(store, last)
        assert (failed.status, failed.attempts) == (Status.FAILED, 5)
        assert "lost its worker" in (failed.last_error or "")
        assert failed.finished_at is not None
        for job_id in (again, old):
            done = await wait_finished(store, job_id)
            assert (done.status, done.attempts) == (Status.DONE, 2)
    assert {event.job_id for event in crew.heard.of(events.Recovered)} == {last, again, old}
    assert (await stored(store, young)).status is Status.RUNNING


async def test_a_lost_job_that_only_others_can_run_keeps_no_worker_from_its_own(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    foreign = await make_job(connection, job_type="gone", lost=1, attempts=1)
    async with working(store, {"t": quick}):
        for _ in range(3):
            assert (await wait_finished(store, await store.enqueue("t", {}))).status is Status.DONE
    assert (await stored(store, foreign)).status is Status.READY


async def test_without_a_reaper_nothing_is_recovered(store: PgJobStore, connection: asyncpg.Connection) -> None:
    dead = await make_worker(connection, "gone", dead=True)
    job_id = await make_job(connection, status=Status.RUNNING, job_type="t", worker=dead)
    async with working(store, {"t": quick}, enable_reaper=False) as crew:
        await wait_finished(store, await store.enqueue("t", {}))
    assert (await stored(store, job_id)).status is Status.RUNNING
    assert not crew.heard.of(events.Recovered)


async def test_a_worker_that_was_taken_for_dead_registers_anew_and_goes_on(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    async with working(store, {"t": quick}) as crew:
        await crew.heard.wait_for(events.WorkerStarted)
        await connection.execute("UPDATE pqrun.workers SET dead_at = clock_timestamp()")
        await wait_until(lambda: _alive(connection))
        assert (await wait_finished(store, await store.enqueue("t", {}))).status is Status.DONE


async def _alive(connection: asyncpg.Connection) -> int:
    return int(await connection.fetchval("SELECT count(*) FROM pqrun.workers WHERE dead_at IS NULL"))


async def test_a_handler_that_keeps_a_connection_does_not_hold_up_the_end(dsn: str, store: PgJobStore) -> None:
    deaf = Hanging(is_deaf=True)

    async def handler(ctx: Context) -> None:
        async with ctx.store.connection():
            await deaf(ctx)

    worker = Worker(
        store=PgJobStore(dsn), handlers={"t": handler}, environ={}, shutdown_grace=0.01, shutdown_timeout=1.0
    )
    heard = Recorder(worker.events)
    run = asyncio.create_task(worker.run())
    await store.enqueue("t", {})
    await deaf.wait_started()
    worker.stop()
    await heard.wait_for(events.WorkerStopped)
    try:
        await asyncio.wait_for(asyncio.shield(run), 5)  # closing a pool waits ten seconds for a lent connection
    finally:
        deaf.go.set()
        await run
    await heard.wait_for(events.LateReturn)


async def test_a_stop_that_waits_for_a_handler_leaves_no_task_behind(store: PgJobStore) -> None:
    hanging = Hanging()
    complaints: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["message"]))
    await store.enqueue("t", {})
    async with working(store, {"t": hanging}) as crew:
        await hanging.wait_started()
        crew.worker.stop()
        while "wait" not in steps(crew.heard):
            await crew.heard.wait_for(events.WorkerStopping, count=len(crew.heard.of(events.WorkerStopping)) + 1)
        hanging.go.set()
        assert crew.run is not None
        await crew.run  # by itself: a second call of stop would end the wait in another way
    gc.collect()
    assert complaints == []  # such as "Task was destroyed but it is pending!"


async def test_a_job_that_a_leaving_worker_could_not_give_back_is_recovered_soon(
    dsn: str, store: PgJobStore, connection: asyncpg.Connection
) -> None:
    hanging = Hanging()
    job_id = await store.enqueue("t", {})
    async with PgJobStore(dsn) as other, working(other, {"other": quick}) as heir:
        await heir.heard.wait_for(events.WorkerStarted)
        async with working(store, {"t": hanging}, shutdown_grace=0.01, shutdown_timeout=1) as crew:
            await hanging.wait_started()
            async with connection.transaction():
                await connection.execute("SELECT FROM pqrun.jobs WHERE id = $1 FOR UPDATE", job_id)
                await crew.stopped()
        assert not crew.heard.of(events.WorkerStopped)[0].clean
        recovered = await heir.heard.wait_for(events.Recovered, seconds=15)  # a sweep comes once a minute
    assert recovered.job_id == job_id


async def test_a_job_that_comes_back_is_found_soon_by_an_idle_worker_that_has_looked_beyond_it(
    dsn: str, store: PgJobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pqrun.run.cursor.TRAIL_SECONDS", 0.0)
    hanging = Hanging()
    job_id = await store.enqueue("t", {})
    async with working(store, {"t": hanging}, shutdown_grace=0.0) as crew:
        await hanging.wait_started()
        patient = IdlePollPolicy(600, 600)
        async with PgJobStore(dsn) as other, working(other, {"t": quick}, idle_policy=patient) as heir:
            await wait_finished(store, await store.enqueue("t", {}))
            await crew.stopped()
            async with asyncio.timeout(15):
                job = await wait_finished(store, job_id)
    assert (job.status, job.locked_by) == (Status.DONE, heir.worker.worker_id)
