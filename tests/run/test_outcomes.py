"""What an executor makes of what a handler chooses: signals, rules, and which of two counts where both are there."""

import asyncio
import dataclasses
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from pqrun import Abort, App, BackoffPolicy, CallNext, HandlerSignal, HandlerTimeout, JobContext, RetryAfter, Snooze
from pqrun.job.outcome import SNOOZES_MAX, Cancelled, Done, Failed, Retrying, Snoozed
from pqrun.job.rules import RetryRules
from pqrun.job.storable import error_summary
from pqrun.run import events
from pqrun.run.handler import Handler
from pqrun.run.lowlevel import wrap
from pqrun.run.prefetch import PROVEN_ENDS
from tests.run.making import Bench, claim_of, make_job
from tests.support.waiting import wait_until

MINUTE = timedelta(minutes=1)


class InAnHour(BackoffPolicy):
    def retry_delay(self, attempts: int) -> timedelta:
        return timedelta(hours=1)


def raising(error: BaseException, **changes: Any) -> Handler:
    """An async handler that raises this."""

    async def run(ctx: JobContext[Any]) -> dict[str, object]:
        raise error

    return dataclasses.replace(wrap("t", run), **changes)


def raising_in_thread(error: BaseException) -> Handler:
    def run(ctx: JobContext[Any]) -> dict[str, object]:
        raise error

    return wrap("t", run)


def in_task_group(error: BaseException) -> Handler:
    async def run(ctx: JobContext[Any]) -> None:
        async def child() -> None:
            raise error

        async with asyncio.TaskGroup() as group:
            group.create_task(child())

    return wrap("t", run)


def through_middleware(error: BaseException) -> Handler:
    async def let_through(ctx: JobContext[Any], call_next: CallNext) -> object:
        try:
            return await call_next(ctx)
        except HandlerSignal:
            raise
        except Exception as other:
            raise AssertionError from other

    return raising(error).surrounded([let_through])


def by_middleware(error: BaseException) -> Handler:
    async def refuse(ctx: JobContext[Any], call_next: CallNext) -> object:
        raise error

    async def run(ctx: JobContext[Any]) -> None:
        raise AssertionError

    return wrap("t", run).surrounded([refuse])


EVERYWHERE = pytest.mark.parametrize(
    "place", [raising, raising_in_thread, in_task_group, through_middleware, by_middleware]
)
Place = Callable[[BaseException], Handler]


@EVERYWHERE
async def test_a_snooze_puts_the_job_off_and_is_no_failure(place: Place) -> None:
    job = make_job(attempts=5, max_attempts=5)  # not even with no attempt left
    snoozed = await Bench(place(Snooze(MINUTE, "not yet"))).outcome_of(job, Snoozed)
    assert snoozed == Snoozed(claim_of(job), None, 60.0, is_chosen=True, reason="not yet")


@EVERYWHERE
async def test_an_abort_ends_the_job_at_once(place: Place) -> None:
    failed = await Bench(place(Abort("no such user"))).outcome_of(make_job(), Failed)
    assert error_summary(failed.error) == "pqrun.Abort: no such user"
    assert failed.duration_ms is not None


@EVERYWHERE
async def test_a_retry_after_counts_and_waits_as_long_as_it_says(place: Place) -> None:
    bench = Bench(place(RetryAfter(MINUTE, "429")), backoff=InAnHour())
    retrying = await bench.outcome_of(make_job(backoff_seconds=(7.0,)), Retrying)
    assert retrying.delay_seconds == 60.0
    assert error_summary(retrying.error) == "pqrun.RetryAfter: in 0:01:00: 429"


async def test_a_retry_after_with_no_attempt_left_ends_the_job() -> None:
    failed = await Bench(raising(RetryAfter(MINUTE))).outcome_of(make_job(attempts=5), Failed)
    assert "RetryAfter: in 0:01:00" in failed.error


async def test_one_snooze_too_many_is_a_failure_that_says_so_and_waits_for_the_backoff() -> None:
    bench = Bench(raising(Snooze(MINUTE)), backoff=InAnHour())
    retrying = await bench.outcome_of(make_job(snoozes=SNOOZES_MAX), Retrying)
    assert retrying.error == (
        f"Snooze: snoozed {SNOOZES_MAX} times before, the most that a job may be: this one counts as a failure"
    )
    assert retrying.delay_seconds == 3600
    failed = await Bench(raising(Snooze(MINUTE))).outcome_of(make_job(snoozes=SNOOZES_MAX, attempts=5), Failed)
    assert error_summary(failed.error) == failed.error


class Own(HandlerSignal):
    """Of a user's own making."""


async def test_a_signal_that_says_nothing_is_an_ordinary_failure() -> None:
    assert "Own" in (await Bench(raising(Own("?"))).outcome_of(make_job(), Retrying)).error


async def test_a_subclass_of_a_signal_is_that_signal() -> None:
    class NoSuchUser(Abort): ...

    assert "NoSuchUser: u7" in (await Bench(raising(NoSuchUser("u7"))).outcome_of(make_job(), Failed)).error


async def test_a_signal_raised_instead_of_an_error_is_what_counts() -> None:
    async def run(ctx: JobContext[Any]) -> None:
        try:
            raise ConnectionError("refused")
        except ConnectionError as error:
            raise RetryAfter(MINUTE) from error

    retrying = await Bench(t=run).outcome_of(make_job(), Retrying)
    assert "ConnectionError: refused" in retrying.error
    assert retrying.delay_seconds == 60


@pytest.mark.parametrize("signal", [Snooze(MINUTE), Abort("x"), RetryAfter(MINUTE)])
async def test_after_complete_the_completion_counts(signal: HandlerSignal) -> None:
    async def run(ctx: JobContext[Any]) -> None:
        await ctx.complete({"done": True})
        raise signal

    bench = Bench(t=run)
    bench.executor.take([make_job()])
    await bench.wait_idle()
    assert bench.delivered == []
    assert [type(event) for event in bench.heard.seen] == [events.Picked, events.Done]


async def test_a_signal_that_rolled_the_completion_back_is_what_counts() -> None:
    async def run(ctx: JobContext[Any]) -> None:
        await ctx.complete({"done": True})
        raise Snooze(MINUTE)

    bench = Bench(t=run)
    bench.completions.is_committed = False
    assert (await bench.outcome_of(make_job(), Snoozed)).delay_seconds == 60


async def test_a_signal_answers_a_shutdown_as_a_value_would() -> None:
    async def run(ctx: JobContext[Any]) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise Snooze(MINUTE) from None

    bench = Bench(t=run)
    bench.executor.take([make_job()])
    await bench.heard.wait_for(events.Picked)
    await asyncio.sleep(0)
    bench.executor.stop_all()
    (outcome,) = await bench.outcomes()
    assert isinstance(outcome, Snoozed)


async def test_a_signal_that_answers_a_timeout_or_a_cancel_does_not_count() -> None:
    async def run(ctx: JobContext[Any]) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise Snooze(MINUTE) from None

    timed_out = await Bench(t=run).outcome_of(make_job(timeout_seconds=0.01), Retrying)
    assert "HandlerTimeout" in timed_out.error
    bench, job = Bench(t=run), make_job()
    bench.executor.take([job])
    await bench.heard.wait_for(events.Picked)
    await asyncio.sleep(0)
    bench.executor.cancel([claim_of(job)])
    (outcome,) = await bench.outcomes()
    assert isinstance(outcome, Cancelled)


# Rules.


async def test_an_exception_that_the_rules_do_not_allow_ends_the_job_at_once() -> None:
    only = RetryRules(retry_on=(ConnectionError,))
    assert isinstance(await Bench(raising(ConnectionError(), rules=only)).outcome_of(make_job(), Retrying), Retrying)
    failed = await Bench(raising(ValueError("x"), rules=only)).outcome_of(make_job(), Failed)
    assert error_summary(failed.error) == "ValueError: x"


@pytest.mark.parametrize(
    ("rules", "kind"),
    [
        (RetryRules(retry_on=(ConnectionError,)), Failed),
        (RetryRules(no_retry_on=(HandlerTimeout,)), Failed),
        (RetryRules(retry_on=(TimeoutError,)), Retrying),
    ],
)
async def test_a_timeout_is_judged_as_a_handler_timeout(rules: RetryRules, kind: type[object]) -> None:
    async def run(ctx: JobContext[Any]) -> None:
        await asyncio.Event().wait()

    bench = Bench(dataclasses.replace(wrap("t", run), rules=rules))
    await bench.outcome_of(make_job(timeout_seconds=0.01), kind)


async def test_a_thread_that_ignores_its_timeout_is_judged_as_a_handler_timeout_too() -> None:
    over = threading.Event()

    def run(ctx: JobContext[Any]) -> None:
        over.wait()

    bench = Bench(dataclasses.replace(wrap("t", run), rules=RetryRules(no_retry_on=(HandlerTimeout,))), grace=0.01)
    assert "HandlerTimeout" in (await bench.outcome_of(make_job(timeout_seconds=0.01), Failed)).error
    over.set()
    await wait_until(lambda: not bench.executor.alive_ids())


async def test_rules_say_nothing_of_signals() -> None:
    rules = RetryRules(retry_on=(ConnectionError,), no_retry_on=(Exception,))
    for signal, kind in ((Snooze(MINUTE), Snoozed), (RetryAfter(MINUTE), Retrying)):
        await Bench(raising(signal, rules=rules)).outcome_of(make_job(), kind)


async def test_a_completion_that_was_rolled_back_is_judged_by_what_rolled_it_back() -> None:
    async def run(ctx: JobContext[Any]) -> None:
        await ctx.complete({"done": True})
        raise ConnectionError("broke")

    for rules, kind in (
        (RetryRules(retry_on=(ConnectionError,)), Retrying),
        (RetryRules(no_retry_on=(OSError,)), Failed),
    ):
        bench = Bench(dataclasses.replace(wrap("t", run), rules=rules))
        bench.completions.is_committed = False
        await bench.outcome_of(make_job(), kind)


async def test_a_shutdown_is_no_failure_that_rules_could_judge() -> None:
    jobs = App(dsn="postgresql://localhost/never_opened")

    @jobs.task(name="t", retry_on=ConnectionError)
    async def run(ctx: JobContext) -> None:
        await asyncio.Event().wait()

    assert run.handler.rules == RetryRules(retry_on=(ConnectionError,))
    bench = Bench(run.handler)
    bench.executor.take([make_job(payload_json="{}")])
    await bench.heard.wait_for(events.Picked)
    await asyncio.sleep(0)
    bench.executor.stop_all()
    (outcome,) = await bench.outcomes()
    assert not isinstance(outcome, (Failed, Retrying, Done))


async def test_a_type_whose_handlers_snooze_is_fetched_ahead_like_any_other() -> None:
    bench = Bench(raising(Snooze(MINUTE)))
    for number in range(1, PROVEN_ENDS + 1):
        bench.executor.take([make_job(number)])
        await bench.outcomes(number)
    assert list(bench.executor.proven_types) == ["t"]
