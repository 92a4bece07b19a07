"""What a worker needs of a task: three functions and a few facts, so that ``run`` knows nothing of decorators."""

import functools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from pqrun.job.policy import BackoffPolicy
from pqrun.job.rules import RetryRules
from pqrun.job.shape import Shape
from pqrun.job.versions import newer_payload
from pqrun.run.context import JobContext
from pqrun.run.middleware import CallNext, Middleware, compose, refuse_start, refuse_value

__all__ = ["Handler"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """One job_type and how to run it: decode the payload, call the function, encode its result."""

    job_type: str
    decode: Callable[[str], object]
    """Stored JSON text of this version to what ``call`` takes; raises PayloadDecodeError (the job is FAILED at once)."""
    call: Callable[[JobContext[Any], object], Awaitable[object]] | Callable[[JobContext[Any], object], object]
    """Runs the user's function: a coroutine function if ``is_async``, else a plain one for a thread."""
    encode: Callable[[object], str | None]
    """The returned value to JSON text of an object, or None; raises ResultError (the job is FAILED at once)."""
    is_async: bool = True
    queue: str | None = None
    """The queue its jobs go to by default; None: unknown (low-level handlers)."""
    backoff: BackoffPolicy | None = None
    """The task's own policy; None: the worker's."""
    rules: RetryRules | None = None
    """Which exceptions are tried again; None: all."""
    version: int | None = None
    """The version of payloads that ``decode`` takes; None: of any."""
    decode_older: Callable[[str, int], object] | None = None
    """The same for a text of an older version, which is given too; None: as ``decode``."""
    upgrades_from: int | None = None
    """The oldest version that has an upgrade function; None: no version has one."""
    shape: Callable[[], Shape | None] | None = None
    """Makes the shape of stored payloads; None: there is none (low-level handlers)."""
    around: Callable[[CallNext], CallNext] | None = None
    """Only of plain functions: the middleware to lay around the thread of each; that of async ones is in ``call`` already."""

    def read(self, text: str, version: int) -> object:
        """Decode a stored text of any version; raises PayloadDecodeError, and PayloadVersionError where this code is too old."""
        if self.version is None or version == self.version:
            return self.decode(text)
        if version > self.version:
            raise newer_payload(self.job_type, version, known=self.version)
        return self.decode(text) if self.decode_older is None else self.decode_older(text, version)

    def surrounded(self, middleware: Sequence[Middleware[Any]]) -> "Handler":
        """Return this handler inside the middleware, the first of them outermost; without any, this handler itself."""
        if not middleware:
            return self
        if not self.is_async:
            around = functools.partial(compose, tuple(middleware))

            def call_plain(ctx: JobContext[Any], payload: object) -> object:
                return self.call(ctx, payload)  # looked up at each call: a test may have put something before it

            return replace(self, around=around, call=call_plain)

        async def innermost(ctx: JobContext[Any], /) -> object:
            refuse_start(ctx)
            value = await cast(
                "Awaitable[object]", self.call(ctx, ctx._payload)
            )  # the attempt has put the payload there
            refuse_value(ctx)
            return value

        chain = compose(middleware, innermost)

        def call(ctx: JobContext[Any], _payload: object) -> Awaitable[object]:
            return chain(ctx)

        return replace(self, call=call)
