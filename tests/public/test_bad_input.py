"""Whatever a row holds and a handler raises costs that job alone: it is recorded, and the worker goes on."""

import asyncio
import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

import asyncpg
import pytest
from pydantic import BaseModel, ValidationInfo, field_validator

from pqrun import App, BackoffPolicy, JobContext, JobFailed, PgJobStore, Status
from pqrun.run.events import Done, Failed, Picked, Retrying, Unserved
from tests.public.at_work import AtOnce, at_work, low_level


class Welcome(BaseModel):
    user_id: int
    template: str = "welcome"


class Nervous(BaseModel):
    user_id: int

    @field_validator("user_id")
    @classmethod
    def _only_where_it_was_deferred(cls, user_id: int, info: ValidationInfo) -> int:
        if user_id == 7:
            raise ZeroDivisionError("in a validator")
        return user_id


UNDECODABLE = {
    "wrong type": '{"user_id": "hunter2"}',
    "wrong shape": '{"user_id": ["hunter2"]}',
    "missing field": '{"template": "hunter2"}',
    "a fraction": '{"user_id": 1.5}',
}


async def test_a_payload_that_does_not_decode_fails_at_once_by_its_field_and_without_its_value(
    jobs: App[None], connection: asyncpg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    @jobs.task(payload=Welcome)
    async def send_email(ctx: JobContext, payload: Welcome) -> None: ...

    caplog.set_level(logging.DEBUG)
    async with at_work(jobs):
        for payload in UNDECODABLE.values():
            job_id = await connection.fetchval("SELECT id FROM pqrun.enqueue('send_email', $1)", payload)
            with pytest.raises(JobFailed, match=r"PayloadDecodeError.*user_id"):
                await send_email.handle(job_id).result(timeout=30)
            job = await send_email.handle(job_id).job()
            assert (job.status, job.attempts, job.locked_by) == (Status.FAILED, 1, None)
            assert "hunter2" not in (job.last_error or "")
        await (await send_email.defer(user_id=1)).result(timeout=30)
    assert "hunter2" not in caplog.text


async def test_a_validator_that_breaks_fails_its_job_alone(jobs: App[None], store: PgJobStore) -> None:
    @jobs.task(payload=Nervous)
    async def send_email(ctx: JobContext, payload: Nervous) -> None: ...

    async with at_work(jobs):
        broken = send_email.handle(await store.enqueue("send_email", {"user_id": 7}))
        with pytest.raises(JobFailed):
            await broken.result(timeout=30)
        assert (await broken.job()).attempts == 1
        await (await send_email.defer(user_id=1)).result(timeout=30)


class Hostile(Exception):
    """Cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("in __str__")

    __repr__ = __str__


class TwoArguments(Exception):
    """Cannot be made again from its text."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class LastWords(BaseException):
    """No Exception."""


class Unread(Exception):
    """Holds what can be neither copied nor shown."""

    def __init__(self) -> None:
        super().__init__(threading.Lock())


def raise_group() -> None:
    raise ExceptionGroup("batch", [ValueError("a"), KeyError("b")])


def raise_caused() -> None:
    try:
        raise KeyError("the cause")
    except KeyError as error:
        raise ValueError("the effect") from error


def raise_noted() -> None:
    error = ValueError("noted")
    for note in ("first note", "second note", "third\nnote"):
        error.add_note(note)
    raise error


def raise_deep(depth: int = 5000) -> None:
    error: Exception | None = None
    for number in range(depth):
        outer = ValueError(f"level {number}")
        outer.__cause__ = error
        error = outer
    raise error or ValueError


def raising(error: BaseException) -> Callable[[], None]:
    def function() -> None:
        raise error

    return function


AWKWARD: dict[str, tuple[Callable[[], None], list[str]]] = {
    "SystemExit": (raising(SystemExit(1)), ["SystemExit"]),
    "KeyboardInterrupt": (raising(KeyboardInterrupt()), ["KeyboardInterrupt"]),
    "BaseException": (raising(LastWords("last words")), ["LastWords", "last words"]),
    "GeneratorExit": (raising(GeneratorExit()), ["GeneratorExit"]),
    "CancelledError": (raising(asyncio.CancelledError("mine")), ["CancelledError"]),
    "TimeoutError": (raising(TimeoutError("of my own")), ["TimeoutError: of my own"]),
    "StopIteration": (raising(StopIteration()), ["StopIteration"]),
    "group": (raise_group, ["ExceptionGroup: batch", "ValueError: a", "KeyError: 'b'"]),
    "hostile": (raising(Hostile()), ["Hostile"]),
    "two arguments": (raising(TwoArguments(1, "two")), ["TwoArguments: two"]),
    "a lock inside": (raising(Unread()), ["Unread"]),
    "cause": (raise_caused, ["KeyError: 'the cause'", "ValueError: the effect"]),
    "notes": (raise_noted, ["ValueError: noted", "first note", "second note", "third"]),
    "deep chain": (raise_deep, ["ValueError"]),
    "unstorable text": (raising(ValueError("bad \x00 byte \ud83d end")), ["ValueError: bad ", " byte ", " end"]),
    "megabytes": (raising(ValueError("x" * 10_000_000)), ["ValueError: xxx"]),
}


@pytest.mark.parametrize("where", ["coroutine", "thread"])
async def test_whatever_a_handler_raises_is_an_ordinary_failure(jobs: App[None], where: str) -> None:
    may_end = asyncio.Event()

    async def fail(ctx: JobContext, kind: str) -> None:
        AWKWARD[kind][0]()

    def fail_in_thread(ctx: JobContext, kind: str) -> None:
        AWKWARD[kind][0]()

    declare = jobs.task(max_attempts=2, backoff=AtOnce())
    task = declare(fail) if where == "coroutine" else declare(fail_in_thread)

    @jobs.task
    async def beside(ctx: JobContext) -> None:
        await may_end.wait()

    async with at_work(jobs, concurrency=2) as told:
        neighbour = await beside.defer()
        await told.wait_for(Picked)
        handles = {kind: await task.defer(kind) for kind in AWKWARD}
        await told.wait_for(Failed, count=len(AWKWARD))
        may_end.set()
        await neighbour.result(timeout=30)
        assert (await neighbour.job()).attempts == 1
        assert [len(told.of(kind)) for kind in (Retrying, Failed)] == [len(AWKWARD)] * 2
        stored = {kind: await handle.job() for kind, handle in handles.items()}
    for kind, job in stored.items():
        error = job.last_error or ""
        assert [text for text in AWKWARD[kind][1] if text not in error] == [], kind
        assert len(error) < 100_000
        assert (job.status, job.attempts, job.locked_by) == (Status.FAILED, 2, None)


class Misbehaving(BackoffPolicy):
    """Gives or raises what it was told, one answer after the other."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)

    def retry_delay(self, attempts: int) -> timedelta:
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return cast("timedelta", answer)


ANSWERS: list[tuple[object, float]] = [
    (OverflowError("too far"), 60),
    (SystemExit(3), 60),
    (timedelta(seconds=-5), 60),
    (timedelta.max, 60),
    (None, 60),
    (float("nan"), 60),
    ("soon", 60),
    (3.5, 3.5),
]


@pytest.mark.parametrize("place", ["task", "worker"])
async def test_a_backoff_that_misbehaves_is_replaced_and_reported(
    jobs: App[None], caplog: pytest.LogCaptureFixture, place: str
) -> None:
    policy = Misbehaving(*(answer for answer, _ in ANSWERS))
    worker: dict[str, Any] = {"backoff": policy} if place == "worker" else {}

    async def fail(ctx: JobContext) -> None:
        raise ValueError("the handler's own")

    task = jobs.task(backoff=policy)(fail) if place == "task" else jobs.task(fail)
    async with at_work(jobs, **worker) as told:
        for count, (_, seconds) in enumerate(ANSWERS, start=1):
            job = await task.defer()
            await told.wait_for(Retrying, count=count)
            row = await job.job()
            assert (row.status, row.attempts, row.locked_at, row.locked_by) == (Status.SCHEDULED, 1, None, None)
            assert "ValueError: the handler's own" in (row.last_error or "")
            assert (row.run_after - row.updated_at).total_seconds() == pytest.approx(seconds, abs=0.5)
    reports = [record for record in caplog.records if "Misbehaving" in record.getMessage()]
    assert len(reports) == sum(seconds == 60 for _, seconds in ANSWERS)


async def test_jobs_that_nobody_can_run_wait_are_told_once_and_keep_nobody_waiting(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    await connection.execute(
        "INSERT INTO pqrun.jobs (job_type, priority) SELECT 'gone', 10 FROM generate_series(1, 10000)"
    )
    seen: list[str] = []

    async def note(ctx: JobContext) -> None:
        seen.append(ctx.job.job_type)

    async with low_level(store, {"known": note}, reap_stale_every_seconds=0.05) as told:
        for _ in range(10):
            await store.enqueue("known", {})
        await told.wait_for(Done, count=10)
        assert (await told.wait_for(Unserved)).job_type == "gone"
        await connection.execute("DELETE FROM pqrun.jobs_active WHERE id > 20")
        await store.enqueue("other", {})  # told by a later look, which would tell of the first one again
        await told.wait_for(Unserved, count=2)
    assert {event.job_type for event in told.of(Unserved)} == {"gone", "other"}
    waiting = await connection.fetch("SELECT status, attempts, count(*) FROM pqrun.jobs_active GROUP BY 1, 2")
    assert [tuple(row) for row in waiting] == [("READY", 0, 21)]

    async with low_level(store, {"gone": note}) as told:
        await told.wait_for(Done, count=20)
    assert seen == ["known"] * 10 + ["gone"] * 20
