"""What a handler returns comes back as the declared type; how every other end is told to who waits for it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import asyncpg
import msgspec
import pydantic
import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

from pqrun import (
    App,
    CancelOutcome,
    JobCancelled,
    JobContext,
    JobFailed,
    JobNotFound,
    OptionError,
    ResultDecodeError,
    ResultTimeout,
    Status,
)
from pqrun.run.events import Picked
from tests.public.at_work import InAnHour, at_work


class Sent(BaseModel):
    message_id: str
    at: datetime | None = None


@pydantic.dataclasses.dataclass
class Order:
    lines: list[int]


@dataclass
class Ping:
    host: str


class Resized(msgspec.Struct):
    path: str
    width: int = 100


class Total(TypedDict):
    total: int


RESULTS: list[tuple[Any, object]] = [
    (Sent, Sent(message_id="m", at=datetime(2026, 1, 1, tzinfo=UTC))),
    (Order, Order(lines=[1])),
    (Ping, Ping("h")),
    (Resized, Resized("x", 3)),
    (Total, Total(total=3)),
    (dict[str, int], {"a": 1}),
    (dict[str, int], {}),
    (None, None),
]


async def test_a_result_of_every_kind_comes_back_equal(jobs: App[None], connection: asyncpg.Connection) -> None:
    def declare(number: int, declared: object, returned: object) -> Any:
        async def produce(ctx: JobContext) -> Any:
            return returned

        produce.__annotations__["return"] = declared
        return jobs.task(name=f"produce {number}")(produce)

    tasks = [declare(number, *pair) for number, pair in enumerate(RESULTS)]
    async with at_work(jobs):
        handles = [await task.defer() for task in tasks]
        results = [await handle.result(timeout=30) for handle in handles]
        assert results == [returned for _, returned in RESULTS]
        assert [type(result) for result in results] == [type(returned) for _, returned in RESULTS]
        rows = await connection.fetch("SELECT status, attempts, duration_ms, result FROM pqrun.jobs ORDER BY id")
        for row, (_, returned) in zip(rows, RESULTS, strict=True):
            assert (row["status"], row["attempts"]) == ("DONE", 1)
            assert row["duration_ms"] >= 0
            assert (row["result"] is None) is (returned is None)


async def test_many_wait_for_one_result_and_each_gets_a_value_of_its_own(jobs: App[None]) -> None:
    @jobs.task
    async def produce(ctx: JobContext) -> dict[str, int]:
        return {"a": 1}

    async with at_work(jobs):
        job = await produce.defer()
        results = await asyncio.gather(*(produce.handle(job.id).result(timeout=30) for _ in range(20)))
        results[0]["a"] = 2
        assert results[1:] == [{"a": 1}] * 19


async def test_a_handle_made_from_an_id_in_another_app_gives_the_typed_result(jobs: App[None], dsn: str) -> None:
    elsewhere: App[None] = App(dsn=dsn)

    async def send_email(ctx: JobContext, user_id: int) -> Sent:
        return Sent(message_id=f"m-{user_id}")

    worker_side, other_side = jobs.task(send_email), elsewhere.task(send_email)
    async with at_work(jobs), elsewhere:
        job = await worker_side.defer(7)
        handle = other_side.handle(job.id)
        assert await handle.result(timeout=30) == Sent(message_id="m-7")
        assert handle.id == job.id
        assert not handle.created


async def test_a_failed_job_tells_its_last_error(jobs: App[None]) -> None:
    @jobs.task(max_attempts=1)
    async def fail(ctx: JobContext) -> None:
        raise ValueError("no such mailbox")

    async with at_work(jobs):
        job = await fail.defer()
        with pytest.raises(JobFailed, match="ValueError: no such mailbox") as caught:
            await job.result(timeout=30)
        assert caught.value.job_id == job.id
        assert "Traceback" in (caught.value.last_error or "")
        row = await job.job()
        assert (row.status, row.attempts, row.locked_by, row.result) == (Status.FAILED, 1, None, None)
        assert row.finished_at is not None


async def test_a_job_with_attempts_left_is_scheduled_by_the_backoff(jobs: App[None]) -> None:
    @jobs.task(max_attempts=2, backoff=InAnHour())
    async def fail(ctx: JobContext) -> None:
        raise ValueError("not yet")

    async with at_work(jobs) as told:
        job = await fail.defer()
        await told.wait_for(Picked)
        with pytest.raises(ResultTimeout) as caught:
            await job.result(timeout=0.3)
        assert isinstance(caught.value, TimeoutError)
        row = await job.job()
        assert (row.status, row.attempts, row.locked_by, row.locked_at) == (Status.SCHEDULED, 1, None, None)
        assert "ValueError: not yet" in (row.last_error or "")
        assert 3590 < (row.run_after - row.updated_at).total_seconds() <= 3600


async def test_a_cancelled_job_is_told_to_who_waits(jobs: App[None]) -> None:
    @jobs.task
    async def sweep(ctx: JobContext) -> None: ...

    async with jobs:
        job = await sweep.defer()
        waiting = asyncio.create_task(job.result(timeout=30))
        assert await job.cancel() is CancelOutcome.CANCELLED
        with pytest.raises(JobCancelled):
            await waiting


async def test_a_job_that_is_gone_is_not_found(jobs: App[None], connection: asyncpg.Connection) -> None:
    @jobs.task
    async def sweep(ctx: JobContext) -> None: ...

    async with jobs:
        job = await sweep.defer()
        await connection.execute("DELETE FROM pqrun.jobs WHERE id = $1", job.id)
        for attempt in (job.result(timeout=30), job.result(timeout=0), job.status(), job.job(), job.retry()):
            with pytest.raises(JobNotFound) as caught:
                await attempt
            assert caught.value.job_id == job.id
        assert await job.cancel() is CancelOutcome.NOT_FOUND


async def test_a_result_is_looked_at_once_and_a_wait_can_end_early(jobs: App[None]) -> None:
    @jobs.task
    async def sweep(ctx: JobContext) -> None: ...

    async with jobs:
        job = await sweep.defer()
        for timeout in (0, 0.05):
            with pytest.raises(ResultTimeout):
                await job.result(timeout=timeout)
        with pytest.raises(OptionError, match="timeout"):
            await job.result(timeout=-1)
        assert await job.status() is Status.READY


async def test_a_stored_result_of_another_shape_is_told_by_its_field_and_without_its_value(
    jobs: App[None], connection: asyncpg.Connection
) -> None:
    @jobs.task
    async def send_email(ctx: JobContext) -> Sent:
        return Sent(message_id="m")

    async with at_work(jobs):
        job = await send_email.defer()
        await job.result(timeout=30)
        await connection.execute("""UPDATE pqrun.jobs SET result = '{"message_id": ["hunter2"]}'""")
        with pytest.raises(ResultDecodeError, match="message_id") as caught:
            await job.result(timeout=30)
        assert "hunter2" not in str(caught.value)


async def unawaited() -> dict[str, object]:
    return {}


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "number": (lambda: 5, "int"),
    "list": (lambda: [1], "list"),
    "coroutine": (unawaited, "coroutine"),
    "missing field": (lambda: Sent.model_construct(), "message_id"),
    "wrong type": (lambda: {"message_id": 7}, "message_id"),
    "NUL": (lambda: Sent.model_construct(message_id="a\x00b"), "message_id"),
}


async def test_a_refused_result_fails_the_job_at_once_and_names_what_is_wrong(jobs: App[None]) -> None:
    @jobs.task(max_attempts=5)
    async def send_email(ctx: JobContext, kind: str) -> Sent:
        result: Sent = REFUSED[kind][0]()
        return result

    @jobs.task
    async def good(ctx: JobContext) -> None: ...

    async with at_work(jobs):
        for kind, (_, told) in REFUSED.items():
            job = await send_email.defer(kind)
            with pytest.raises(JobFailed, match=told):
                await job.result(timeout=30)
            row = await job.job()
            assert (row.status, row.attempts, row.result) == (Status.FAILED, 1, None)
        await (await good.defer()).result(timeout=30)


async def test_a_result_holds_no_number_that_json_has_not(jobs: App[None]) -> None:
    @jobs.task
    async def measure(ctx: JobContext) -> dict[str, float]:
        return {"mean": float("nan")}

    async with at_work(jobs):
        with pytest.raises(JobFailed, match="mean"):
            await (await measure.defer()).result(timeout=30)
