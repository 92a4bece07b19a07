"""What a worker needs of a task: three functions and a few facts, so that ``run`` knows nothing of decorators."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from pqrun.job.policy import BackoffPolicy
from pqrun.run.context import JobContext

__all__ = ["Handler"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """One job_type and how to run it: decode the payload, call the function, encode its result."""

    job_type: str
    decode: Callable[[str], object]
    """Stored JSON text to what ``call`` takes; raises PayloadDecodeError (the job is FAILED at once)."""
    call: Callable[[JobContext[Any], object], Awaitable[object]] | Callable[[JobContext[Any], object], object]
    """Runs the user's function: a coroutine function if ``is_async``, else a plain one for a thread."""
    encode: Callable[[object], str | None]
    """The returned value to JSON text of an object, or None; raises ResultError (the job is FAILED at once)."""
    is_async: bool = True
    queue: str | None = None
    """The queue its jobs go to by default; None: unknown (low-level handlers)."""
    backoff: BackoffPolicy | None = None
    """The task's own policy; None: the worker's."""
