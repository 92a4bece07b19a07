"""Live updates: one watcher per process tells all open pages that something was written, and they ask for themselves again.

What is watched are the counters of PostgreSQL's statistics, so that an open page costs no reading of jobs, however many are open. They are
up to a second late. Without the stream, or without JavaScript, ``?refresh=10`` does the same.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from pqrun.errors import PqrunError
from pqrun.store.pages import read_pulse, reading
from pqrun.web.site import Site
from pqrun.web.visit import PageError, Visit

__all__ = ["Pulse", "events_view"]

_LOGGER = logging.getLogger("pqrun")

WATCH_SECONDS: Final = 2.0
KEEP_ALIVE_SECONDS: Final = 15.0
LISTENERS_MOST: Final = 200
_NOT_WATCHED: Final = ("audit", "migrations", "task_shapes")


class Pulse:
    """A number that grows whenever something was written, while somebody listens."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._listeners: set[asyncio.Event] = set()
        self._watcher: asyncio.Task[None] | None = None

    async def changes(self, request: Request) -> AsyncIterator[str]:
        """Yield events of a stream, until the browser goes."""
        news = asyncio.Event()
        self._listeners.add(news)
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.ensure_future(self._watch())
        try:
            yield "retry: 5000\nevent: hello\ndata: 0\n\n"
            number = 0
            while not await request.is_disconnected():
                try:
                    await asyncio.wait_for(news.wait(), KEEP_ALIVE_SECONDS)
                except TimeoutError:
                    yield ": still here\n\n"
                    continue
                news.clear()
                number += 1
                yield f"event: changed\ndata: {number}\n\n"
        finally:
            self._listeners.discard(news)
            if not self._listeners:
                await self.close()

    @property
    def is_full(self) -> bool:
        """Whether more listeners than these are too many for one process."""
        return len(self._listeners) >= LISTENERS_MOST

    async def close(self) -> None:
        """Stop watching."""
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watcher

    async def _watch(self) -> None:
        last: dict[str, int] | None = None
        while True:
            try:
                now = await self._look()
            except PqrunError as error:  # the pages themselves say what is wrong
                _LOGGER.debug("pages: no look at the database: %s", error)
            else:
                if last is not None and now != last:
                    for listener in self._listeners:
                        listener.set()
                last = now
            await asyncio.sleep(WATCH_SECONDS)

    async def _look(self) -> dict[str, int]:
        store = await self._site.store()
        async with reading(store) as session:
            found = await read_pulse(session, store.schema)
        return {name: writes for name, writes in found.items() if name not in _NOT_WATCHED}


async def events_view(visit: Visit, pulse: Pulse) -> Response:
    """The stream of server-sent events."""
    if pulse.is_full:
        raise PageError(
            503, "Too many open pages", "This process tells no more pages; they still work, and refresh by hand."
        )
    headers = {"X-Accel-Buffering": "no"}  # a buffering proxy would hold events back
    return StreamingResponse(pulse.changes(visit.request), media_type="text/event-stream", headers=headers)
