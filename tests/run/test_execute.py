"""The executor: slots, and the stopping of what runs in them. Real handlers; what is delivered ends in a list."""

import asyncio
import contextlib
import gc
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import pytest

from pqrun.job.outcome import RELEASES_MAX, Cancelled, Done, Failed, Outcome, Released, Retrying
from pqrun.job.record import Job
from pqrun.run import events
from pqrun.run.context import CancelReason, JobContext
from pqrun.run.prefetch import PROVEN_ENDS
from pqrun.run.threads import run_in_thread
from tests.run.making import Bench, claim_of, make_job
from tests.support.waiting import wait_until

Context = JobContext[Any]

CITY = ContextVar("CITY", default="nowhere")

TINY = 0.01
"""Seconds, for limits that are meant to run out."""


async def quick(ctx: Context) -> None:
    return None


class Hanging:
    """An async handler that runs until it is cancelled or let go; what it does with a cancellation is handed in."""

    def __init__(self, on_cancel: Callable[[], Awaitable[None]] | None = None) -> None:
        self.starts = 0
        self.cancels = 0
        self.reasons: list[CancelReason | None] = []
        self.go = asyncio.Event()
        self._on_cancel = on_cancel

    async def __call__(self, ctx: Context) -> dict[str, object] | None:
        self.starts += 1
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancels += 1
            self.reasons.append(ctx.cancel_reason)
            if self._on_cancel is None:
                raise
            await self._on_cancel()
        return {"late": 1}


class Deaf(Hanging):
    """Ignores every cancellation, until it is let go."""

    def __init__(self) -> None:
        super().__init__(self._ignore)

    async def _ignore(self) -> None:
        while not self.go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self.go.wait()


class Threads:
    """A plain handler that runs until it is let go, or, if it is polite, until it is asked to stop."""

    def __init__(self, *, polite: bool = False) -> None:
        self.polite = polite
        self.go = threading.Event()
        self.started = threading.Semaphore(0)
        self.reasons: list[CancelReason | None] = []

    def __call__(self, ctx: Context) -> dict[str, object] | None:
        self.started.release()
        while not self.go.wait(0.002):
            if self.polite and ctx.cancelled:
                self.reasons.append(ctx.cancel_reason)
                break
        return {"late": 1}

    async def wait_started(self) -> None:
        assert await run_in_thread(self.started.acquire, True, 30)


@pytest.fixture
async def plain() -> AsyncIterator[Threads]:
    """A plain handler that ignores everything; let go when the test is over."""
    handler = Threads()
    yield handler
    handler.go.set()
    await wait_until(lambda: not [t for t in threading.enumerate() if t.name.startswith("pqrun-")])


# Slots.


async def test_a_handler_that_returns_is_done_and_its_slot_is_free() -> None:
    async def hello(ctx: Context) -> dict[str, object]:
        return {"id": ctx.job.id}

    bench = Bench(t=hello)
    job = make_job()
    assert bench.executor.capacity() == (1, 0)
    bench.executor.take([job])
    assert bench.executor.capacity() == (0, 0)
    (outcome,) = await bench.outcomes()
    assert isinstance(outcome, Done)
    assert (outcome.claim, outcome.result) == (claim_of(job), '{"id":1}')
    assert (bench.executor.capacity(), bench.rooms) == ((1, 0), 1)
    assert bench.heard.seen == [events.Picked(job)]  # DONE is told by the settler, when it is written


async def test_no_more_run_at_once_than_there_are_slots_and_the_rest_start_in_order() -> None:
    handler = Hanging()
    bench = Bench(t=handler, concurrency=2)
    bench.executor.take([make_job(number) for number in (1, 2, 3, 4)])
    await wait_until(lambda: handler.starts == 2)
    assert bench.executor.running == 2
    assert bench.executor.has_unstarted
    handler.go.set()
    await bench.outcomes(4)
    assert [event.job.id for event in bench.heard.of(events.Picked)] == [1, 2, 3, 4]
    assert not bench.executor.has_unstarted


async def test_an_unwritten_backlog_stops_the_claiming() -> None:
    bench = Bench(t=quick)
    bench.is_backlogged = True
    assert bench.executor.capacity() == (0, 0)


async def test_only_a_task_that_has_ended_here_is_fetched_ahead() -> None:
    bench = Bench(t=quick, concurrency=2)
    assert bench.executor.proven_types == []
    for number in range(PROVEN_ENDS):
        assert bench.executor.capacity() == (2, 0)
        bench.executor.take([make_job(number)])
        await bench.outcomes(number + 1)
    assert list(bench.executor.proven_types) == ["t"]
    assert bench.executor.capacity().room > 0


async def test_claims_that_find_no_slot_go_back_after_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pqrun.run.execute.UNSTARTED_SECONDS", TINY)
    monkeypatch.setattr("pqrun.run.execute._SWEEP_SECONDS", TINY)
    handler = Hanging()
    bench = Bench(t=handler)
    bench.executor.take([make_job(1), make_job(2), make_job(3)])
    given_back = await bench.outcomes(2)
    assert given_back == [Released(claim_of(make_job(n)), started=False, counted=False) for n in (2, 3)]
    assert bench.executor.running == 1
    assert not bench.executor.has_unstarted
    handler.go.set()
    await bench.outcomes(3)


async def test_after_close_nothing_starts_and_what_still_comes_goes_back() -> None:
    handler = Hanging()
    bench = Bench(t=handler)
    bench.executor.take([make_job(1), make_job(2)])
    bench.executor.close()
    bench.executor.take([make_job(3)])
    handler.go.set()
    await bench.outcomes(3)
    assert [(job.id, type(outcome)) for job, outcome in bench.delivered] == [(2, Released), (3, Released), (1, Done)]
    assert bench.executor.capacity() == (0, 0)


async def test_nothing_leaks_from_job_to_job_by_context_variables() -> None:
    seen: list[str] = []

    async def visit(ctx: Context) -> None:
        seen.append(CITY.get())
        CITY.set(f"job {ctx.job.id}")

    CITY.set("home")
    bench = Bench(t=visit)
    bench.executor.take([make_job(n) for n in (1, 2, 3)])
    await bench.outcomes(3)
    assert seen == ["home"] * 3
    assert CITY.get() == "home"


async def test_ack_sync_holds_the_slot_until_the_outcome_is_written() -> None:
    written, asked = asyncio.Event(), list[int]()

    async def write(job: Job, outcome: Outcome) -> None:
        asked.append(job.id)
        await written.wait()

    bench = Bench(t=quick, deliver_and_wait=write)
    bench.executor.take([make_job(1), make_job(2)])
    await wait_until(lambda: asked)
    assert bench.executor.running == 1
    assert bench.executor.claims() == [claim_of(make_job(2))]  # the first is being settled
    bench.executor.stop_all()  # too late for it
    assert asked == [1]
    assert not bench.heard.of(events.StopRequested)
    written.set()
    await wait_until(lambda: asked == [1, 2])
    await bench.wait_idle()
    assert bench.delivered == []


# Timeouts.


async def test_a_timeout_cancels_the_handler_and_is_a_failed_attempt_that_says_so() -> None:
    handler = Hanging()
    bench = Bench(t=handler)
    job = make_job(timeout_seconds=TINY)
    outcome = await bench.outcome_of(job, Retrying)
    assert outcome.error.splitlines()[-1] == "pqrun.errors.HandlerTimeout: t ran longer than its timeout of 0.01 s"
    assert outcome.delay_seconds == 60.0
    assert (handler.cancels, handler.reasons) == (1, ["timeout"])
    assert bench.heard.of(events.StopRequested) == [events.StopRequested(job, "timeout")]


async def test_a_timeout_at_the_last_attempt_is_final() -> None:
    bench = Bench(t=Hanging())
    outcome = await bench.outcome_of(make_job(timeout_seconds=TINY, attempts=5), Failed)
    assert "HandlerTimeout" in outcome.error


async def test_a_handler_that_ends_in_time_is_not_disturbed_by_its_timer() -> None:
    bench = Bench(t=quick)
    await bench.outcome_of(make_job(timeout_seconds=0.05), Done)
    hanging = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0.1, hanging.set_result, None)
    await hanging
    assert not bench.heard.of(events.StopRequested)
    assert len(bench.delivered) == 1


async def test_cleanup_in_finally_runs_to_its_end() -> None:
    cleaned: list[str] = []
    going = asyncio.Event()

    async def careful(ctx: Context) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            asyncio.get_running_loop().call_later(TINY, going.set)
            await going.wait()
            cleaned.append("all")

    bench = Bench(t=careful)
    outcome = await bench.outcome_of(make_job(timeout_seconds=TINY), Retrying)
    assert cleaned == ["all"]
    assert "HandlerTimeout" in outcome.error.splitlines()[-1]
    assert "CancelledError" in outcome.error  # the cause, with the place where it was


async def test_a_handler_that_swallows_its_timeout_and_returns_is_recorded_as_timed_out_once() -> None:
    async def swallow() -> None:
        return None

    bench = Bench(t=Hanging(swallow))
    outcome = await bench.outcome_of(make_job(timeout_seconds=TINY), Retrying)
    await bench.wait_idle()
    assert "HandlerTimeout" in outcome.error
    assert len(bench.delivered) == 1
    assert bench.executor.alive_ids() == []


async def test_a_handler_that_raises_something_else_at_its_timeout_is_timed_out_with_that_as_cause() -> None:
    async def fail() -> None:
        raise ValueError("in my cleanup")

    bench = Bench(t=Hanging(fail))
    outcome = await bench.outcome_of(make_job(timeout_seconds=TINY), Retrying)
    assert "ValueError: in my cleanup" in outcome.error
    assert "HandlerTimeout" in outcome.error.splitlines()[-1]


async def test_a_handler_that_ignores_its_timeout_loses_its_slot_and_is_known_to_be_alive() -> None:
    deaf, other = Deaf(), Hanging()
    other.go.set()
    bench = Bench(deaf=deaf, t=other, grace=TINY)
    job = make_job(1, job_type="deaf", timeout_seconds=TINY)
    outcome = await bench.outcome_of(job, Retrying)
    assert "HandlerTimeout" in outcome.error
    assert bench.executor.alive_ids() == [1]
    assert bench.executor.capacity().free == 1
    bench.executor.take([make_job(2)])  # the slot works
    await bench.outcomes(2)
    assert bench.executor.served_types() == ["deaf", "t"]
    assert not bench.heard.of(events.LateReturn)
    deaf.go.set()
    assert await bench.heard.wait_for(events.LateReturn) == events.LateReturn(job)
    await wait_until(lambda: bench.executor.alive_ids() == [])
    assert len(bench.delivered) == 2


# Cancel, lost claims, shutdown.


async def test_a_cancel_stops_the_handler() -> None:
    handler = Hanging()
    bench = Bench(t=handler)
    job = make_job()
    bench.executor.take([job])
    await wait_until(lambda: handler.starts)
    bench.executor.cancel([claim_of(job), claim_of(make_job(99))])
    bench.executor.cancel([claim_of(job)])
    (outcome,) = await bench.outcomes()
    assert isinstance(outcome, Cancelled)
    assert (handler.cancels, handler.reasons) == (1, ["cancelled"])


async def test_a_cancel_that_is_ignored_is_fenced_off_after_the_grace() -> None:
    deaf = Deaf()
    bench = Bench(t=deaf, grace=TINY)
    job = make_job()
    bench.executor.take([job])
    await wait_until(lambda: deaf.starts)
    bench.executor.cancel([claim_of(job)])
    (outcome,) = await bench.outcomes()
    assert isinstance(outcome, Cancelled)
    assert bench.executor.alive_ids() == [1]
    deaf.go.set()
    await bench.heard.wait_for(events.LateReturn)
    assert len(bench.delivered) == 1


async def test_a_cancel_of_an_unstarted_claim_gives_it_to_the_settle_which_writes_cancelled() -> None:
    handler = Hanging()
    bench = Bench(t=handler)
    bench.executor.take([make_job(1), make_job(2)])
    bench.executor.cancel([claim_of(make_job(2))])
    assert bench.delivered == [(make_job(2), Released(claim_of(make_job(2)), started=False, counted=False))]
    handler.go.set()
    await bench.outcomes(2)
    assert handler.starts == 1


async def test_a_lost_claim_stops_the_handler_and_delivers_nothing() -> None:
    handler = Hanging()
    bench = Bench(t=handler)
    job = make_job()
    bench.executor.take([job])
    await wait_until(lambda: handler.starts)
    bench.executor.lose([claim_of(job)])
    await bench.wait_idle()
    assert handler.reasons == ["claim_lost"]
    assert bench.delivered == []
    assert bench.heard.of(events.ClaimLost) == [events.ClaimLost(job)]


async def test_a_lost_claim_whose_handler_returns_all_the_same_delivers_nothing() -> None:
    async def swallow() -> None:
        return None

    handler = Hanging(swallow)
    bench = Bench(t=handler)
    job = make_job()
    bench.executor.take([job])
    await wait_until(lambda: handler.starts)
    bench.executor.lose([claim_of(job)])
    await bench.wait_idle()
    assert bench.delivered == []


async def test_a_lost_claim_whose_handler_ignores_it_frees_the_slot_and_delivers_nothing() -> None:
    deaf = Deaf()
    bench = Bench(t=deaf, grace=TINY)
    job = make_job()
    bench.executor.take([job])
    await wait_until(lambda: deaf.starts)
    bench.executor.lose([claim_of(job)])
    await bench.heard.wait_for(events.ClaimLost)
    assert bench.executor.capacity().free == 1
    deaf.go.set()
    await bench.heard.wait_for(events.LateReturn)
    assert bench.delivered == []
    assert len(bench.heard.of(events.ClaimLost)) == 1


async def test_an_unstarted_claim_that_was_lost_never_starts() -> None:
    handler = Hanging()
    bench = Bench(t=handler)
    bench.executor.take([make_job(1), make_job(2)])
    bench.executor.lose([claim_of(make_job(2)), claim_of(make_job(99))])
    assert bench.heard.of(events.ClaimLost) == [events.ClaimLost(make_job(2))]
    handler.go.set()
    await bench.outcomes()
    await bench.wait_idle()
    assert (handler.starts, len(bench.delivered)) == (1, 1)


async def test_a_claim_that_ended_while_it_was_asked_for_is_not_lost() -> None:
    bench = Bench(t=quick)
    job = make_job()
    bench.executor.take([job])
    asked = bench.executor.claims()
    await bench.outcomes()
    bench.executor.lose(asked)
    assert not bench.heard.of(events.ClaimLost)


async def test_a_shutdown_gives_a_started_job_back_without_counting_it() -> None:
    handler = Hanging()
    bench = Bench(t=handler)
    job = make_job()
    bench.executor.take([job])
    await wait_until(lambda: handler.starts)
    bench.executor.close()
    assert not await bench.executor.wait_idle(TINY)
    bench.executor.stop_all()
    await bench.wait_idle()
    assert bench.delivered == [(job, Released(claim_of(job), started=True, counted=False))]
    assert handler.reasons == ["shutdown"]


async def test_a_job_released_ten_times_counts_from_then_on() -> None:
    handler = Hanging()
    bench = Bench(t=handler, concurrency=2)
    counted, last = make_job(1, releases=RELEASES_MAX), make_job(2, releases=RELEASES_MAX, max_attempts=1)
    bench.executor.take([counted, last])
    await wait_until(lambda: handler.starts == 2)
    bench.executor.stop_all()
    await bench.wait_idle()
    outcomes = {job.id: outcome for job, outcome in bench.delivered}
    assert outcomes[1] == Released(claim_of(counted), started=True, counted=True)
    assert isinstance(outcomes[2], Failed)


async def test_a_handler_that_finishes_its_work_during_the_shutdown_is_done() -> None:
    async def finish() -> None:
        return None

    handler = Hanging(finish)
    bench = Bench(t=handler)
    bench.executor.take([make_job()])
    await wait_until(lambda: handler.starts)
    bench.executor.stop_all()
    (outcome,) = await bench.outcomes()
    assert isinstance(outcome, Done)


async def test_a_job_stopped_before_its_first_step_is_decided_at_once_and_never_begins() -> None:
    for reason in ("shutdown", "cancelled", "claim_lost"):
        handler = Hanging()
        bench = Bench(t=handler, grace=30.0)
        job = make_job()
        bench.executor.take([job])
        if reason == "shutdown":
            bench.executor.stop_all()
        elif reason == "cancelled":
            bench.executor.cancel([claim_of(job)])
        else:
            bench.executor.lose([claim_of(job)])
        assert await bench.executor.wait_idle(2), reason
        assert handler.starts == 0
        assert len(bench.delivered) == (reason != "claim_lost")


async def test_at_the_end_of_the_shutdown_all_that_still_run_are_given_up_and_given_back() -> None:
    deaf = Deaf()
    bench = Bench(t=deaf, grace=30.0)
    job = make_job()
    bench.executor.take([job])
    await wait_until(lambda: deaf.starts)
    bench.executor.stop_all()
    bench.executor.give_up_all()
    assert bench.delivered == [(job, Released(claim_of(job), started=True, counted=False))]
    assert bench.executor.running == 0
    deaf.go.set()
    await bench.heard.wait_for(events.LateReturn)
    assert len(bench.delivered) == 1


def test_a_handler_that_was_given_up_does_not_keep_its_event_loop_from_ending(caplog: pytest.LogCaptureFixture) -> None:
    async def give_up() -> None:
        deaf = Deaf()
        bench = Bench(t=deaf, grace=30.0)
        bench.executor.take([make_job()])
        await wait_until(lambda: deaf.starts)
        bench.executor.stop_all()
        bench.executor.give_up_all()

    thread = threading.Thread(target=lambda: asyncio.run(give_up()), daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    gc.collect()
    assert not caplog.records  # of a task that was destroyed


async def test_the_first_reason_to_stop_stays_and_the_handler_is_cancelled_once() -> None:
    deaf = Deaf()
    bench = Bench(t=deaf, grace=30.0)
    job = make_job()
    bench.executor.take([job])
    await wait_until(lambda: deaf.starts)
    bench.executor.cancel([claim_of(job)])
    await wait_until(lambda: deaf.cancels)
    bench.executor.stop_all()
    bench.executor.lose([claim_of(job)])
    deaf.go.set()
    (outcome,) = await bench.outcomes()
    assert isinstance(outcome, Cancelled)
    assert (deaf.cancels, deaf.reasons) == (1, ["cancelled"])


# Plain functions.


async def test_a_plain_function_runs_in_a_thread_with_the_context_copied() -> None:
    seen: list[tuple[str, bool]] = []

    def visit(ctx: Context) -> None:
        seen.append((CITY.get(), threading.current_thread() is threading.main_thread()))
        CITY.set("inside")

    CITY.set("home")
    bench = Bench(t=visit)
    bench.executor.take([make_job(1), make_job(2)])
    await bench.outcomes(2)
    assert seen == [("home", False)] * 2
    assert CITY.get() == "home"


async def test_a_plain_function_can_poll_that_it_should_stop() -> None:
    handler = Threads(polite=True)
    bench = Bench(t=handler)
    outcome = await bench.outcome_of(make_job(timeout_seconds=TINY), Retrying)
    assert "HandlerTimeout" in outcome.error
    assert handler.reasons == ["timeout"]
    assert not bench.heard.of(events.LateReturn)


async def test_an_abandoned_thread_is_given_up_and_its_late_return_is_told(plain: Threads) -> None:
    bench = Bench(t=plain, grace=TINY)
    job = make_job(timeout_seconds=TINY)
    await bench.outcome_of(job, Retrying)
    assert bench.executor.alive_ids() == [1]
    assert not bench.heard.of(events.LateReturn)
    plain.go.set()
    assert await bench.heard.wait_for(events.LateReturn) == events.LateReturn(job)
    await wait_until(lambda: bench.executor.alive_ids() == [])
    assert len(bench.delivered) == 1


async def test_abandoned_threads_are_bounded_and_it_is_told_once(plain: Threads) -> None:
    bench = Bench(slow=plain, t=quick, concurrency=2, grace=TINY)
    jobs = [make_job(number, job_type="slow", timeout_seconds=TINY) for number in (1, 2)]
    bench.executor.take(jobs[:1])
    await bench.outcomes(1)
    assert bench.executor.served_types() == ["slow", "t"]
    bench.executor.take(jobs[1:])
    await bench.outcomes(2)
    for _ in range(3):
        assert bench.executor.served_types() == ["t"]
    assert bench.heard.of(events.ThreadsExhausted) == [events.ThreadsExhausted(2)]
    assert bench.executor.capacity().free == 2
    plain.go.set()
    await bench.heard.wait_for(events.LateReturn, count=2)
    await wait_until(lambda: bench.executor.served_types() == ["slow", "t"])


async def test_a_plain_function_is_not_started_when_it_was_stopped_before(plain: Threads) -> None:
    bench = Bench(t=plain)
    bench.executor.take([make_job()])
    bench.executor.stop_all()
    await bench.wait_idle()
    assert not plain.started.acquire(blocking=False)


# Jobs that lost a worker before.


@pytest.fixture
def _short_quarantine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pqrun.run.execute.ALONE_SECONDS", 0.05)


@pytest.mark.usefixtures("_short_quarantine")
async def test_while_a_suspect_starts_nothing_else_does() -> None:
    handler = Hanging()
    bench = Bench(t=handler, s=handler, concurrency=3)
    alone = asyncio.create_task(bench.executor.take_alone(make_job(9, job_type="s", lost=1)))
    await asyncio.sleep(0)
    assert bench.executor.capacity() == (0, 0)
    bench.executor.take([make_job(1)])  # a claim that was under way
    await wait_until(lambda: handler.starts == 1)
    assert [event.job.id for event in bench.heard.of(events.Picked)] == [9]
    await alone
    await wait_until(lambda: handler.starts == 2)
    assert bench.executor.capacity().free == 1
    handler.go.set()
    await bench.outcomes(2)


@pytest.mark.usefixtures("_short_quarantine")
async def test_a_suspect_that_ends_ends_the_quarantine_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(t=quick)
    await bench.executor.take_alone(make_job(8, lost=1))
    monkeypatch.setattr("pqrun.run.execute.ALONE_SECONDS", 3600.0)
    bench.executor._last_start -= 3600.0
    await asyncio.wait_for(bench.executor.take_alone(make_job(9, lost=1)), 30)
    assert len(bench.delivered) == 2


@pytest.mark.usefixtures("_short_quarantine")
async def test_a_job_lost_twice_waits_until_nothing_else_runs() -> None:
    handler = Hanging()
    bench = Bench(t=handler, s=quick, concurrency=3)
    bench.executor.take([make_job(1)])
    await wait_until(lambda: handler.starts)
    alone = asyncio.create_task(bench.executor.take_alone(make_job(9, job_type="s", lost=2)))
    await asyncio.wait({alone}, timeout=0.15)
    assert [event.job.id for event in bench.heard.of(events.Picked)] == [1]
    handler.go.set()
    await asyncio.wait_for(alone, 30)
    assert [event.job.id for event in bench.heard.of(events.Picked)] == [1, 9]
    await bench.outcomes(2)


@pytest.mark.usefixtures("_short_quarantine")
async def test_a_job_lost_twice_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pqrun.run.execute.ALONE_MOST_SECONDS", TINY)
    handler = Hanging()
    bench = Bench(t=handler, s=quick, concurrency=3)
    bench.executor.take([make_job(1)])
    await wait_until(lambda: handler.starts)
    await asyncio.wait_for(bench.executor.take_alone(make_job(9, job_type="s", lost=2)), 30)
    assert [event.job.id for event in bench.heard.of(events.Picked)] == [1, 9]
    handler.go.set()
    await bench.outcomes(2)


async def test_a_shutdown_during_the_quarantine_gives_the_suspect_back_unstarted() -> None:
    handler = Hanging()
    bench = Bench(t=handler)
    bench.executor.take([make_job(1)])
    await wait_until(lambda: handler.starts)
    handler.go.set()
    await bench.outcomes(1)
    suspect = make_job(9, lost=1)
    alone = asyncio.create_task(bench.executor.take_alone(suspect))
    await asyncio.sleep(0)
    bench.executor.close()
    await asyncio.wait_for(alone, 30)
    assert bench.delivered[-1] == (suspect, Released(claim_of(suspect), started=False, counted=False))
