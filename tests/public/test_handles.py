"""Cancelling and retrying by hand, in every state a job can be in."""

import asyncio

import asyncpg
import pytest

from pqrun import App, CancelOutcome, JobCancelled, JobContext, JobFailed, RetryRefused, Status
from pqrun.run.events import Done, Picked
from tests.public.at_work import at_work
from tests.support.rows import make_job


async def row(connection: asyncpg.Connection, job_id: int) -> dict[str, object]:
    (found,) = await connection.fetch("SELECT * FROM pqrun.jobs WHERE id = $1", job_id)
    return dict(found)


@pytest.mark.parametrize("status", [Status.DONE, Status.FAILED, Status.CANCELLED])
async def test_cancelling_a_finished_job_changes_nothing_and_says_so(
    jobs: App[None], connection: asyncpg.Connection, status: Status
) -> None:
    @jobs.task
    async def t(ctx: JobContext) -> None: ...

    job_id = await make_job(connection, status=status)
    before = await row(connection, job_id)
    async with jobs:
        for _ in range(2):
            assert await t.handle(job_id).cancel() is CancelOutcome.ALREADY_FINISHED
    assert await row(connection, job_id) == before


@pytest.mark.parametrize("status", [Status.SCHEDULED, Status.READY])
async def test_a_cancelled_job_that_had_not_started_never_does_and_frees_its_key(
    jobs: App[None], connection: asyncpg.Connection, status: Status
) -> None:
    seen: list[int] = []

    @jobs.task(dedupe_key="k")
    async def t(ctx: JobContext) -> None:
        seen.append(ctx.job.id)

    job_id = await make_job(connection, status=status, dedupe_key="k")
    async with jobs:
        job = t.handle(job_id)
        assert await job.cancel() is CancelOutcome.CANCELLED
        stored = await job.job()
        assert (stored.status, stored.attempts) == (Status.CANCELLED, 0)
        assert stored.finished_at is not None
        assert await job.cancel() is CancelOutcome.ALREADY_FINISHED
    async with at_work(jobs):
        other = await t.defer()
        assert other.created
        await other.result(timeout=30)
    assert seen == [other.id]


async def test_an_unknown_id_is_told_apart_from_success(jobs: App[None]) -> None:
    @jobs.task
    async def t(ctx: JobContext) -> None: ...

    async with jobs:
        assert await t.handle(2**63 - 1).cancel() is CancelOutcome.NOT_FOUND


@pytest.mark.parametrize("obeys", [True, False])
async def test_a_running_job_that_is_cancelled_ends_so_whatever_its_handler_does(jobs: App[None], obeys: bool) -> None:
    reasons: list[str | None] = []

    @jobs.task
    async def hang(ctx: JobContext) -> dict[str, bool]:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            reasons.append(ctx.cancel_reason)
            if obeys:
                raise
        return {"late": True}

    async with at_work(jobs) as told:
        job = await hang.defer()
        await told.wait_for(Picked)
        assert await job.cancel() is CancelOutcome.REQUESTED
        with pytest.raises(JobCancelled):
            await job.result(timeout=30)
        stored = await job.job()
        assert (stored.status, stored.result, stored.locked_by) == (Status.CANCELLED, None, None)
    assert reasons == ["cancelled"]


async def test_a_failed_job_runs_again_by_hand_with_all_its_attempts(jobs: App[None]) -> None:
    is_broken = True

    @jobs.task(max_attempts=1)
    async def fragile(ctx: JobContext) -> dict[str, int]:
        if is_broken:
            raise ValueError("broken")
        return {"attempts": ctx.job.attempts}

    async with at_work(jobs):
        job = await fragile.defer()
        with pytest.raises(JobFailed):
            await job.result(timeout=30)
        is_broken = False
        await job.retry()
        assert await job.result(timeout=30) == {"attempts": 1}


@pytest.mark.parametrize("status", [Status.FAILED, Status.CANCELLED])
async def test_a_retried_job_is_due_at_once_and_keeps_what_went_wrong(
    jobs: App[None], connection: asyncpg.Connection, status: Status
) -> None:
    @jobs.task
    async def t(ctx: JobContext) -> None: ...

    job_id = await make_job(connection, status=status, attempts=5, last_error="ValueError: x")
    async with jobs:
        await t.handle(job_id).retry()
        stored = await t.handle(job_id).job()
        assert (stored.status, stored.attempts, stored.last_error) == (Status.READY, 0, "ValueError: x")
        assert (stored.finished_at, stored.duration_ms, stored.locked_at) == (None, None, None)
    async with at_work(jobs):
        await t.handle(job_id).result(timeout=30)


async def test_a_running_job_is_not_retried_and_runs_once(jobs: App[None]) -> None:
    may_end = asyncio.Event()

    @jobs.task
    async def slow(ctx: JobContext) -> None:
        await may_end.wait()

    async with at_work(jobs, concurrency=2) as told:
        job = await slow.defer()
        await told.wait_for(Picked)
        with pytest.raises(RetryRefused, match="RUNNING"):
            await job.retry(force=True)
        may_end.set()
        await job.result(timeout=30)
        assert (await job.job()).attempts == 1
        assert len(told.of(Picked)) == 1


async def test_a_done_job_is_retried_only_by_force(jobs: App[None], connection: asyncpg.Connection) -> None:
    @jobs.task
    async def count(ctx: JobContext) -> dict[str, int]:
        return {"id": ctx.job.id}

    async with at_work(jobs) as told:
        job = await count.defer()
        await job.result(timeout=30)
        before = await row(connection, job.id)
        with pytest.raises(RetryRefused, match="force=True"):
            await job.retry()
        assert await row(connection, job.id) == before
        await job.retry(force=True)
        await told.wait_for(Done, count=2)
        assert await job.result(timeout=30) == {"id": job.id}
