"""Code of the user's around each execution: what it is called with, how it is checked, and how one layer lies around the next.

The layers are joined once, when a worker starts; a worker without middleware runs its handlers as if this module were not there.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeAlias

from typing_extensions import TypeVar

from pqrun.errors import ArgumentsError, DeclarationError
from pqrun.run.context import JobContext

__all__ = ["CallNext", "Middleware", "check_middleware", "compose", "refuse_start", "refuse_value"]

S = TypeVar("S", default=Any)


class CallNext(Protocol):
    """What a middleware awaits to run the rest: the next middleware, in the end the handler.

    It takes the context that the middleware was given, and returns what the rest returned: the handler's own value, before it is
    checked and stored. It raises what the rest raised, and CancelledError where the job was asked to stop: then nothing more is
    started, and no value counts. It may be awaited again after it has ended, which runs the handler again within the same attempt.
    """

    async def __call__(self, ctx: JobContext[object], /) -> object:
        """Run the rest and return its value."""
        ...


Middleware: TypeAlias = Callable[[JobContext[S], CallNext], Awaitable[object]]
"""``async def middleware(ctx: JobContext[State], call_next: CallNext) -> object``; what it returns is the job's result."""


def check_middleware(function: object) -> None:
    """Refuse, by DeclarationError, what could not be called as a middleware, or would lose every result."""
    name = getattr(function, "__qualname__", type(function).__name__)
    form = "a middleware is async def middleware(ctx: JobContext, call_next: CallNext) -> object"
    if not callable(function):
        raise DeclarationError(f"{form}; got {type(function).__name__}")
    call = getattr(function, "__call__", function)  # noqa: B004  # an object's own __call__ tells whether it is async
    if not (inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)):
        raise DeclarationError(f"{form}; {name} is not async")
    signature = inspect.signature(function)
    try:
        signature.bind(None, None)
    except TypeError:
        raise DeclarationError(f"{form}; {name}{signature} does not take these two") from None
    if signature.return_annotation in (None, "None"):
        raise DeclarationError(
            f"{form}; {name} returns None, so every result would be lost: return what call_next returned"
        )


def compose(middleware: Sequence[Middleware[Any]], innermost: CallNext) -> CallNext:
    """Lay the middleware around ``innermost``, the first of them outermost."""
    call = innermost
    for function in reversed(middleware):
        call = _layer(function, call)
    return call


def _layer(function: Middleware[Any], call_next: CallNext) -> CallNext:
    async def layer(ctx: JobContext[Any], /) -> object:
        return await function(ctx, call_next)

    return layer


def refuse_start(ctx: object) -> None:
    """Start no handler for what is no context, or once the job was asked to stop: its claim may be somebody else's by now."""
    if not isinstance(ctx, JobContext):
        raise ArgumentsError(f"call_next takes the context that the middleware was given; got {type(ctx).__name__}")
    if ctx.cancelled:
        raise asyncio.CancelledError


def refuse_value(ctx: JobContext[Any]) -> None:
    """Hand no value to a middleware, which might commit something, when the handler ignored a stop and its value does not count."""
    if ctx.cancel_reason not in (None, "shutdown") and not ctx._completion:  # the context is the face of its attempt
        raise asyncio.CancelledError
