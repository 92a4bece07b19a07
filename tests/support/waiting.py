"""Waiting for conditions and events with a deadline, instead of sleeping."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import TypeVar

from pqrun.run.events import Event, Events

E = TypeVar("E")

DEADLINE_SECONDS = 30.0
"""Far beyond what anything here takes on a slow machine: only a hang reaches it."""


async def wait_until(condition: Callable[[], object | Awaitable[object]], *, seconds: float = DEADLINE_SECONDS) -> None:
    """Wait until ``condition`` is true, looking every few milliseconds; for state in the database, which tells nobody."""
    async with asyncio.timeout(seconds):
        while True:
            value = condition()
            if inspect.isawaitable(value):
                value = await value
            if value:
                return
            await asyncio.sleep(0.005)


class Recorder:
    """Subscribes to a worker's events, keeps them, and waits for one of a kind."""

    def __init__(self, events: Events) -> None:
        self.seen: list[Event] = []
        self._new = asyncio.Event()
        events.subscribe(self._hear)

    def _hear(self, event: Event) -> None:
        self.seen.append(event)
        self._new.set()

    def of(self, kind: type[E]) -> list[E]:
        """All events of a kind so far."""
        return [event for event in self.seen if isinstance(event, kind)]

    async def wait_for(self, kind: type[E], *, count: int = 1, seconds: float = DEADLINE_SECONDS) -> E:
        """Wait until so many of a kind were heard; return the last of them."""
        async with asyncio.timeout(seconds):
            while len(found := self.of(kind)) < count:
                self._new.clear()
                await self._new.wait()
        return found[count - 1]
