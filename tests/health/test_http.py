"""The small HTTP server, and clients that are slow, many, or hostile."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus

import httpx
import pytest

from pqrun.errors import ConfigurationError
from pqrun.health import http
from pqrun.health.http import HttpThread, Request, Response
from tests.support.waiting import wait_until


def hello(request: Request) -> Response:
    return Response(HTTPStatus.OK, "text/plain", f"hello {request.accept}".encode())


def broken(request: Request) -> Response:
    raise ValueError("hunter2")


@asynccontextmanager
async def serving() -> AsyncIterator[HttpThread]:
    server = HttpThread({"/hello": hello, "/broken": broken}, host="127.0.0.1", port=0)
    await asyncio.to_thread(server.start)
    try:
        yield server
    finally:
        await asyncio.to_thread(server.stop)


async def ask(port: int, request: bytes) -> bytes:
    """Send these bytes and read all that comes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        return await asyncio.wait_for(reader.read(), 30)
    finally:
        writer.close()


async def test_get_and_head_are_answered_and_each_connection_ends() -> None:
    async with serving() as server, httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as client:
        answer = await client.get("/hello?verbose=1", headers={"Accept": "text/x"})
        assert (answer.status_code, answer.text) == (200, "hello text/x")
        assert (answer.headers["connection"], answer.headers["cache-control"]) == ("close", "no-store")
        head = await client.head("/hello")
        assert (head.status_code, head.content) == (200, b"")
        assert (await client.get("/other")).status_code == 404
        refused = await client.post("/hello", content=b"x" * 100_000)
        assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET /hello\r\n\r\n", b"400"),
        (b"GET http://other/hello HTTP/1.1\r\n\r\n", b"400"),
        (b"\xff\xfe\x00\r\n\r\n", b"400"),
        (b"GET /hello SPDY/3\r\n\r\n", b"400"),
        (b"GET /hello HTTP/1.1\r\nX: " + b"x" * 40_000 + b"\r\n\r\n", b"431"),
        (b"GET /" + b"x" * 40_000, b"431"),
    ],
)
async def test_what_is_no_request_is_refused(request_bytes: bytes, status: bytes) -> None:
    async with serving() as server:
        answer = await ask(server.port, request_bytes)
        assert answer.startswith(b"HTTP/1.1 " + status), answer
        assert b"xxx" not in answer
        assert (await ask(server.port, b"GET /hello HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.1 200")


async def test_a_client_that_sends_nothing_is_told_so_and_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REQUEST_SECONDS", 0.2)
    async with serving() as server:
        assert (await ask(server.port, b"GET /hello HTTP/1.1\r\nX-Slow")).startswith(b"HTTP/1.1 408")


async def test_a_client_that_never_closes_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REQUEST_SECONDS", 0.2)
    async with serving() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /hello HTTP/1.1\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
        await wait_until(lambda: server._open == 0)
        writer.close()


async def test_many_open_connections_do_not_keep_others_out_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 3)
    monkeypatch.setattr(http, "REQUEST_SECONDS", 1.0)
    async with serving() as server:
        held = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(3)]
        await wait_until(lambda: server._open == 3)
        assert (await ask(server.port, b"")).startswith(b"HTTP/1.1 503")

        async def is_served() -> bool:
            return (await ask(server.port, b"GET /hello HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200")

        await wait_until(is_served)  # those that say nothing have used up their time
        for _, writer in held:
            writer.close()


async def test_what_a_route_raises_is_an_answer_without_its_message(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as server:
        answer = await ask(server.port, b"GET /broken HTTP/1.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 500")
        assert (await ask(server.port, b"GET /hello HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200")
    assert "/broken could not be answered: ValueError" in caplog.text
    assert "hunter2" not in caplog.text + answer.decode()


async def test_a_port_that_is_taken_is_named() -> None:
    async with serving() as server:
        second = HttpThread({}, host="127.0.0.1", port=server.port)
        with pytest.raises(ConfigurationError, match=rf"on 127\.0\.0\.1 port {server.port}: "):
            await asyncio.to_thread(second.start)
        await asyncio.to_thread(second.stop)


async def test_it_listens_no_more_once_it_is_stopped_and_may_be_stopped_twice() -> None:
    async with serving() as server:
        server.stop()
        with pytest.raises(OSError):  # refused, whatever a system calls it
            await ask(server.port, b"GET /hello HTTP/1.1\r\n\r\n")
