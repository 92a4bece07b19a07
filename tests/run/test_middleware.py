"""Middleware around a thread when the event loop ends under it."""

import asyncio
import threading
from typing import Any

from pqrun.job.outcome import Released
from pqrun.run.context import JobContext
from pqrun.run.lowlevel import wrap
from pqrun.run.middleware import CallNext
from tests.run.making import Bench, make_job
from tests.support.waiting import wait_until


class Hanging:
    """A plain function that nobody can stop, inside a middleware."""

    def __init__(self) -> None:
        self.started, self.go = threading.Event(), threading.Event()
        self.seen: list[str] = []
        self.has_ended = False

    def run(self, ctx: JobContext[Any]) -> None:
        self.started.set()
        self.go.wait(20)
        self.has_ended = True

    async def around(self, ctx: JobContext[Any], call_next: CallNext) -> object:
        try:
            return await call_next(ctx)
        except asyncio.CancelledError:
            self.seen.append("cancelled")
            raise

    async def begun(self) -> Bench:
        bench = Bench(wrap("t", self.run).surrounded([self.around]))
        bench.executor.take([make_job()])
        await wait_until(self.started.is_set)
        return bench


def test_a_loop_that_is_torn_down_does_not_wait_for_the_thread() -> None:
    hanging = Hanging()
    try:
        bench = asyncio.run(hanging.begun())  # cancels what still runs, and waits for it
        assert not hanging.has_ended
    finally:
        hanging.go.set()
    assert hanging.seen == ["cancelled"]
    assert [type(outcome) for _, outcome in bench.delivered] == [Released]


def test_a_worker_that_has_given_it_up_does_not_hold_its_loop() -> None:
    hanging = Hanging()

    async def main() -> Bench:
        bench = await hanging.begun()
        bench.executor.stop_all()
        bench.executor.give_up_all()
        return bench

    try:
        bench = asyncio.run(main())
        assert not hanging.has_ended
    finally:
        hanging.go.set()
    assert not hanging.seen
    assert [type(outcome) for _, outcome in bench.delivered] == [Released]


async def test_an_id_is_alive_here_as_long_as_its_thread_or_its_middleware_is() -> None:
    hanging = Hanging()
    bench = await hanging.begun()
    bench.executor.stop_all()
    bench.executor.give_up_all()
    assert bench.executor.alive_ids() == [1]
    assert bench.executor.served_types() == []  # its thread still runs: no plain functions
    hanging.go.set()
    await wait_until(lambda: not bench.executor.alive_ids())
    assert bench.executor.served_types() == ["t"]
