"""One start of one job, and what becomes of it: decode, call, encode, decide. Real handlers on a real executor."""

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from pqrun import App
from pqrun.errors import DatabaseUnavailableError, PayloadDecodeError, ResultError
from pqrun.job.outcome import Cancelled, Done, Failed, Released, Retrying
from pqrun.job.policy import BackoffPolicy
from pqrun.job.state import Status
from pqrun.run import events
from pqrun.run.attempt import delay_before_next
from pqrun.run.context import JobContext
from pqrun.run.handler import Handler
from tests.run.making import SECRET, Bench, claim_of, make_job
from tests.support.waiting import wait_until

Context = JobContext[Any]


class Sent(BaseModel):
    message_id: str


class Welcome(BaseModel):
    user_id: int


class Own(BaseException):
    pass


async def quick(ctx: Context) -> None:
    return None


def raising(error: BaseException) -> Callable[[Context], Any]:
    async def handler(ctx: Context) -> None:
        raise error

    return handler


def raising_in_thread(error: BaseException) -> Callable[[Context], Any]:
    def handler(ctx: Context) -> None:
        raise error

    return handler


def task_handler(returned: object, *, name: str = "t") -> Handler:
    """The handler of a declared task that returns this, whatever it had promised."""
    jobs = App(dsn="postgresql://localhost/never_opened")

    @jobs.task(payload=Welcome, name=name)
    async def send_email(ctx: JobContext, payload: Welcome) -> Sent:
        return returned  # type: ignore[return-value]  # the point

    return send_email.handler


def plain_task_handler(returned: object) -> Handler:
    jobs = App(dsn="postgresql://localhost/never_opened")

    @jobs.task(payload=Welcome, name="t")
    def send_email(ctx: JobContext, payload: Welcome) -> Sent:
        return returned  # type: ignore[return-value]  # the point

    return send_email.handler


GOOD = '{"user_id": 1}'

# What the handler raises.


@pytest.mark.parametrize(
    "error",
    [ValueError("bad"), SystemExit(3), KeyboardInterrupt(), Own("mine"), asyncio.CancelledError(), GeneratorExit()],
)
@pytest.mark.parametrize("make", [raising, raising_in_thread])
async def test_whatever_a_handler_raises_is_an_ordinary_failure(
    error: BaseException, make: Callable[[BaseException], Any]
) -> None:
    bench = Bench(t=make(error))
    outcome = await bench.outcome_of(make_job(), Retrying)
    assert type(error).__name__ in outcome.error
    assert outcome.delay_seconds == 60.0
    bench.executor.take([make_job(2)])  # and the worker lives on
    await bench.outcomes(2)


async def test_the_last_attempt_fails_for_good_with_the_traceback() -> None:
    bench = Bench(t=raising(ValueError("bad")))
    outcome = await bench.outcome_of(make_job(attempts=5), Failed)
    assert outcome.error.startswith("Traceback (most recent call last):")
    assert outcome.error.endswith("ValueError: bad")
    assert outcome.duration_ms is not None


async def test_an_error_is_bounded_and_storable_however_long_it_is() -> None:
    bench = Bench(t=raising(ValueError("x\x00\ud800" * 1_000_000)))
    outcome = await bench.outcome_of(make_job(), Retrying)
    assert len(outcome.error) <= 20_000
    assert not {"\x00", "\ud800"} & set(outcome.error)
    assert "ValueError" in outcome.error


async def test_an_exception_whose_text_cannot_be_had_is_still_recorded() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    bench = Bench(t=raising(Mute()))
    assert "Mute" in (await bench.outcome_of(make_job(), Retrying)).error


# Payloads.


async def test_a_payload_that_does_not_decode_fails_at_once_naming_the_field_and_not_the_value() -> None:
    bench = Bench(task_handler(Sent(message_id="m")))
    outcome = await bench.outcome_of(make_job(payload_json=f'{{"user_id": "{SECRET}"}}'), Failed)
    assert outcome.error.startswith("PayloadDecodeError: ")
    assert "user_id" in outcome.error
    assert SECRET not in outcome.error


@pytest.mark.parametrize("error", [ValueError("x"), RuntimeError("validator bug"), SystemExit(1), Own()])
async def test_a_decoder_that_raises_whatever_fails_the_job_at_once_and_not_the_worker(error: BaseException) -> None:
    def decode(text: str) -> object:
        raise error

    handler = Handler(job_type="t", decode=decode, call=lambda ctx, _: quick(ctx), encode=lambda _: None)
    bench = Bench(handler)
    outcome = await bench.outcome_of(make_job(), Failed)
    assert type(error).__name__ in outcome.error
    bench.executor.take([make_job(2)])
    await bench.outcomes(2)


async def test_a_validator_that_raises_is_an_undecodable_payload() -> None:
    class Strict(BaseModel):
        user_id: int

        @field_validator("user_id")
        @classmethod
        def check(cls, value: int) -> int:
            raise ZeroDivisionError

    jobs = App(dsn="postgresql://localhost/never_opened")

    @jobs.task(payload=Strict, name="t")
    async def run(ctx: JobContext, payload: Strict) -> None:
        return None

    outcome = await Bench(run.handler).outcome_of(make_job(payload_json=GOOD), Failed)
    assert SECRET not in outcome.error


def test_an_undecodable_payload_has_its_own_error() -> None:
    with pytest.raises(PayloadDecodeError):
        task_handler(None).decode('{"user_id": []}')


# Results.


async def test_a_result_is_stored_as_validated() -> None:
    outcome = await Bench(task_handler(Sent(message_id="m"))).outcome_of(make_job(payload_json=GOOD), Done)
    assert outcome.result == '{"message_id":"m"}'


@pytest.mark.parametrize("returned", [5, [1], "x", None, {"message_id": 5}, {}, Welcome(user_id=1)])
@pytest.mark.parametrize("make", [task_handler, plain_task_handler])
async def test_a_result_that_does_not_satisfy_its_type_fails_the_job_at_once(
    returned: object, make: Callable[[object], Handler]
) -> None:
    outcome = await Bench(make(returned)).outcome_of(make_job(payload_json=GOOD), Failed)
    assert outcome.error.startswith("ResultError: ")
    assert outcome.duration_ms is not None


async def test_a_missing_field_of_the_result_is_named() -> None:
    outcome = await Bench(task_handler({"id": "m"})).outcome_of(make_job(payload_json=GOOD), Failed)
    assert "message_id" in outcome.error


@pytest.mark.parametrize("make", [task_handler, plain_task_handler])
async def test_a_coroutine_returned_instead_of_a_result_is_refused(make: Callable[[object], Handler]) -> None:
    outcome = await Bench(make(quick(None))).outcome_of(make_job(payload_json=GOOD), Failed)  # type: ignore[arg-type]  # never run
    assert "coroutine" in outcome.error


@pytest.mark.parametrize("returned", [5, [1], {"a": object()}])
async def test_a_low_level_result_that_is_no_json_object_fails_the_job_at_once(returned: object) -> None:
    async def handler(ctx: Context) -> Any:
        return returned

    outcome = await Bench(t=handler).outcome_of(make_job(), Failed)
    assert outcome.error.startswith("ResultError: ")


@pytest.mark.parametrize("error", [RuntimeError("serializer bug"), SystemExit(1), Own(), ResultError("no")])
async def test_an_encoder_that_raises_whatever_fails_the_job_at_once_and_not_the_worker(error: BaseException) -> None:
    def encode(value: object) -> str | None:
        raise error

    handler = Handler(job_type="t", decode=lambda _: None, call=lambda ctx, _: quick(ctx), encode=encode)
    bench = Bench(handler)
    outcome = await bench.outcome_of(make_job(), Failed)
    assert type(error).__name__ in outcome.error


# Delays.


class Policy(BackoffPolicy):
    def __init__(self, answer: object) -> None:
        self.answer = answer

    def retry_delay(self, attempts: int) -> timedelta:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer  # type: ignore[return-value]  # the point


@pytest.mark.parametrize(
    ("answer", "seconds"),
    [
        (OverflowError("x"), 60.0),
        (SystemExit(1), 60.0),
        (timedelta(seconds=-5), 60.0),
        (timedelta.max, 60.0),
        (None, 60.0),
        ("soon", 60.0),
        (float("nan"), 60.0),
        (3.5, 3.5),
        (timedelta(0), 0.0),
    ],
)
async def test_a_policy_that_misbehaves_is_replaced_and_told_and_the_error_of_the_handler_is_kept(
    answer: object, seconds: float, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(t=raising(ValueError("mine")), backoff=Policy(answer))
    with caplog.at_level(logging.WARNING, logger="pqrun"):
        outcome = await bench.outcome_of(make_job(), Retrying)
    assert outcome.delay_seconds == seconds
    assert outcome.error.endswith("ValueError: mine")
    assert len(caplog.records) == (answer != 3.5 and answer != timedelta(0))


def test_after_thousands_of_attempts_the_delay_is_still_bounded() -> None:
    assert delay_before_next(make_job(attempts=2000, max_attempts=3000), BackoffPolicy()) == 6 * 3600


@pytest.mark.parametrize(("attempts", "seconds"), [(1, 1.0), (2, 2.5), (3, 2.5), (9, 2.5)])
def test_delays_of_the_job_itself_come_first_and_the_last_one_repeats(attempts: int, seconds: float) -> None:
    job = make_job(attempts=attempts, backoff_seconds=(1.0, 2.5))
    assert delay_before_next(job, Policy(timedelta(days=1))) == seconds


async def test_the_policy_of_the_task_comes_before_that_of_the_worker() -> None:
    jobs = App(dsn="postgresql://localhost/never_opened")

    @jobs.task(payload=Welcome, name="t", backoff=Policy(timedelta(seconds=7)))
    async def fail(ctx: JobContext, payload: Welcome) -> None:
        raise ValueError

    bench = Bench(fail.handler, backoff=Policy(timedelta(seconds=99)))
    outcome = await bench.outcome_of(make_job(payload_json=GOOD), Retrying)
    assert outcome.delay_seconds == 7.0


# ctx.complete, with a store that is handed in; with a real one: test_complete.py.


async def complete(ctx: Context) -> None:
    await ctx.complete({"ok": True})


async def test_a_completed_job_leaves_nothing_to_write_and_is_told_as_done() -> None:
    bench = Bench(t=complete)
    job = make_job()
    bench.executor.take([job])
    await bench.wait_idle()
    assert bench.delivered == []
    (told,) = bench.heard.of(events.Done)
    assert told.job == job


async def test_a_completion_that_did_not_commit_is_a_failed_attempt_that_says_so() -> None:
    bench = Bench(t=complete)
    bench.completions.is_committed = False
    outcome = await bench.outcome_of(make_job(), Retrying)
    assert "its transaction did not commit" in outcome.error


async def test_a_handler_that_raises_after_a_completion_that_committed_is_done() -> None:
    async def handler(ctx: Context) -> None:
        await ctx.complete()
        raise ValueError

    bench = Bench(t=handler)
    bench.executor.take([make_job()])
    await bench.heard.wait_for(events.Done)
    assert bench.delivered == []


async def test_a_handler_that_raises_before_its_transaction_commits_keeps_its_error_as_the_cause() -> None:
    async def handler(ctx: Context) -> None:
        await ctx.complete()
        raise ValueError("mine")

    bench = Bench(t=handler)
    bench.completions.is_committed = False
    assert "ValueError: mine" in (await bench.outcome_of(make_job(), Retrying)).error


async def test_while_the_database_is_away_a_completion_is_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pqrun.run.attempt.VERIFY_SECONDS", 0.0)
    bench = Bench(t=complete)
    bench.completions.failures = [DatabaseUnavailableError("gone")] * 3
    bench.executor.take([make_job()])
    await bench.heard.wait_for(events.Done)


@pytest.mark.parametrize("is_committed", [True, False])
async def test_a_stop_that_comes_while_a_completion_is_looked_for_changes_nothing(
    is_committed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pqrun.run.attempt.VERIFY_SECONDS", 0.001)
    bench = Bench(t=complete, grace=0.001)
    bench.completions.is_committed = is_committed
    bench.completions.failures = [DatabaseUnavailableError("gone")] * 1_000
    job = make_job()
    bench.executor.take([job])
    await wait_until(lambda: len(bench.completions.failures) < 1_000)
    bench.executor.cancel([claim_of(job)])
    bench.executor.stop_all()
    await wait_until(lambda: len(bench.completions.failures) < 980)
    bench.completions.failures.clear()
    await bench.wait_idle()
    assert len(bench.heard.of(events.Done)) == is_committed
    assert [type(outcome) for _, outcome in bench.delivered] == ([] if is_committed else [Retrying])


@pytest.mark.parametrize("found", [Status.FAILED, Status.CANCELLED])
async def test_a_completion_that_did_not_commit_is_not_told_as_done_when_a_reaper_has_ended_the_job(
    found: Status,
) -> None:
    bench = Bench(t=complete)
    bench.completions.is_committed = False
    bench.completions.found = found
    await bench.outcome_of(make_job(), Retrying)  # which finds that the claim is lost
    assert not bench.heard.of(events.Done)


async def test_a_completing_handler_that_was_given_up_is_settled_when_its_transaction_is_over() -> None:
    go = asyncio.Event()

    async def handler(ctx: Context) -> None:
        await ctx.complete()
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue

    bench = Bench(t=handler, grace=0.005)
    bench.completions.is_committed = False  # its transaction is open, and will be rolled back
    job = make_job()
    bench.executor.take([job])
    await wait_until(lambda: bench.completions.written)
    bench.executor.cancel([claim_of(job)])
    await bench.wait_idle()
    assert bench.delivered == []  # its own transaction decides
    assert not bench.heard.of(events.ClaimLost)
    go.set()
    await bench.heard.wait_for(events.LateReturn)
    assert [type(outcome) for outcome in await bench.outcomes()] == [Cancelled]


async def test_a_worker_torn_down_with_its_loop_gives_the_job_back() -> None:
    started = asyncio.Event()

    async def handler(ctx: Context) -> None:
        started.set()
        await asyncio.Event().wait()

    bench = Bench(t=handler)
    job = make_job()
    bench.executor.take([job])
    await asyncio.wait_for(started.wait(), 30)
    (attempt,) = bench.executor._running.values()
    task = attempt.task
    assert task is not None
    task.cancel()
    await bench.wait_idle()
    assert bench.delivered == [(job, Released(claim_of(job), started=True, counted=False))]


async def test_once_the_worker_has_ended_a_completing_handler_that_comes_late_asks_the_database_no_more() -> None:
    go = asyncio.Event()

    async def handler(ctx: Context) -> None:
        await ctx.complete()
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue

    bench = Bench(t=handler)
    bench.completions.failures = [DatabaseUnavailableError("closed")]
    bench.executor.take([make_job()])
    await wait_until(lambda: bench.completions.written)
    bench.executor.stop_all()
    bench.executor.give_up_all()
    go.set()
    await bench.heard.wait_for(events.LateReturn)
    assert len(bench.completions.failures) == 1
    assert bench.delivered == []


async def test_at_the_end_an_attempt_that_only_waits_for_the_database_is_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pqrun.run.attempt.VERIFY_SECONDS", 3600.0)
    bench = Bench(t=complete)
    bench.completions.failures = [DatabaseUnavailableError("gone")]
    bench.executor.take([make_job()])
    await wait_until(lambda: not bench.completions.failures)
    (attempt,) = bench.executor._running.values()
    task = attempt.task
    assert task is not None
    bench.executor.give_up_all()
    await wait_until(task.done)
    assert bench.delivered == []
