"""News of ended jobs: one listening connection of an opened store, for all who wait for ends or watch jobs.

The ids are announced to the workers, so that the one which settles a job adds one notification per batch. Without LISTEN, as behind a
pooler, or when a notification is lost, those who asked have to look by themselves: what is heard here is a hint.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Protocol

import asyncpg

from pqrun.errors import PqrunError
from pqrun.store.link import Opener

__all__ = ["ANNOUNCE_AGAIN_SECONDS", "LINGER_SECONDS", "EndNews", "Runs"]

ANNOUNCE_AGAIN_SECONDS = 5.0
"""A worker that started after the first announcement hears the next."""

LINGER_SECONDS = 5.0
"""How long the listening connection is kept when nobody waits: results awaited one after another share it."""

LISTEN_SECONDS = 2.0
"""How long the answer to a LISTEN or an announcement may take: meanwhile nobody polls."""

ANNOUNCED_IDS = 300
"""Ids per notification: a payload is limited to 8,000 bytes."""


class Runs(Protocol):
    """Named statements of the store."""

    async def run(self, name: str, *arguments: object, timeout: float | None = None) -> list[asyncpg.Record]:
        """Run the statement and return its rows."""
        ...


class EndNews:
    """See the module's docstring. ``on_ended`` of each user is called with the ids that have ended, whoever asked for them."""

    def __init__(self, statements: Runs, opener: Opener | None, channel: str) -> None:
        self._statements = statements
        self._opener = opener  # None: nothing can be heard
        self._channel = channel
        self._users: dict[object, Callable[[set[int]], None]] = {}  # those who want to hear now
        self._opening = asyncio.Lock()
        self._listener: asyncpg.Connection | None = None

    async def announce(self, user: object, on_ended: Callable[[set[int]], None], ids: Iterable[int]) -> None:
        """Listen for this user until ``leave``, and tell the workers which jobs it waits for; never raises for the database's sake."""
        self._users[user] = on_ended
        if not await self._listen():
            return
        listed = list(ids)
        for start in range(0, len(listed), ANNOUNCED_IDS):
            message = "await:" + ",".join(map(str, listed[start : start + ANNOUNCED_IDS]))
            with contextlib.suppress(PqrunError):  # polling answers anyway
                await self._statements.run("await", message, timeout=LISTEN_SECONDS)

    async def leave(self, user: object) -> None:
        """Tell this user no more; after the last the connection is given up."""
        self._users.pop(user, None)
        if not self._users:
            await self._unlisten()

    async def _listen(self) -> bool:
        if self._opener is None:
            return False
        async with self._opening:
            if self._listener is not None and not self._listener.is_closed():
                return True
            try:
                if await self._opener.is_pooled():  # nothing can be heard there
                    return False
                self._listener = await self._opener.open()
                await asyncio.wait_for(self._listener.add_listener(self._channel, self._on_done), LISTEN_SECONDS)
            except (PqrunError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                await self._unlisten()
                return False
        return True

    async def _unlisten(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None and self._opener is not None:
            await self._opener.dispose(listener, 1.0)

    def _on_done(self, _connection: object, _pid: int, _channel: str, ids: object) -> None:
        ended = {int(text) for text in str(ids).split(",") if text.isdigit()}
        for on_ended in list(self._users.values()):
            on_ended(ended)
