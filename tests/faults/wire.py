"""A wire that counts: a proxy for one connection, which reads the protocol and knows each statement, and kills at the one it is told.

A statement is what its sender waits for: a simple query, or an extended one up to its Sync. ``before``: it is killed when the statement
has come, of which the server hears nothing. ``after``: when the server has answered that it is done, of which the sender hears nothing.
"""

import asyncio
import re
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Literal, NamedTuple, TypeAlias
from urllib.parse import parse_qs, urlsplit

__all__ = ["Point", "When", "Wire", "wired"]

When: TypeAlias = Literal["before", "after"]

_NO_ENCRYPTION = {80877103, 80877104}
"""The codes of those who ask for TLS or GSS first."""


class Point(NamedTuple):
    """Where to kill: at the n-th statement, from 1."""

    number: int
    when: When


class Wire:
    """One listener, for one victim."""

    def __init__(self, dsn: str, point: Point | None) -> None:
        self._parts = urlsplit(dsn)
        self._point = point
        self.kill: Callable[[], None] = lambda: None
        """Set by the test, once there is somebody to kill."""
        self.killed = asyncio.Event()
        self.statements: list[str] = []
        """What each statement was, in order."""
        self.port = 0
        self._answered = -1  # ReadyForQuery so far; the first one ends the startup
        self._texts: dict[bytes, str] = {}  # of prepared statements

    @property
    def dsn(self) -> str:
        """The way through the wire."""
        return (
            f"postgresql://{self._parts.username or 'postgres'}@127.0.0.1:{self.port}{self._parts.path}?sslmode=disable"
        )

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection until either end, or the kill."""
        query = parse_qs(self._parts.query)
        host, port = query["host"][0], query.get("port", ["5432"])[0]
        server_reader, server_writer = await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        try:
            await self._greet(reader, writer, server_writer)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._send(reader, server_writer))
                both.create_task(self._answer(server_reader, writer))
        except* (OSError, EOFError, asyncio.CancelledError):
            pass  # an end of the connection, or of the test
        finally:
            server_writer.close()
            writer.close()

    async def _greet(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: asyncio.StreamWriter
    ) -> None:
        while True:
            head = await reader.readexactly(4)
            body = await reader.readexactly(struct.unpack("!i", head)[0] - 4)
            if struct.unpack("!i", body[:4])[0] not in _NO_ENCRYPTION:
                server.write(head + body)
                return
            writer.write(b"N")

    async def _send(self, reader: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        pending, name = b"", ""
        while True:
            kind, body = await _message(reader)
            pending += _framed(kind, body)
            name = self._name(kind, body) or name
            if kind in b"QS":
                self.statements.append(name)
                if self._point == (len(self.statements), "before"):
                    self._end()
                server.write(pending)
                pending, name = b"", ""
            elif (
                kind in b"HpX"
            ):  # a look at what a statement takes (it runs with the Sync that follows), a password, and the end
                server.write(pending)
                pending = b""

    def _name(self, kind: bytes, body: bytes) -> str:
        if kind == b"Q":
            return _shortened(body[:-1])
        if kind == b"P":
            prepared, sql, *_ = body.split(b"\0")
            self._texts[prepared] = _shortened(sql)
            return self._texts[prepared]
        if kind == b"B":
            return self._texts.get(body.split(b"\0")[1], "?")
        return ""

    async def _answer(self, server: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            kind, body = await _message(server)
            if kind == b"Z":
                self._answered += 1
                if self._point == (self._answered, "after"):
                    self._end()
            writer.write(_framed(kind, body))

    def _end(self) -> None:
        self.kill()
        self.killed.set()
        raise EOFError


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    kind, length = struct.unpack("!ci", await reader.readexactly(5))
    return kind, await reader.readexactly(length - 4)


def _framed(kind: bytes, body: bytes) -> bytes:
    return struct.pack("!ci", kind, len(body) + 4) + body


def _shortened(sql: bytes) -> str:
    text = re.sub(r"--[^\n]*|/\*.*?\*/", "", sql.decode())
    return " ".join(text.split())[:56].rstrip(" ;")


@asynccontextmanager
async def wired(dsn: str, point: Point | None) -> AsyncIterator[Wire]:
    """Listen on loopback."""
    wire = Wire(dsn, point)
    listener = await asyncio.start_server(wire.serve, "127.0.0.1", 0)
    wire.port = listener.sockets[0].getsockname()[1]
    try:
        yield wire
    finally:
        listener.close()
