"""The duty that writes reports: the latest of each claim, together, once a second; and the sweep."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import pytest

from pqrun.errors import DatabaseUnavailableError
from pqrun.job.outcome import Done, Retrying
from pqrun.job.policy import LoopErrorPolicy
from pqrun.job.progress import Report
from pqrun.job.record import Claim
from pqrun.run import progress
from pqrun.run.context import JobContext
from pqrun.run.events import Events, LoopFailed
from pqrun.run.progress import Reporter, Sweeper
from pqrun.store.reporting import Swept
from tests.run.making import Bench, claim_of, make_job
from tests.support.waiting import Recorder, wait_until

A, B = Claim(1, 11), Claim(2, 12)


class Store:
    """Takes down what is written; may refuse, find rows locked, or take its time."""

    def __init__(self) -> None:
        self.written: list[dict[Claim, Report]] = []
        self.failures: list[Exception] = []
        self.locked: list[set[Claim]] = []
        self.may_write = asyncio.Event()
        self.may_write.set()
        self.during: Callable[[], None] = lambda: None

    async def report(self, reports: Mapping[Claim, Report]) -> set[Claim]:
        self.written.append(dict(reports))
        self.during()
        await self.may_write.wait()
        if self.failures:
            raise self.failures.pop(0)
        return self.locked.pop(0) if self.locked else set()


@asynccontextmanager
async def reporting(store: Store, events: Events | None = None) -> AsyncIterator[Reporter]:
    """A duty that is at rest."""
    reporter = Reporter(store, events=events or Events(), policy=LoopErrorPolicy())
    reporter.service.start()
    await wait_until(lambda: not reporter._is_woken)
    yield reporter
    store.may_write.set()
    assert await reporter.service.stop(30)


def values(written: dict[Claim, Report]) -> dict[Claim, float]:
    return {claim: report.value for claim, report in written.items()}


async def test_ten_thousand_reports_are_one_write_of_the_last_of_each() -> None:
    store = Store()
    async with reporting(store) as reporter:
        for n in range(10_001):
            reporter.note(A, Report(n / 10_000, None))
            reporter.note(B, Report(1 - n / 10_000, None))
        await wait_until(lambda: store.written)
    assert [values(written) for written in store.written] == [{A: 1.0, B: 0.0}]


async def test_the_first_report_goes_at_once_and_the_next_after_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "REPORT_SECONDS", 3600.0)
    store = Store()
    async with reporting(store) as reporter:
        reporter._began = -3600.0
        reporter.note(A, Report(0.1, None))
        await wait_until(lambda: store.written)
        reporter.note(A, Report(0.2, None))
        reporter.note(B, Report(0.3, None))
        assert 3500 < await reporter._tick() <= 3600
        assert len(store.written) == 1
        await reporter.flush(A)  # the end of its handler cannot wait so long, and takes the others with it
    assert [values(written) for written in store.written] == [{A: 0.1}, {A: 0.2, B: 0.3}]


async def test_what_is_noted_while_a_write_is_in_flight_is_neither_lost_nor_overtaken_by_it() -> None:
    store = Store()
    async with reporting(store) as reporter:
        store.failures = [DatabaseUnavailableError("gone")]
        store.during = lambda: reporter.note(A, Report(0.9, None)) if len(store.written) == 1 else None
        reporter.note(A, Report(0.1, None))
        reporter.note(B, Report(0.5, None))
        await wait_until(lambda: len(store.written) == 2)
    assert [values(written) for written in store.written] == [{A: 0.1, B: 0.5}, {A: 0.9, B: 0.5}]


async def test_threads_report_too_and_wake_the_duty() -> None:
    store = Store()
    async with reporting(store) as reporter:

        def work(claim: Claim) -> None:
            for n in range(20_001):
                reporter.note(claim, Report(n / 20_000, None))

        threads = [threading.Thread(target=work, args=(Claim(n, n),)) for n in range(4)]
        for thread in threads:
            thread.start()
        await wait_until(lambda: not any(thread.is_alive() for thread in threads))
        for n in range(4):
            await reporter.flush(Claim(n, n))
        last: dict[Claim, float] = {}
        for written in store.written:
            last |= values(written)
        assert last == {Claim(n, n): 1.0 for n in range(4)}


async def test_a_row_that_was_locked_is_tried_with_the_next_write_and_a_lost_claim_is_dropped() -> None:
    store = Store()
    async with reporting(store) as reporter:
        store.locked = [{A}]
        reporter.note(A, Report(0.1, None))
        reporter.note(B, Report(0.2, None))
        await reporter.flush(A)
        assert not reporter.has_unwritten(B)
    assert [values(written) for written in store.written] == [{A: 0.1, B: 0.2}, {A: 0.1}]


async def test_flushes_of_many_share_writes() -> None:
    store = Store()
    async with reporting(store) as reporter:
        claims = [Claim(n, n) for n in range(200)]
        for claim in claims:
            reporter.note(claim, Report(1.0, None))
        await asyncio.gather(*(reporter.flush(claim) for claim in claims))
    assert len(store.written) <= 2


async def test_a_flush_waits_no_longer_than_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "FLUSH_SECONDS", 0.05)
    store = Store()
    async with reporting(store) as reporter:
        store.may_write.clear()
        reporter.note(A, Report(0.1, None))
        async with asyncio.timeout(30):
            await reporter.flush(A)
        assert reporter.has_unwritten(A)


async def test_a_flush_of_what_never_reported_waits_for_nothing() -> None:
    store = Store()
    async with reporting(store) as reporter:
        store.may_write.clear()
        reporter.note(A, Report(0.1, None))
        await reporter.flush(B)
        assert not reporter.has_unwritten(B)


async def test_a_database_that_is_away_costs_nothing_but_reports_that_were_overtaken() -> None:
    store, events = Store(), Events()
    heard = Recorder(events)
    async with reporting(store, events) as reporter:
        store.failures = [DatabaseUnavailableError("gone")] * 2
        for n in range(1, 4):
            reporter.note(A, Report(n / 10, None))
            await wait_until(lambda n=n: len(store.written) >= n)  # type: ignore[misc]  # a default binds it
        await wait_until(lambda: not reporter.has_unwritten(A))
    assert len(heard.of(LoopFailed)) == 2
    assert store.written[-1] == {A: Report(0.3, None)}


# The end of a handler.


async def report_half(ctx: JobContext) -> None:
    await ctx.progress(0.5, "half")


async def test_the_last_report_is_written_before_the_outcome_is_handed_on() -> None:
    bench = Bench(t=report_half)
    job = make_job()
    seen = []

    async def flush(claim: Claim) -> None:
        seen.append((claim, len(bench.delivered)))

    bench.noted.flush = flush  # type: ignore[method-assign]  # to look at what was handed on by then
    await bench.outcome_of(job, Done)
    assert seen == [(claim_of(job), 0)]
    assert bench.noted.reports == {claim_of(job): Report(0.5, "half")}


async def test_the_report_of_a_handler_that_fails_counts_too() -> None:
    async def fail(ctx: JobContext) -> None:
        await ctx.progress(0.7)
        raise ValueError

    bench = Bench(t=fail)
    await bench.outcome_of(make_job(), Retrying)
    assert bench.noted.flushes == [claim_of(make_job())]


async def test_a_handler_that_never_reports_waits_for_nothing() -> None:
    async def quiet(ctx: JobContext) -> None: ...

    bench = Bench(t=quiet)
    await bench.outcome_of(make_job(), Done)
    assert bench.noted.flushes == []


async def test_a_plain_function_reports_from_its_thread() -> None:
    def plain(ctx: JobContext) -> None:
        ctx.progress_sync(0.25, "in a thread")

    bench = Bench(t=plain)
    await bench.outcome_of(make_job(), Done)
    assert bench.noted.reports == {claim_of(make_job()): Report(0.25, "in a thread")}


async def hanging_report(bench: Bench) -> None:
    """Start a job whose last report is never written."""
    waits = asyncio.Event()

    async def flush(claim: Claim) -> None:
        waits.set()
        await asyncio.Event().wait()

    bench.noted.flush = flush  # type: ignore[method-assign]  # the database never answers
    bench.executor.take([make_job()])
    async with asyncio.timeout(30):
        await waits.wait()


async def test_a_worker_that_gives_up_hands_the_outcome_on_without_the_report() -> None:
    bench = Bench(t=report_half)
    await hanging_report(bench)
    assert bench.delivered == []
    bench.executor.close()
    bench.executor.give_up_all()
    assert [type(outcome) for _, outcome in bench.delivered] == [Done]  # at once: the settler is flushed next
    assert bench.executor.running == 0


@pytest.mark.parametrize("is_ack_sync", [False, True])
async def test_so_does_an_event_loop_that_is_torn_down(is_ack_sync: bool) -> None:
    async def never(job: object, outcome: object) -> None:
        raise AssertionError

    bench = Bench(t=report_half, deliver_and_wait=never if is_ack_sync else None)
    await hanging_report(bench)
    (attempt,) = bench.executor._running.values()
    assert attempt.task is not None
    attempt.task.cancel()
    await asyncio.wait({attempt.task}, timeout=30)
    assert [type(outcome) for _, outcome in bench.delivered] == [Done]


# The sweep.


class Reports:
    def __init__(self, *pieces: Swept) -> None:
        self.pieces = list(pieces)
        self.after: list[int] = []

    async def sweep_progress(self, after: int) -> Swept:
        self.after.append(after)
        return self.pieces.pop(0)


async def test_the_sweep_goes_on_where_it_was_and_begins_again_at_the_end() -> None:
    reports = Reports(
        Swept(1000, 1000, 0), Swept(2500, 1000, 7), Swept(2600, 100, 0), Swept(None, 0, 0), Swept(5, 5, 0)
    )
    sweeper = Sweeper(reports, events=Events(), policy=LoopErrorPolicy())
    pauses = [await sweeper._tick() for _ in range(5)]
    assert reports.after == [0, 1000, 2500, 2600, 0]
    assert [pause < 1 for pause in pauses] == [False, True, False, False, False]
