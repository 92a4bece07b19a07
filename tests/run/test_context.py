"""What a handler is told about its job, and when it may complete it."""

import asyncio
import logging

import pytest

from pqrun.errors import CompletionRefused, ResultError
from pqrun.run.context import CancelReason, JobContext
from pqrun.store import PgJobStore
from pqrun.store.ports import AnyConnection, AnySyncConnection
from tests.support.jobs import Noted, job_record


class Recorder:
    """Stands for the claim: takes down what was completed, or refuses."""

    def __init__(self) -> None:
        self.completed: list[tuple[str | None, AnyConnection | AnySyncConnection | None]] = []
        self.failure: Exception | None = None

    async def complete_claim(self, result: str | None, connection: AnyConnection | None) -> None:
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        self.completed.append((result, connection))

    def complete_claim_sync(self, result: str | None, connection: AnySyncConnection) -> None:
        if self.failure is not None:
            raise self.failure
        self.completed.append((result, connection))


def encode(result: object) -> str | None:
    if isinstance(result, int):
        raise ResultError("an int is no object")
    return None if result is None else f"{{{result}}}"


def make_context(recorder: Recorder, job_type: str = "greet") -> JobContext[str]:
    job = job_record(job_type=job_type, attempts=2)
    store = PgJobStore("postgresql://localhost/never_opened")
    return JobContext(
        job=job,
        store=store,
        worker_id="w",
        state="state",
        encode=encode,
        complete_claim=recorder.complete_claim,
        complete_claim_sync=recorder.complete_claim_sync,
        reports=Noted(),
    )


async def test_complete_hands_on_the_encoded_result() -> None:
    recorder = Recorder()
    ctx = make_context(recorder)
    await ctx.complete("x")
    assert recorder.completed == [("{x}", None)]
    assert ctx._completion


class Transaction:
    """A synchronous connection, as far as the context looks at it."""

    def begin_nested(self) -> None: ...

    def commit(self) -> None: ...


def test_complete_sync_hands_on_the_encoded_result_and_the_connection() -> None:
    recorder, connection = Recorder(), Transaction()
    ctx = make_context(recorder)
    ctx.complete_sync("x", connection=connection)
    assert recorder.completed == [("{x}", connection)]
    assert ctx._completion
    with pytest.raises(CompletionRefused, match="already completed"):
        ctx.complete_sync(connection=connection)


def test_complete_sync_after_a_cancel_request_is_refused() -> None:
    recorder = Recorder()
    ctx = make_context(recorder)
    ctx._request_stop("cancelled")
    with pytest.raises(CompletionRefused, match="cancelled"):
        ctx.complete_sync(connection=Transaction())
    assert recorder.completed == []


def test_a_complete_sync_that_failed_may_be_called_again() -> None:
    recorder = Recorder()
    ctx = make_context(recorder)
    recorder.failure = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        ctx.complete_sync(connection=Transaction())
    assert not ctx._completion
    recorder.failure = None
    ctx.complete_sync(connection=Transaction())
    assert len(recorder.completed) == 1


async def test_a_second_complete_is_refused_even_when_both_come_at_once() -> None:
    recorder = Recorder()
    ctx = make_context(recorder)
    outcomes = await asyncio.gather(ctx.complete(), ctx.complete(), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [type(None), CompletionRefused]
    with pytest.raises(CompletionRefused, match="already completed"):
        await ctx.complete()
    assert len(recorder.completed) == 1


@pytest.mark.parametrize("reason", ["cancelled", "timeout", "claim_lost"])
async def test_complete_after_a_request_to_stop_is_refused(reason: CancelReason) -> None:
    recorder = Recorder()
    ctx = make_context(recorder)
    ctx._request_stop(reason)
    with pytest.raises(CompletionRefused, match=reason) as caught:
        await ctx.complete()
    assert caught.value.job_id == 7
    assert recorder.completed == []


async def test_a_handler_may_still_complete_while_its_worker_shuts_down() -> None:
    recorder = Recorder()
    ctx = make_context(recorder)
    ctx._request_stop("shutdown")
    await ctx.complete()
    assert recorder.completed == [(None, None)]


async def test_a_completion_that_failed_does_not_count() -> None:
    recorder = Recorder()
    ctx = make_context(recorder)
    with pytest.raises(ResultError):
        await ctx.complete(5)
    recorder.failure = OSError("the connection broke")
    with pytest.raises(OSError, match="broke"):
        await ctx.complete()
    assert not ctx._completion
    recorder.failure = None
    await ctx.complete()
    assert recorder.completed == [(None, None)]


def test_the_first_reason_to_stop_stays() -> None:
    ctx = make_context(Recorder())
    assert (ctx.cancelled, ctx.cancel_reason) == (False, None)
    ctx._request_stop("shutdown")
    ctx._request_stop("timeout")
    assert (ctx.cancelled, ctx.cancel_reason) == (True, "shutdown")


def test_each_record_of_the_logger_names_the_job(caplog: pytest.LogCaptureFixture) -> None:
    ctx = make_context(Recorder())
    with caplog.at_level(logging.INFO, logger="pqrun.job"):
        ctx.logger.info("sent %d mails", 3, extra={"mine": "x"})
    (record,) = caplog.records
    assert record.getMessage() == "[greet id=7 attempt=2] sent 3 mails"
    names = ("job_id", "job_type", "attempt", "mine", "funcName")
    assert [getattr(record, name) for name in names] == [
        7,
        "greet",
        2,
        "x",
        "test_each_record_of_the_logger_names_the_job",
    ]


def test_a_name_can_forge_no_second_record_and_no_conversion(caplog: pytest.LogCaptureFixture) -> None:
    ctx = make_context(Recorder(), job_type="100%s\nCRITICAL forged")
    with caplog.at_level(logging.INFO, logger="pqrun.job"):
        ctx.logger.info("one %s", "argument")
        ctx.logger.info("no argument")
    messages = [record.getMessage() for record in caplog.records]
    prefix = "[100\\x25s\\nCRITICAL forged id=7 attempt=2]"
    assert messages == [f"{prefix} one argument", f"{prefix} no argument"]
