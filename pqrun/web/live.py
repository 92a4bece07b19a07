"""Live updates: one watcher per process tells all open pages that something was written, and they ask for themselves again.

What is watched are the counters of PostgreSQL's statistics, so that an open page costs no reading of jobs, however many are open. They are
up to a second late. Without the stream, or without JavaScript, ``?refresh=10`` does the same.
"""

import asyncio
import contextlib
import logging
import secrets
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
STREAM_SECONDS: Final = 20.0
"""How long one stream goes on: a server that is asked to stop waits for open ones, and cannot tell them."""

RETRY_MS: Final = 1_000
LISTENERS_MOST: Final = 200
_NOT_WATCHED: Final = ("audit", "migrations", "task_shapes", "workers")
"""Workers write once a second: a page about them would never rest."""


class Pulse:
    """A number that grows whenever something was written, while somebody listens."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._listeners: set[asyncio.Event] = set()
        self._watcher: asyncio.Task[None] | None = None
        # Of the watcher: what it saw last, and how often that has changed. They outlive it, so that a gap is noticed.
        self._last: dict[str, int] | None = None
        self._number = 0
        self._name = secrets.token_hex(4)  # numbers of another process mean nothing here

    async def changes(self, request: Request) -> AsyncIterator[str]:
        """Yield events of a stream for some seconds; the browser asks again, and hears what it has missed."""
        news = asyncio.Event()
        self._listeners.add(news)
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.ensure_future(self._watch())
        clock = asyncio.get_running_loop().time
        end = clock() + STREAM_SECONDS
        heard = request.headers.get("last-event-id")
        try:
            yield f"retry: {RETRY_MS}\nid: {self._id}\nevent: hello\ndata: \n\n"
            if heard is not None and heard != self._id:
                news.set()
            while (left := end - clock()) > 0 and not await request.is_disconnected():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(news.wait(), left)
                if news.is_set():
                    news.clear()
                    yield f"id: {self._id}\nevent: changed\ndata: \n\n"
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

    @property
    def _id(self) -> str:
        return f"{self._name}-{self._number}"

    async def _watch(self) -> None:
        while True:
            try:
                now = await self._look()
            except PqrunError as error:  # the pages themselves say what is wrong
                _LOGGER.debug("pages: no look at the database: %s", error)
            else:
                if self._last is not None and now != self._last:
                    self._number += 1
                    for listener in self._listeners:
                        listener.set()
                self._last = now
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
