"""What is kept of attempts by a real worker: each kind of failure, as users meet it."""

import asyncio
import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from pqrun import (
    Abort,
    App,
    CallNext,
    FailureKind,
    JobAttempt,
    JobContext,
    JobFailed,
    PgJobStore,
    RetryAfter,
    Snooze,
    Status,
)
from pqrun.run import events
from tests.public.at_work import AtOnce, InAnHour, at_work, low_level
from tests.support.waiting import wait_until

HERE = __name__


def fail(n: int) -> None:
    raise LookupError(f"nothing at {n}")


def place(attempt: JobAttempt) -> str:
    assert attempt.frame is not None
    return attempt.frame.rpartition(":")[0]


async def test_each_failed_attempt_is_there_until_the_job_is_done(jobs: App[None]) -> None:
    @jobs.task(max_attempts=5, backoff=AtOnce())
    async def flaky(ctx: JobContext) -> dict[str, int]:
        if ctx.job.attempts < 4:
            fail(ctx.job.attempts)
        return {"n": ctx.job.attempts}

    async with at_work(jobs, worker_id="w-7"):
        job = await flaky.defer()
        assert await job.result(30) == {"n": 4}
        kept = await job.attempts()
    assert [(one.number, one.kind, one.message, one.status_after) for one in kept] == [
        (n, FailureKind.ERROR, f"nothing at {n}", "SCHEDULED") for n in (1, 2, 3)
    ]
    assert {(one.worker, one.exception_type, place(one)) for one in kept} == {("w-7", "LookupError", f"{HERE}:fail")}
    assert len({one.fingerprint for one in kept}) == 1
    assert all("Traceback" in (one.traceback or "") for one in kept)
    assert all(one.started_at <= one.ended_at for one in kept)


async def test_without_async_it_is_the_same(jobs: App[None]) -> None:
    @jobs.task(max_attempts=1)
    def plain(ctx: JobContext) -> None:
        fail(1)

    async with at_work(jobs):
        job = await plain.defer()
        with pytest.raises(JobFailed):
            await job.result(30)
        (kept,) = await asyncio.to_thread(job.attempts_sync)
    assert (kept.kind, place(kept), kept.status_after) == (FailureKind.ERROR, f"{HERE}:fail", "FAILED")


async def test_under_middleware_the_innermost_function_of_the_user_counts_be_it_the_middlewares(
    jobs: App[None],
) -> None:
    @jobs.middleware
    async def refuse(ctx: JobContext, call_next: CallNext) -> object:
        if ctx.job.job_type == "unwanted":
            raise PermissionError("not here")
        return await call_next(ctx)

    @jobs.task(max_attempts=1)
    async def unwanted(ctx: JobContext) -> None: ...

    @jobs.task(max_attempts=1)
    def broken(ctx: JobContext) -> None:
        fail(1)

    async with at_work(jobs):
        handles = [await unwanted.defer(), await broken.defer()]
        for job in handles:
            with pytest.raises(JobFailed):
                await job.result(30)
        first, second = [(await job.attempts())[0] for job in handles]
    assert place(first).endswith("<locals>.refuse")
    assert place(second) == f"{HERE}:fail"


async def test_signals_are_errors_but_a_snooze_is_none(jobs: App[None]) -> None:
    raised: list[Callable[[], Exception]] = [
        lambda: Snooze(timedelta(0)),
        lambda: RetryAfter(timedelta(0), "too many"),
        lambda: Abort("no such user"),
    ]

    @jobs.task
    async def choose(ctx: JobContext) -> None:
        error = raised.pop(0)()
        raise error

    async with at_work(jobs):
        job = await choose.defer()
        with pytest.raises(JobFailed):
            await job.result(30)
        kept = await job.attempts()
    assert [(one.kind, one.exception_type, one.status_after) for one in kept] == [
        (FailureKind.ERROR, "pqrun.RetryAfter", "SCHEDULED"),
        (FailureKind.ERROR, "pqrun.Abort", "FAILED"),
    ]
    assert [one.number for one in kept] == [1, 2]


async def test_a_refused_payload_and_a_refused_result_are_errors(jobs: App[None]) -> None:
    @jobs.task
    async def count(ctx: JobContext, n: int) -> dict[str, int]:
        return {"n": "x"}  # type: ignore[dict-item]  # that is what is refused

    async with at_work(jobs):
        refused = await count.defer(n=1)
        undecodable = count.handle(await jobs.store.enqueue("count", {"n": "x"}))
        for job in (refused, undecodable):
            with pytest.raises(JobFailed):
                await job.result(30)
        kept = [(await job.attempts())[0] for job in (refused, undecodable)]
    assert [one.exception_type for one in kept] == ["pqrun.errors.ResultError", "pqrun.errors.PayloadDecodeError"]
    assert {(one.kind, one.frame) for one in kept} == {(FailureKind.ERROR, None)}


async def test_timeouts_of_a_task_are_one_group_wherever_they_strike(jobs: App[None]) -> None:
    @jobs.task(max_attempts=2, timeout=0.05, backoff=AtOnce())
    async def slow(ctx: JobContext) -> None:
        if ctx.job.attempts == 1:
            await asyncio.sleep(60)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise LookupError("while it was stopped") from None

    async with at_work(jobs):
        job = await slow.defer()
        with pytest.raises(JobFailed):
            await job.result(30)
        kept = await job.attempts()
        (group,) = await jobs.store.error_groups(job_type="slow")
    assert [(one.kind, one.exception_type) for one in kept] == [
        (FailureKind.TIMEOUT, "pqrun.errors.HandlerTimeout")
    ] * 2
    assert "while it was stopped" in (kept[1].traceback or "")
    assert (group.count, group.fingerprint, group.job_id) == (2, kept[0].fingerprint, job.id)


@pytest.mark.parametrize("swallows", [False, True])
async def test_a_cancelled_start_is_kept_as_cancelled_though_its_handler_returns(
    jobs: App[None], swallows: bool
) -> None:
    started = asyncio.Event()

    @jobs.task
    async def stubborn(ctx: JobContext) -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if not swallows:
                raise

    async with at_work(jobs):
        job = await stubborn.defer()
        await started.wait()
        await job.cancel()
        await wait_until(lambda: _has_ended(jobs.store, job.id))
        (kept,) = await job.attempts()
    assert (kept.kind, kept.status_after, kept.number) == (FailureKind.CANCELLED, "CANCELLED", 1)


async def test_a_start_that_a_shutdown_interrupts_is_released_and_one_that_waits_for_a_slot_is_not_kept(
    jobs: App[None],
) -> None:
    started = asyncio.Event()

    @jobs.task
    async def long(ctx: JobContext) -> None:
        started.set()
        await asyncio.sleep(60)

    async with jobs:
        handles = [await long.defer(), await long.defer()]
        async with jobs.worker(environ={}, shutdown_grace=0.0).lifespan():
            await started.wait()
        kept = [await job.attempts() for job in handles]
    assert [[(one.kind, one.status_after, one.number) for one in each] for each in kept] == [
        [(FailureKind.RELEASED, "READY", 1)],
        [],
    ]


async def test_what_cannot_be_stored_and_awkward_exceptions_are_kept(store: PgJobStore) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    async def handler(ctx: JobContext) -> dict[str, Any]:
        if ctx.job.payload["how"] == "mute":
            raise Mute
        raise ValueError("bad \x00 byte \ud83d end")

    async with low_level(store, {"t": handler}, backoff=InAnHour()) as told:
        ids = [await store.enqueue("t", {"how": how}) for how in ("mute", "text")]
        await told.wait_for(events.Retrying, count=2)
        mute, text = [(await store.attempts(job_id))[0] for job_id in ids]
    assert (mute.message, (mute.exception_type or "").rpartition(".")[2]) == ("<its text could not be read>", "Mute")
    assert text.message == "bad \\x00 byte \\ud83d end"


async def test_a_long_time_in_a_handler_is_its_duration(jobs: App[None]) -> None:
    @jobs.task(max_attempts=1)
    def slow(ctx: JobContext) -> None:
        time.sleep(0.2)
        os.stat("/nowhere/at/all")  # noqa: PTH116  # a compiled function

    async with at_work(jobs):
        job = await slow.defer()
        with pytest.raises(JobFailed):
            await job.result(30)
        (kept,) = await job.attempts()
    assert kept.duration_ms is not None
    assert kept.duration_ms >= 200
    assert kept.ended_at - kept.started_at == timedelta(milliseconds=kept.duration_ms)
    assert place(kept).endswith("<locals>.slow")


async def test_there_are_none_of_a_job_that_was_never_there(jobs: App[None], connection: asyncpg.Connection) -> None:
    @jobs.task
    async def t(ctx: JobContext) -> None: ...

    async with jobs:
        assert await t.handle(12345).attempts() == []


async def _has_ended(store: PgJobStore, job_id: int) -> bool:
    job = await store.get(job_id)
    return job is not None and job.status is Status.CANCELLED
