"""The watch on the worker's loop: what blocks it is named once, while it is blocked, and told when it runs again."""

import asyncio
import logging
import threading
import time

import pytest

from pqrun.job.record import Job
from pqrun.run.blockage import InHand, LoopWatch
from pqrun.run.context import JobContext
from pqrun.run.events import Events, LoopBlocked
from tests.run.making import SECRET, Bench, make_job
from tests.support.waiting import Recorder, wait_until

HOSTILE = make_job(7, job_type="a\nforged")


class Watched:
    """A watch on this test's loop, looked through from another thread at times of the test's choice."""

    def __init__(self, *running: Job, current: Job | None = None) -> None:
        self.events = Events()
        self.heard = Recorder(self.events)
        self.watch = LoopWatch(lambda loop: InHand(current, running), self.events)
        self.clock = 100.0

    @property
    def was_answered(self) -> bool:
        """Whether the loop has answered a ping."""
        return self.watch._ping is not None and self.watch._ping.is_answered

    def look_while_this_blocks(self, *seconds: float) -> None:
        """Look after each of these pauses, from another thread, with this loop standing still."""
        thread = threading.Thread(target=self._look, args=seconds)
        thread.start()
        thread.join(30)

    def _look(self, *seconds: float) -> None:
        for pause in seconds:
            self.clock += pause
            self.watch.look(self.clock)

    async def look(self, seconds: float = 0.5) -> None:
        """Look once, and let the loop answer."""
        self.clock += seconds
        self.watch.look(self.clock)
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def test_a_loop_that_answers_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched(HOSTILE)
    for _ in range(10):
        await watched.look()
    assert not watched.heard.seen
    assert not caplog.messages


async def test_a_blockage_is_logged_once_at_once_with_the_stack_and_the_job(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched(HOSTILE, make_job(8), current=HOSTILE)
    watched.look_while_this_blocks(0.5, *[0.5] * 10)
    (line,) = caplog.messages
    assert "blocked for 2.5 s by a\\nforged id=7;" in line
    assert "look_while_this_blocks" in line  # the innermost of ours in the stack
    assert "run_forever" not in line  # how the loop was called says nothing
    assert "id=8" not in line
    assert line.isprintable()
    assert SECRET not in line


async def test_the_event_comes_when_the_loop_runs_again_with_all_of_the_time(caplog: pytest.LogCaptureFixture) -> None:
    other = make_job(8)
    watched = Watched(HOSTILE, other, current=HOSTILE)
    watched.look_while_this_blocks(0.5, *[0.5] * 10)
    assert not watched.heard.seen
    await asyncio.sleep(0)
    await watched.look()
    await watched.look()
    (told,) = watched.heard.of(LoopBlocked)
    assert (told.seconds, told.job, told.running) == (5.5, HOSTILE, (HOSTILE, other))
    assert "look_while_this_blocks" in told.stack
    assert "\n" in told.stack
    assert len(caplog.messages) == 1


async def test_the_next_blockage_is_reported_anew(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched(HOSTILE)
    for count in (1, 2):
        watched.look_while_this_blocks(*[0.5] * 10)
        await asyncio.sleep(0)
        await watched.look()
        assert len(watched.heard.of(LoopBlocked)) == len(caplog.messages) == count


async def test_where_the_blocking_job_is_unknown_those_that_run_are_named_up_to_a_limit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    Watched(*(make_job(n) for n in range(1, 31))).look_while_this_blocks(*[0.5] * 10)
    assert "by one of: t id=1, " in caplog.messages[0]
    assert " id=10 and 20 more;" in caplog.messages[0]
    caplog.clear()
    Watched().look_while_this_blocks(*[0.5] * 10)
    assert "by one of: no job;" in caplog.messages[0]


async def test_a_watch_that_slept_itself_accuses_nobody(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched(HOSTILE)
    watched.look_while_this_blocks(0.5, 60.0, 0.5, 0.5, 0.5)  # the process was stopped for a minute
    assert not caplog.messages
    watched.look_while_this_blocks(0.5, 0.5)  # and goes on blocking
    assert len(caplog.messages) == 1


async def test_the_stack_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched(HOSTILE)

    def deep(level: int) -> None:
        if level:
            deep(level - 1)
        else:
            watched.look_while_this_blocks(*[0.5] * 10)

    deep(200)
    assert len(caplog.messages[0]) < 10_000


async def test_the_executor_tells_which_job_the_loop_is_executing_and_which_have_started() -> None:
    found: list[InHand] = []

    async def block(ctx: JobContext[None]) -> None:
        thread = threading.Thread(target=lambda: found.append(bench.executor.in_hand(loop)))
        thread.start()
        thread.join(30)

    async def wait(ctx: JobContext[None]) -> None:
        await go.wait()

    loop, go = asyncio.get_running_loop(), asyncio.Event()
    bench = Bench(concurrency=2, block=block, wait=wait)
    waiting, blocking = make_job(1, job_type="wait"), make_job(2, job_type="block")
    bench.executor.take([waiting, blocking])
    await bench.outcomes()
    go.set()
    await bench.wait_idle()
    assert found == [InHand(blocking, (waiting, blocking))]
    assert bench.executor.in_hand(loop) == InHand(None, ())


async def test_it_runs_on_another_thread_and_reports_a_real_blockage(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pqrun.run.blockage.BLOCKED_SECONDS", 0.05)
    monkeypatch.setattr("pqrun.run.blockage.LOOK_SECONDS", 0.01)
    watched = Watched(HOSTILE)
    reported = threading.Event()

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            reported.set()

    watching: list[asyncio.Task[None]] = []

    async def run() -> None:
        watching.append(asyncio.create_task(watched.watch.run()))
        await asyncio.gather(*watching, return_exceptions=True)

    handler = Heard()
    logging.getLogger("pqrun").addHandler(handler)
    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        await wait_until(lambda: watched.was_answered)
        assert reported.wait(30)  # blocks this very loop
        told = await watched.heard.wait_for(LoopBlocked)
    finally:
        for task in watching:
            task.get_loop().call_soon_threadsafe(task.cancel)
        logging.getLogger("pqrun").removeHandler(handler)
        thread.join(30)
    assert "reported.wait(30)" in told.stack


async def test_a_loop_that_was_closed_ends_the_watch() -> None:
    made: list[LoopWatch] = []

    async def make() -> None:
        made.append(LoopWatch(lambda loop: InHand(None, ()), Events()))
        made[0].look(time.monotonic())

    thread = threading.Thread(target=lambda: asyncio.run(make()))
    thread.start()
    thread.join(30)
    await asyncio.wait_for(made[0].run(), 30)
    made[0].look(time.monotonic())
    made[0].look(time.monotonic())
