"""App factories for ``benchmarks.serve`` whose jobs do more than nothing: fail, take long, use another part of the API."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from benchmarks.no_op import Payload, Recorder
from pqrun import App, BackoffPolicy, JobContext

__all__ = ["FAILS", "SLOW", "SLOW_SECONDS", "mixed", "mixed_recorded", "retrying", "with_resources"]

FAILS, SLOW = 0, 1
"""The remainders of i by 100 that fail, and that take long, in `mixed`."""

SLOW_SECONDS = 1.0

FAILING_SHARE = 20
"""One of so many jobs fails at its first attempt in `retrying`."""

RETRY_DELAY = timedelta(milliseconds=200)


def mixed(dsn: str, recorder: Recorder) -> App[None]:
    """One of a hundred fails, one takes a second."""
    app = App(dsn=dsn)

    @app.task(payload=Payload)
    async def no_op(_ctx: JobContext, payload: Payload) -> dict[str, bool]:
        if not recorder.has_started:
            recorder.tell_started()
        await _act(payload)
        return {"ok": True}

    return app


def mixed_recorded(dsn: str, recorder: Recorder) -> App[None]:
    """The same, with the start and the end of each handler noted."""
    app = App(dsn=dsn)

    @app.task(payload=Payload)
    async def no_op(ctx: JobContext, payload: Payload) -> dict[str, bool]:
        start = time.time()
        if not recorder.has_started:
            recorder.tell_started()
        try:
            await _act(payload)
        finally:
            recorder.note(ctx.job.id, start, time.time())
        return {"ok": True}

    return app


async def _act(payload: Payload) -> None:
    rest = payload.i % 100
    if rest == FAILS:
        raise ValueError("as asked")
    if rest == SLOW:
        await asyncio.sleep(SLOW_SECONDS)


class _Soon(BackoffPolicy):
    def retry_delay(self, attempts: int) -> timedelta:  # noqa: ARG002  # the same for each
        return RETRY_DELAY


def retrying(dsn: str, recorder: Recorder) -> App[None]:
    """One of twenty fails at its first attempt, and is tried again soon."""
    app = App(dsn=dsn)

    @app.task(payload=Payload, backoff=_Soon())
    async def no_op(ctx: JobContext, payload: Payload) -> dict[str, bool]:
        if not recorder.has_started:
            recorder.tell_started()
        if payload.i % FAILING_SHARE == 0 and ctx.job.attempts == 1:
            raise ValueError("as asked, once")
        return {"ok": True}

    return app


@asynccontextmanager
async def _nothing() -> AsyncIterator[None]:
    yield None


def with_resources(dsn: str, recorder: Recorder) -> App[None]:
    """The plain job in an app with ``resources=``, which it does not use."""
    app = App(dsn=dsn, resources=_nothing)

    @app.task(payload=Payload)
    async def no_op(_ctx: JobContext[None], payload: Payload) -> dict[str, bool]:  # noqa: ARG001  # validated all the same
        if not recorder.has_started:
            recorder.tell_started()
        return {"ok": True}

    return app
