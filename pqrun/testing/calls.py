"""Standing between a worker and the functions that it calls, for as long as a test needs it."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from pqrun.job.record import Job
from pqrun.run.context import JobContext
from pqrun.run.handler import Handler

__all__ = ["before_calls", "hearing_errors"]


@contextmanager
def before_calls(handler: Handler, before: Callable[[Job], None]) -> Iterator[None]:
    """Call ``before`` with the job right before its handler; what it raises, the handler raises."""
    kept = handler.call

    async def call(ctx: JobContext[Any], payload: object) -> object:
        before(ctx.job)
        return await cast("Awaitable[object]", kept(ctx, payload))

    def call_in_thread(ctx: JobContext[Any], payload: object) -> object:
        before(ctx.job)
        return kept(ctx, payload)

    with _replaced(handler, call if handler.is_async else call_in_thread):
        yield


@contextmanager
def hearing_errors(handler: Handler, hear: Callable[[Job, BaseException], None]) -> Iterator[None]:
    """Hand on what the handler raises, before the worker makes text of it."""
    kept = handler.call

    async def call(ctx: JobContext[Any], payload: object) -> object:
        try:
            return await cast("Awaitable[object]", kept(ctx, payload))
        except BaseException as error:
            hear(ctx.job, error)
            raise

    def call_in_thread(ctx: JobContext[Any], payload: object) -> object:
        try:
            return kept(ctx, payload)
        except BaseException as error:
            hear(ctx.job, error)
            raise

    with _replaced(handler, call if handler.is_async else call_in_thread):
        yield


@contextmanager
def _replaced(handler: Handler, call: Callable[[JobContext[Any], object], object]) -> Iterator[None]:
    """Put another function into this very object: a worker that runs already holds it, and no other."""
    kept = handler.call
    object.__setattr__(handler, "call", call)  # frozen, rightly, for everybody else
    try:
        yield
    finally:
        object.__setattr__(handler, "call", kept)
