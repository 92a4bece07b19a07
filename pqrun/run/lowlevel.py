"""Handlers without decorators: plain functions of the context alone, payload and result as JSON objects. And the built-in cleanup."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any, TypeAlias

from pqrun.errors import DeclarationError, PayloadError, ResultError
from pqrun.job.options import check_job_type
from pqrun.job.storable import dump_object
from pqrun.run.context import JobContext
from pqrun.run.handler import Handler
from pqrun.store.maintaining import Pruned

__all__ = ["CLEANUP", "LowLevelHandler", "cleanup_handler", "wrap"]

LowLevelHandler: TypeAlias = (
    Callable[[JobContext[Any]], Awaitable[Mapping[str, object] | None]]
    | Callable[[JobContext[Any]], Mapping[str, object] | None]
)
"""``async def handler(ctx: JobContext) -> dict | None``, or a plain function, which runs in a thread."""

CLEANUP = "__cleanup"
"""A job_type that every worker serves: retention on demand, e.g. from pg_cron."""


TURN_SECONDS = 0.05
"""Before a cleanup asks again while another worker prunes."""


def wrap(job_type: str, function: LowLevelHandler) -> Handler:
    """Return what the executor needs for one entry of ``Worker(handlers=)``; raises DeclarationError, OptionError."""
    name = check_job_type(job_type)
    if not callable(function):
        raise DeclarationError(f"handlers[{name!r}] is {type(function).__name__}, expected a function of one context")
    call = getattr(function, "__call__", function)  # noqa: B004  # an object's own __call__ tells whether it is async
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)

    def run(context: JobContext[Any], _payload: object) -> object:
        return function(context)

    return Handler(job_type=name, decode=_decode, call=run, encode=_encode, is_async=is_async)


def cleanup_handler(prune: Callable[..., Awaitable[Pruned]], retention: timedelta | None) -> Handler:
    """Return the handler of ``__cleanup``: deletes finished jobs older than the payload's ``older_than_seconds``, or the retention."""

    async def cleanup(context: JobContext[Any]) -> Mapping[str, object]:
        age = context.job.payload.get("older_than_seconds")
        if age is None and retention is not None:
            age = retention.total_seconds()
        if isinstance(age, bool) or not isinstance(age, int | float) or age < 0:
            raise PayloadError(
                '__cleanup needs a payload {"older_than_seconds": N}, N ≥ 0, when the worker has no retention'
            )
        deleted = 0
        while True:
            piece = await prune(age_seconds=float(age))
            deleted += piece.deleted
            if not piece.is_mine:  # one worker at a time; a piece is short
                await asyncio.sleep(TURN_SECONDS)
            elif not piece.deleted:
                return {"deleted": deleted}

    return wrap(CLEANUP, cleanup)


def _decode(_payload: str) -> None:
    """The context's job decodes it when asked."""


def _encode(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        if inspect.iscoroutine(value):
            value.close()
        raise ResultError(f"a handler returns a dict or None, this one returned {type(value).__name__}")
    try:
        return dump_object(value, "result")
    except PayloadError as error:
        message = str(error)
    raise ResultError(message)
