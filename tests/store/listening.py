"""What is heard on a channel, in order; and the proof that nothing was said."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from tests.support.database import connected
from tests.support.waiting import DEADLINE_SECONDS

_END = "nothing more until here"


class Heard:
    """Messages of one channel."""

    def __init__(self, connection: asyncpg.Connection, channel: str) -> None:
        self.messages: list[str] = []
        self._connection = connection
        self._channel = channel
        self._new = asyncio.Event()

    def __call__(self, _connection: object, _pid: int, _channel: str, message: str) -> None:
        self.messages.append(message)
        self._new.set()

    async def wait_for(self, count: int) -> list[str]:
        """Wait until so many messages came; return all."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while len(self.messages) < count:
                self._new.clear()
                await self._new.wait()
        return self.messages

    async def until_now(self) -> list[str]:
        """Everything that was committed before this call: messages come in the order of commits, so a last one of our own ends them."""
        await self._connection.execute("SELECT pg_notify($1, $2)", self._channel, _END)
        async with asyncio.timeout(DEADLINE_SECONDS):
            while _END not in self.messages:
                self._new.clear()
                await self._new.wait()
        self.messages.remove(_END)
        return self.messages


@asynccontextmanager
async def hearing(dsn: str, channel: str = "pqrun") -> AsyncIterator[Heard]:
    """Listen to a channel on a connection of its own."""
    async with connected(dsn) as connection:
        heard = Heard(connection, channel)
        await connection.add_listener(channel, heard)
        yield heard
        await connection.remove_listener(channel, heard)
