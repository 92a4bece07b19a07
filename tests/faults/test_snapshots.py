"""A statement sees rows as they were when it began, and locks them as they are: what commits in between must not confuse it.

The statements are the real ones with a stop in the middle: they wait for an advisory lock that the test holds.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import asyncpg
import pytest

from pqrun.job.outcome import CancelOutcome, Done, Failed, Outcome, Released
from pqrun.job.record import Claim, Job
from pqrun.job.state import Status
from pqrun.store import PgJobStore
from pqrun.store.claiming import Lane
from pqrun.store.settling import settle
from pqrun.store.work import WorkStore
from tests.support.rows import make_worker
from tests.support.waiting import wait_until

T = TypeVar("T")

STOP = "(SELECT pg_advisory_xact_lock(7)) IS NOT NULL"
LOOKS = {
    "cancel": ("WHERE a.id = $1::bigint FOR UPDATE",),
    "settle": ("WHERE a.id = u.id AND a.claim_id", "WHERE u.is_end AND a.id = u.id"),
    "settle_done": ("WHERE a.id = u.id AND a.claim_id",),
}
"""Where each statement first looks at the row: a settle at what goes back, and at what ends."""

WHATS = ["a success", "another end", "a release"]


def outcome_of(what: str, claimed: Claim) -> Outcome:
    if what == "a success":
        return Done(claimed, 1, None)
    return Failed(claimed, 1, "x") if what == "another end" else Released(claimed, started=True, counted=False)


@pytest.fixture
async def work(store: PgJobStore, connection: asyncpg.Connection) -> AsyncIterator[WorkStore]:
    opened = WorkStore(store, worker_id="w")
    opened.register(await make_worker(connection, "w"))
    yield opened
    await opened.close(1.0)


async def claim(work: WorkStore) -> Claim:
    batch = await work.claim([(Lane("default", 0), 0)], ["t"], ["t"], [], limit=1, look=10, free=1)
    assert batch.jobs[0].claim_id is not None
    return Claim(batch.jobs[0].id, batch.jobs[0].claim_id)


@asynccontextmanager
async def stopped(connection: asyncpg.Connection) -> AsyncIterator[None]:
    """Statements with a stop wait until the end of the block."""
    await connection.execute("SELECT pg_advisory_lock(7)")
    yield
    await connection.execute("SELECT pg_advisory_unlock(7)")


async def begin(connection: asyncpg.Connection, call: Callable[[], Awaitable[T]]) -> "asyncio.Task[T]":
    """Start the call, and return when its statement has its snapshot and stands still."""

    async def run() -> T:
        return await call()

    task = asyncio.create_task(run())
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    await wait_until(lambda: connection.fetchval(waiting))
    return task


@pytest.fixture
async def late(dsn: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PgJobStore]:
    """A store whose statements stop where they look at the row."""
    async with PgJobStore(dsn) as opened:
        texts = {name: opened.statements[name] for name in opened.statements.names()}
        for name, looks in LOOKS.items():
            for look in looks:
                assert texts[name].count(look) == 1
                texts[name] = texts[name].replace(look, look.replace("WHERE", f"WHERE {STOP} AND"))
        monkeypatch.setattr(opened.statements, "_texts", texts)
        yield opened


async def found(store: PgJobStore, job_id: int) -> Job:
    job = await store.get(job_id)
    assert job is not None
    return job


async def test_a_cancel_that_began_before_the_claim_asks_the_worker(
    late: PgJobStore, store: PgJobStore, work: WorkStore, connection: asyncpg.Connection
) -> None:
    job_id = await store.enqueue("t", {})
    async with stopped(connection):
        cancelling = await begin(connection, lambda: late.cancel(job_id))
        claimed = await claim(work)
    assert await cancelling is CancelOutcome.REQUESTED
    job = await found(store, job_id)
    assert (job.status, job.claim_id) == (Status.RUNNING, claimed.claim_id)
    assert job.cancel_requested_at is not None


async def test_a_cancel_that_began_before_the_release_is_the_end(
    late: PgJobStore, store: PgJobStore, work: WorkStore, connection: asyncpg.Connection
) -> None:
    job_id = await store.enqueue("t", {})
    claimed = await claim(work)
    async with stopped(connection):
        cancelling = await begin(connection, lambda: late.cancel(job_id))
        await work.settle([Released(claimed, started=False, counted=False)], [])
    assert await cancelling is CancelOutcome.CANCELLED
    job = await found(store, job_id)
    assert (job.status, job.attempts, job.claim_id, job.locked_by) == (Status.CANCELLED, 0, None, None)


async def test_a_cancel_that_began_before_the_end_comes_too_late(
    late: PgJobStore, store: PgJobStore, work: WorkStore, connection: asyncpg.Connection
) -> None:
    job_id = await store.enqueue("t", {})
    claimed = await claim(work)
    async with stopped(connection):
        cancelling = await begin(connection, lambda: late.cancel(job_id))
        await work.settle([Done(claimed, 1, None)], [])
    assert await cancelling is CancelOutcome.ALREADY_FINISHED
    assert (await found(store, job_id)).status is Status.DONE


@pytest.mark.parametrize("what", WHATS)
async def test_what_began_before_the_cancel_is_cancelled(
    late: PgJobStore, store: PgJobStore, work: WorkStore, connection: asyncpg.Connection, what: str
) -> None:
    job_id = await store.enqueue("t", {})
    claimed = await claim(work)
    outcome = outcome_of(what, claimed)
    async with late.connection() as lent:
        async with stopped(connection):
            settling = await begin(connection, lambda: settle(late.session(lent), [outcome]))
            assert await store.cancel(job_id) is CancelOutcome.REQUESTED
        assert [settled.status for settled in await settling] == [Status.CANCELLED]
    assert (await found(store, job_id)).status is Status.CANCELLED


@pytest.mark.parametrize("what", WHATS)
async def test_what_began_before_the_job_was_claimed_anew_writes_nothing(
    late: PgJobStore, store: PgJobStore, work: WorkStore, connection: asyncpg.Connection, what: str
) -> None:
    job_id = await store.enqueue("t", {})
    lost = await claim(work)
    outcome = outcome_of(what, lost)
    async with late.connection() as lent:
        async with stopped(connection):
            settling = await begin(connection, lambda: settle(late.session(lent), [outcome]))
            await work.settle([Released(lost, started=False, counted=False)], [])
            claimed = await claim(work)
        assert await settling == []
    job = await found(store, job_id)
    assert (job.status, job.claim_id) == (Status.RUNNING, claimed.claim_id)
