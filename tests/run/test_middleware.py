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


def test_a_loop_that_is_torn_down_does_not_wait_for_the_thread() -> None:
    started, go = threading.Event(), threading.Event()
    seen: list[object] = []

    def handler(ctx: JobContext[Any]) -> None:
        started.set()
        go.wait(60)

    async def around(ctx: JobContext[Any], call_next: CallNext) -> object:
        try:
            return await call_next(ctx)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def main() -> Bench:
        bench = Bench(wrap("t", handler).surrounded([around]))
        bench.executor.take([make_job()])
        await wait_until(started.is_set)
        return bench

    try:
        bench = asyncio.run(main())  # cancels what still runs, and waits for it
        assert not go.is_set()
    finally:
        go.set()
    assert seen == ["cancelled"]
    assert [type(outcome) for _, outcome in bench.delivered] == [Released]
