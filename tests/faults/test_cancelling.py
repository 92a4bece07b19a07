"""Cancelling a running job: it reaches the worker at once or by the next poll, and every race has one of two right ends, in both orders."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from pqrun.job.outcome import CancelOutcome, Done
from pqrun.job.record import Claim, Job
from pqrun.job.state import Status
from pqrun.run import events
from pqrun.run.context import JobContext
from pqrun.store import PgJobStore
from pqrun.store.statements import Statements
from pqrun.store.work import WorkStore
from tests.faults.town import finished, row
from tests.run.working import AtOnce, working
from tests.support.database import connected
from tests.support.rows import make_job, make_worker
from tests.support.waiting import wait_until

Context = JobContext[Any]

CANCEL = Statements("pqrun")["cancel"]

UNHEARD = "UPDATE pqrun.jobs_active SET cancel_requested_at = clock_timestamp() WHERE id = $1"
"""What ``cancel()`` writes about a running job, without its notification."""


class Handler:
    """Does as told once it may; notes why it was stopped."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.go = asyncio.Event()
        self.reasons: list[str | None] = []
        self.error: Exception | None = None

    async def __call__(self, ctx: Context) -> dict[str, Any]:
        self.started.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.reasons.append(ctx.cancel_reason)
            raise
        if self.error is not None:
            raise self.error
        return {"ok": True}

    async def wait_started(self) -> None:
        await asyncio.wait_for(self.started.wait(), 30)


@asynccontextmanager
async def locked(dsn: str, job_id: int) -> AsyncIterator[asyncpg.Connection]:
    """Somebody who has the job's row until the block ends, by a commit."""
    async with connected(dsn) as connection, connection.transaction():
        await connection.fetch("SELECT FROM pqrun.jobs_active WHERE id = $1 FOR UPDATE", job_id)
        yield connection


async def wait_for_a_waiter(connection: asyncpg.Connection, application: str) -> None:
    """Wait until a connection of this name waits for a lock."""

    async def is_waiting() -> bool:
        await connection.execute(
            "SELECT pg_stat_clear_snapshot()"
        )  # else a transaction sees the same activity for ever
        return bool(
            await connection.fetchval(
                "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() "
                "AND application_name LIKE $1 AND wait_event_type = 'Lock')",
                f"%{application}%",
            )
        )

    await wait_until(is_waiting)


async def test_a_cancel_reaches_the_worker_by_its_notification_alone(
    store: PgJobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pqrun.run.renew.RENEW_SECONDS", 3600.0)
    handler = Handler()
    job_id = await store.enqueue("t", {})
    async with working(store, {"t": handler}) as crew:
        await crew.heard.wait_for(events.WorkerStarted)
        await handler.wait_started()
        assert await store.cancel(job_id) is CancelOutcome.REQUESTED
        assert (await finished(store, job_id)).status is Status.CANCELLED
    assert handler.reasons == ["cancelled"]


async def test_a_cancel_whose_notification_is_not_heard_reaches_the_worker_by_the_next_poll(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    handler = Handler()
    job_id = await store.enqueue("t", {})
    async with working(store, {"t": handler}):
        await handler.wait_started()
        await connection.execute(UNHEARD, job_id)
        assert (await finished(store, job_id)).status is Status.CANCELLED
    assert handler.reasons == ["cancelled"]


# What a handler may come to, and what is then written when it comes before a cancel, as (status, what cancel says).
ENDS: dict[str, tuple[Status, CancelOutcome]] = {
    "completion": (Status.DONE, CancelOutcome.ALREADY_FINISHED),
    "last failure": (Status.FAILED, CancelOutcome.ALREADY_FINISHED),
    "failure": (Status.CANCELLED, CancelOutcome.CANCELLED),  # it had gone back to wait for its next attempt
    "timeout": (Status.FAILED, CancelOutcome.ALREADY_FINISHED),
    "shutdown": (Status.CANCELLED, CancelOutcome.CANCELLED),  # it had been given back
}


class Race:
    """One running job whose end comes when ``end`` is called."""

    def __init__(self, store: PgJobStore, how: str) -> None:
        self.store, self.how = store, how
        self.handler = Handler()
        if "failure" in how:
            self.handler.error = ValueError("as told")
        self.job_id = 0
        self.end: Callable[[], Awaitable[None]]

    @asynccontextmanager
    async def run(self) -> AsyncIterator["Race"]:
        timeout = 1.0 if self.how == "timeout" else None
        attempts = 1 if self.how in ("last failure", "timeout") else 3
        self.job_id = await self.store.enqueue("t", {}, timeout_seconds=timeout, max_attempts=attempts)
        async with working(self.store, {"t": self.handler}, shutdown_grace=0.01) as crew:
            self.end = self._end
            self._stop = crew.worker.stop
            await self.handler.wait_started()
            yield self

    async def _end(self) -> None:
        if self.how == "shutdown":
            self._stop()
        elif self.how != "timeout":  # which comes by itself
            self.handler.go.set()


@pytest.mark.parametrize("how", list(ENDS))
async def test_an_end_that_is_written_first_stands(store: PgJobStore, dsn: str, how: str) -> None:
    async with Race(store, how).run() as race:
        async with locked(dsn, race.job_id) as holder:
            await race.end()
            await wait_for_a_waiter(holder, "settle")
            cancelling = asyncio.create_task(store.cancel(race.job_id))
            await asyncio.sleep(0.05)  # it looks, finds the row locked, and looks again
            assert not cancelling.done()
        said = await cancelling
        job = await finished(store, race.job_id)
    # SKIP LOCKED may overtake whoever waits, in the instant in which the lock is free: then the request was first after all.
    assert (job.status, said) in [ENDS[how], (Status.CANCELLED, CancelOutcome.REQUESTED)]


@pytest.mark.parametrize("how", list(ENDS))
async def test_a_cancel_that_is_written_first_makes_every_end_a_cancelled_one(
    store: PgJobStore, dsn: str, how: str
) -> None:
    async with Race(store, how).run() as race:
        async with locked(dsn, race.job_id) as holder:
            await holder.fetch(CANCEL, race.job_id)
            await race.end()
            await wait_for_a_waiter(holder, "settle")  # the end has been handed in, and sees the request all the same
        job = await finished(store, race.job_id)
        assert await store.cancel(race.job_id) is CancelOutcome.ALREADY_FINISHED
    assert (job.status, job.result) == (Status.CANCELLED, None)
    assert job.attempts == 1
    assert job.finished_at is not None


@pytest.mark.parametrize("attempts", [1, 3])
async def test_a_recovery_that_comes_first_leaves_a_waiting_or_failed_job_to_the_cancel(
    store: PgJobStore, connection: asyncpg.Connection, attempts: int
) -> None:
    work, job_id = await _lost(store, connection, attempts)
    try:
        (reaped,) = await work.reap_lost()
        said = await store.cancel(job_id)
    finally:
        await work.close(1)
    job = await row(store, job_id)
    if attempts == 1:
        assert (reaped[3].status, said, job.status) == (Status.FAILED, CancelOutcome.ALREADY_FINISHED, Status.FAILED)
    else:
        assert (reaped[3].status, said, job.status) == (Status.READY, CancelOutcome.CANCELLED, Status.CANCELLED)


@pytest.mark.parametrize("attempts", [1, 3])
async def test_a_recovery_after_a_cancel_writes_cancelled(
    store: PgJobStore, dsn: str, connection: asyncpg.Connection, attempts: int
) -> None:
    work, job_id = await _lost(store, connection, attempts)
    try:
        async with locked(dsn, job_id) as holder:
            await holder.fetch(CANCEL, job_id)
            assert await work.reap_lost() == []  # it does not wait for the row, and looks again later
        (reaped,) = await work.reap_lost()
    finally:
        await work.close(1)
    assert reaped[3].status is Status.CANCELLED
    assert (await row(store, job_id)).status is Status.CANCELLED


async def _lost(store: PgJobStore, connection: asyncpg.Connection, attempts: int) -> tuple[WorkStore, int]:
    dead = await make_worker(connection, "gone", dead=True)
    job_id = await make_job(connection, status=Status.RUNNING, worker=dead, max_attempts=attempts)
    return WorkStore(store, worker_id="reaper"), job_id


async def test_cancels_and_completions_at_the_same_moment_each_have_one_end_and_nobody_meets_an_error(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    work = WorkStore(store, worker_id="w")
    jobs = [await row(store, await make_job(connection, status=Status.RUNNING)) for _ in range(200)]

    async def settle(job: Job) -> Status:
        (settled,) = await work.settle([Done(Claim(job.id, job.claim_id or 0), 1, '{"ok": true}')], [])
        return settled.status

    try:
        both = [await asyncio.gather(store.cancel(job.id), settle(job)) for job in jobs]
    finally:
        await work.close(1)
    for job, (said, written) in zip(jobs, both, strict=True):
        ended = await row(store, job.id)
        assert ended.status is written
        assert (said, written) in [
            (CancelOutcome.REQUESTED, Status.CANCELLED),
            (CancelOutcome.ALREADY_FINISHED, Status.DONE),
        ]


async def test_an_end_written_by_a_handler_in_its_own_transaction_meets_a_cancel_in_both_orders(
    store: PgJobStore, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pqrun.run.renew.RENEW_SECONDS", 3600.0)  # the handler is not told before it completes
    refused: list[str] = []
    may_end, waits = asyncio.Event(), asyncio.Event()

    async def complete(ctx: Context) -> None:
        if ctx.job.payload["order"] == "cancel first":
            await connection.execute(UNHEARD, ctx.job.id)
        async with store.transaction() as transaction:
            try:
                await ctx.complete({"ok": True}, connection=transaction)
            except Exception as error:
                refused.append(type(error).__name__)
                raise
            if ctx.job.payload["order"] == "completion first":
                waits.set()
                await may_end.wait()

    first = await store.enqueue("t", {"order": "completion first"})
    async with working(store, {"t": complete}, backoff=AtOnce()):
        await asyncio.wait_for(waits.wait(), 30)
        cancelling = asyncio.create_task(store.cancel(first))
        await asyncio.sleep(0.05)
        assert not cancelling.done()
        may_end.set()
        assert await cancelling is CancelOutcome.ALREADY_FINISHED
        second = await store.enqueue("t", {"order": "cancel first"})
        cancelled = await finished(store, second)
        done = await finished(store, first)
    assert (done.status, done.result) == (Status.DONE, {"ok": True})
    assert (cancelled.status, cancelled.attempts) == (Status.CANCELLED, 1)
    assert refused == ["CompletionRefused"]
