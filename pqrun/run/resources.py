"""What ``resources=`` opened, left within a limit of time: user code at the very end of a worker must not hold its process."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TypeVar

__all__ = ["LeftInTime"]

S_co = TypeVar("S_co", covariant=True)

_LOGGER = logging.getLogger("pqrun")


class LeftInTime(AbstractAsyncContextManager[S_co]):
    """The same context manager; after so many seconds, asked for when it is left, its exit is cancelled, and a line in the log says so.

    The exit runs in the task that entered it, as task groups demand; so one that ignores its cancellation is waited for.
    """

    def __init__(self, inner: AbstractAsyncContextManager[S_co], seconds: Callable[[], float]) -> None:
        self._inner = inner
        self._seconds = seconds

    async def __aenter__(self) -> S_co:
        return await self._inner.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        seconds = self._seconds()
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                return await self._inner.__aexit__(kind, error, trace)
        except TimeoutError:
            if not limit.expired():
                raise
        _LOGGER.warning("resources= did not end within %.1f s, what was left of shutdown_timeout: cut off", seconds)
        return None
