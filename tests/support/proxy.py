"""A network that fails on demand: a proxy on loopback between a client and PostgreSQL, with each connection and direction in hand.

It speaks TCP to the client and whatever the DSN says to the server. It looks into nothing but the startup message, for the name that the
connection gives itself, so that a test can pick the connection of one duty (``pqrun settle``).
"""

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Self
from urllib.parse import parse_qs, urlsplit

__all__ = ["Direction", "Proxied", "Proxy", "proxied"]

_CHUNK = 65_536


class Direction:
    """One direction of one connection: open, stalled (what comes is held back), or late."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self.stop_before = b""
        """Stalls when a piece that holds these bytes arrives."""
        self.delay_seconds = 0.0
        self.passed = 0
        """Bytes that went through."""
        self.held = asyncio.Event()
        """Set when something arrived that is held back."""

    def stall(self) -> None:
        """Hold back whatever comes from now on."""
        self.held.clear()
        self._open.clear()

    def resume(self) -> None:
        """Let it through again, what was held back first."""
        self._open.set()

    async def wait(self, chunk: bytes = b"") -> None:
        """Return when the next piece may pass."""
        if self.stop_before and self.stop_before in chunk:
            self.stall()
        if not self._open.is_set():
            self.held.set()
            await self._open.wait()
        if self.delay_seconds:
            await asyncio.sleep(self.delay_seconds)


class Proxied:
    """One connection through the proxy; ``name`` is its application_name."""

    def __init__(self, client: asyncio.StreamWriter) -> None:
        self.name = ""
        self.to_server = Direction()
        self.to_client = Direction()
        self.is_over = False
        self._client = client
        self._server: asyncio.StreamWriter | None = None

    def stall(self) -> None:
        """A cut without a FIN: nothing passes in either direction, and neither side is told; ``resume`` ends it."""
        self.to_server.stall()
        self.to_client.stall()

    def resume(self) -> None:
        """Let both directions pass again."""
        self.to_server.resume()
        self.to_client.resume()

    def half_close(self) -> None:
        """Tell the client that the server has closed its direction; the client's own stays open."""
        with contextlib.suppress(OSError, RuntimeError):
            self._client.write_eof()

    def reset(self) -> None:
        """End the connection with a RST."""
        raw = self._client.get_extra_info("socket")
        with contextlib.suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._client.transport.abort()
        self.hang_up()

    def hang_up(self) -> None:
        """Close towards the server, as the death of the client's machine does in the end."""
        if self._server is not None:
            self._server.transport.abort()
        self.is_over = True

    async def serve(self, reader: asyncio.StreamReader, target: "str | tuple[str, int]", *, is_deaf: bool) -> None:
        """Pass bytes until an end: seen on one side it is told to the other, unless that direction is stalled."""
        if is_deaf:
            self.stall()
        try:
            hello = await _read_startup(reader)
            self.name = _application_name(hello)
            await self.to_server.wait()
            if isinstance(target, str):
                answers, self._server = await asyncio.open_unix_connection(target)
            else:
                answers, self._server = await asyncio.open_connection(*target)
            self._server.write(hello)
            async with asyncio.TaskGroup() as group:
                group.create_task(_pump(reader, self._server, self.to_server))
                group.create_task(_pump(answers, self._client, self.to_client))
        except* (OSError, EOFError):
            pass
        finally:
            self.is_over = True
            for writer in (self._client, self._server):
                if writer is not None:
                    writer.transport.abort()


class Proxy:
    """Listens on loopback and forwards to the server of a DSN; see ``proxied``."""

    def __init__(self, dsn: str) -> None:
        self._parts = urlsplit(dsn)
        self.connections: list[Proxied] = []
        """All connections so far, those that are over included."""
        self.tries: list[float] = []
        """Monotonic times at which somebody connected, whether or not it was let through."""
        self.on_open: Callable[[Proxied], object] = lambda _: None
        """Called with each new connection, before anything passes."""
        self.is_deaf = False
        """New connections are accepted and never answered."""
        self.is_unreachable = False
        """New connections are reset at once."""
        self._listener: asyncio.Server | None = None
        self._port = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def dsn(self) -> str:
        """The DSN that leads through the proxy."""
        user = self._parts.netloc.rpartition("@")[0] or "postgres"
        return f"postgresql://{user}@127.0.0.1:{self._port}{self._parts.path}?sslmode=disable"

    def lead_to(self, dsn: str) -> None:
        """Forward new connections to another server."""
        self._parts = urlsplit(dsn)

    @property
    def _target(self) -> "str | tuple[str, int]":
        query = parse_qs(self._parts.query)
        host = query.get("host", [self._parts.hostname or "127.0.0.1"])[0]
        port = int(query.get("port", [str(self._parts.port or 5432)])[0])
        return f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host, port)

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
        self._port = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._listener is not None
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def open(self, name: str = "") -> list[Proxied]:
        """Connections that stand, of those whose application_name contains ``name``."""
        return [one for one in self.connections if not one.is_over and name in one.name]

    def each(self, act: Callable[[Proxied], object], name: str = "") -> int:
        """Do something to every connection that stands; return to how many."""
        chosen = self.open(name)
        for one in chosen:
            act(one)
        return len(chosen)

    def tries_since(self, since: float) -> int:
        """How often somebody tried to connect since then."""
        return sum(at >= since for at in self.tries)

    def most_tries_per_second(self, since: float) -> int:
        """The largest number of tries within any one second since then."""
        times = [at for at in self.tries if at >= since]
        return max((sum(at <= other < at + 1.0 for other in times) for at in times), default=0)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tries.append(time.monotonic())
        one = Proxied(writer)
        if self.is_unreachable:
            one.reset()
            return
        self.connections.append(one)
        self.on_open(one)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await one.serve(reader, self._target, is_deaf=self.is_deaf)
        except asyncio.CancelledError:
            return  # the proxy closes; the stream's own callback would report it
        finally:
            self._tasks.discard(task)


@asynccontextmanager
async def proxied(dsn: str) -> AsyncIterator[Proxy]:
    """Run a proxy in front of the server of ``dsn``."""
    async with Proxy(dsn) as proxy:
        yield proxy


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction) -> None:
    while chunk := await reader.read(_CHUNK):
        await direction.wait(chunk)
        writer.write(chunk)
        direction.passed += len(chunk)
        await writer.drain()
    await direction.wait()
    raise EOFError


async def _read_startup(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(4)
    return head + await reader.readexactly(int.from_bytes(head, "big") - 4)


def _application_name(startup: bytes) -> str:
    fields = startup[8:].split(b"\0")
    named = dict(zip(fields[::2], fields[1::2], strict=False))
    return named.get(b"application_name", b"cancel request" if len(startup) == 16 else b"").decode()
