"""The pages under a real uvicorn, in this event loop, with a client that behaves like a browser."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from html import unescape
from typing import Any, Self

import httpx
import uvicorn

from pqrun.web import Access, Role
from tests.support.waiting import DEADLINE_SECONDS

ROLE_HEADER = "x-test-role"


def by_header(request: Any) -> Access | None:
    """Whoever says so: the tests' own authorize."""
    role = request.headers.get(ROLE_HEADER, "admin")
    if role == "nobody":
        return None
    return Access(user=request.headers.get("x-test-user", "ann"), role=Role[role.upper()])


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[str]:
    """Serve an ASGI application on a free port of this machine until the block ends; give its URL."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        config = uvicorn.Config(app, log_level="warning", proxy_headers=False, timeout_graceful_shutdown=2, ws="none")
        server = uvicorn.Server(config)
        server.capture_signals = nullcontext  # type: ignore[method-assign, assignment]  # pytest's own handlers stay
        running = asyncio.ensure_future(server.serve(sockets=[listening]))
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                while not server.started:
                    assert not running.done(), running
                    await asyncio.sleep(0)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            await running


class Browser:
    """A client with cookies, which sends forms as a browser does from a page that it has read."""

    def __init__(self, base: str, root: str = "", role: str = "admin", user: str = "ann") -> None:
        headers = {ROLE_HEADER: role, "x-test-user": user}
        self.client = httpx.AsyncClient(base_url=base, timeout=DEADLINE_SECONDS, headers=headers)
        self.base = base
        self.root = root

    async def get(self, path: str, status: int = 200) -> str:
        """Read a page."""
        answer = await self.client.get(self.root + path)
        assert answer.status_code == status, answer.text
        return answer.text

    async def token(self, path: str = "/help") -> str:
        """Read a page and take the token of its user; every page of somebody who may act has one, so a list is read."""
        found = re.search(r'name="_token" value="([^"]+)"', await self.get(path))
        assert found is not None, "no form on the page"
        return unescape(found[1])

    async def post(self, path: str, fields: dict[str, Any], *, token_of: str, status: int = 303) -> httpx.Response:
        """Send a form that stands on another page."""
        data = {"_token": await self.token(token_of), **fields}
        answer = await self.client.post(
            self.root + path, data=data, headers={"origin": self.base, "sec-fetch-site": "same-origin"}
        )
        assert answer.status_code == status, answer.text
        return answer

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.aclose()
