"""A very small HTTP server, for probes and scrapers: GET and HEAD, one request per connection, in a thread with an event loop of its own.

A worker's own loop may be blocked, which is what a probe asks about; so nothing here runs on it. Whoever connects is not trusted: the
number of connections, the size of a request and every wait have limits, a body is not read, and nothing of a request is echoed or logged.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import NamedTuple, TypeAlias

from pqrun.errors import ConfigurationError

__all__ = ["HttpThread", "Request", "Response", "Route"]

CONNECTIONS_MAX = 64
"""Open at once; who comes then is told to come again."""

REQUEST_MAX_BYTES = 16_384
REQUEST_SECONDS = 5.0
"""For all of a request, however slowly it comes, and again for the answer."""

TURNED_AWAY_SECONDS = 1.0

START_SECONDS = 10.0

_LOGGER = logging.getLogger("pqrun")


class Request(NamedTuple):
    """What is asked for."""

    path: str
    accept: str


class Response(NamedTuple):
    """What is answered."""

    status: HTTPStatus
    content_type: str
    body: bytes


Route: TypeAlias = Callable[[Request], Response]

_TEXT = "text/plain; charset=utf-8"


def _plain(status: HTTPStatus) -> Response:
    return Response(status, _TEXT, f"{status.phrase}\n".encode())


class _BadRequestError(Exception):
    def __init__(self, status: HTTPStatus) -> None:
        self.status = status


class HttpThread:
    """Serves ``routes``, path to function, which are called in the thread; ``start`` and ``stop`` may be called from any other."""

    def __init__(self, routes: Mapping[str, Route], *, host: str, port: int) -> None:
        self._routes = routes
        self._host = host
        self.port = port
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # while it serves
        self._stopping: asyncio.Event | None = None
        self._is_up = threading.Event()
        self._failure: OSError | None = None
        self._open = 0

    def start(self) -> None:
        """Listen, and serve from then on; raises ConfigurationError where that cannot be."""
        self._begin()
        self._thread = threading.Thread(target=self._run, name="pqrun health", daemon=True)
        self._thread.start()
        self._is_up.wait(START_SECONDS)
        if self._failure is not None or self._loop is None:
            why = "it takes too long" if self._failure is None else self._failure.strerror or str(self._failure)
            raise ConfigurationError(f"health checks cannot be served on {self._host} port {self.port}: {why}")

    def stop(self) -> None:
        """Stop listening, and wait for the thread, a second at most: it is a daemon."""
        loop, stopping = self._loop, self._stopping
        if loop is not None and stopping is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                loop.call_soon_threadsafe(stopping.set)
        if self._thread is not None:
            self._thread.join(1.0)

    def _begin(self) -> None:
        """Forget how the last time ended: nothing of it is to be taken for this one."""
        self._is_up.clear()
        self._failure = None

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except OSError as error:
            self._failure = error
        finally:
            self._loop = None
            self._is_up.set()

    async def _serve(self) -> None:
        self._stopping = asyncio.Event()
        server = await asyncio.start_server(self._answer, self._host, self.port, limit=REQUEST_MAX_BYTES)
        async with server:
            self.port = server.sockets[0].getsockname()[1]
            self._loop = asyncio.get_running_loop()
            self._is_up.set()
            await self._stopping.wait()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= CONNECTIONS_MAX:
                async with asyncio.timeout(2 * REQUEST_SECONDS):
                    is_head, response = await self._respond(reader)
                    await _send(reader, writer, response, is_head=is_head)
            elif self._open <= 4 * CONNECTIONS_MAX:
                async with asyncio.timeout(TURNED_AWAY_SECONDS):
                    await _send(reader, writer, _plain(HTTPStatus.SERVICE_UNAVAILABLE))
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the client has gone, or was too slow to be told
        except asyncio.CancelledError:
            pass  # the server stops; the stream's own callback would report it
        finally:
            self._open -= 1
            writer.transport.abort()

    async def _respond(self, reader: asyncio.StreamReader) -> tuple[bool, Response]:
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                method, request = await _read_request(reader)
        except TimeoutError:
            return False, _plain(HTTPStatus.REQUEST_TIMEOUT)
        except _BadRequestError as bad:
            return False, _plain(bad.status)
        return method == "HEAD", self._route(method, request)

    def _route(self, method: str, request: Request) -> Response:
        route = self._routes.get(request.path)
        if route is None:
            return _plain(HTTPStatus.NOT_FOUND)
        if method not in ("GET", "HEAD"):
            return _plain(HTTPStatus.METHOD_NOT_ALLOWED)
        try:
            return route(request)
        except Exception as error:  # noqa: BLE001  # the border to collectors of other libraries: a scrape must not end the thread
            _LOGGER.error("%s could not be answered: %s", request.path, type(error).__name__)
            return _plain(HTTPStatus.INTERNAL_SERVER_ERROR)


async def _send(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, response: Response, *, is_head: bool = False
) -> None:
    writer.write(_head(response) + (b"" if is_head else response.body))
    await writer.drain()
    writer.write_eof()
    # Until the client closes: what it has sent and we have not read would turn our answer into a reset.
    while await reader.read(REQUEST_MAX_BYTES):
        pass


async def _read_request(reader: asyncio.StreamReader) -> tuple[str, Request]:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise _BadRequestError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE) from None
    first, *lines = head.decode("latin-1").split("\r\n")
    parts = first.split(" ")
    if len(parts) != 3 or not parts[1].startswith("/") or not parts[2].startswith("HTTP/1."):
        raise _BadRequestError(HTTPStatus.BAD_REQUEST)
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return parts[0], Request(parts[1].partition("?")[0], fields.get("accept", ""))


def _head(response: Response) -> bytes:
    status = response.status
    allow = "Allow: GET, HEAD\r\n" if status is HTTPStatus.METHOD_NOT_ALLOWED else ""
    return (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {response.content_type}\r\n"
        f"Content-Length: {len(response.body)}\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"
        f"{allow}Connection: close\r\n\r\n"
    ).encode()
