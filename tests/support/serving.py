"""Real web servers and workers, each a process of its own, as a reader of the examples starts them."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.cli.running import Command, environment, run_command, running
from tests.support.waiting import DEADLINE_SECONDS

ROOT = Path(__file__).resolve().parents[2]

ENDED = (0, -signal.SIGTERM)
"""Exit codes of a server in order: uvicorn raises its signal again once all is closed."""

HEARS = r"https?://127\.0\.0\.1:(\d+)"
"""What every server prints when it listens; port 0 lets the system choose one."""


class Project:
    """A folder with a web application, and the variables that its processes have."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.folder = folder
        self.env = environment(PYTHONPATH=str(ROOT), **variables)

    async def command(self, *arguments: str) -> None:
        """Run a command of Python to its end, which must be a good one."""
        code, output = await run_command(*arguments, env=self.env, cwd=self.folder, program=(sys.executable,))
        assert code == 0, output

    @asynccontextmanager
    async def serving(self, *arguments: str, **variables: str) -> AsyncIterator[httpx.AsyncClient]:
        """Run a server, ``python`` with these arguments, until the block ends; it must stop in order when it is asked to."""
        env = {**self.env, **variables}
        async with running(*arguments, env=env, cwd=self.folder, program=(sys.executable,)) as server:
            port = (await server.wait_line(HEARS))[1]
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=DEADLINE_SECONDS) as client:
                try:
                    yield client
                except AssertionError as error:
                    error.add_note(server.output)
                    raise
            server.send(signal.SIGTERM)
            assert await server.end() in ENDED, server.output
            assert "Traceback" not in server.output, server.output

    @asynccontextmanager
    async def working(self, target: str, *flags: str) -> AsyncIterator[Command]:
        """Run ``pqrun worker`` until the block ends; it must stop in order."""
        async with running("worker", target, *flags, env=self.env, cwd=self.folder) as worker:
            await worker.wait_line("worker .* started")
            yield worker
            worker.send(signal.SIGTERM)
            assert await worker.end() == 0, worker.output
            assert "stopped" in worker.lines[-1]


async def poll(client: httpx.AsyncClient, path: str, until: Sequence[str]) -> dict[str, Any]:
    """Ask as a browser would until the answer's status is one of these; return the answer."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            answer = await client.get(path)
            assert answer.status_code == 200, answer.text
            found: dict[str, Any] = answer.json()
            if found["status"] in until:
                return found
            await asyncio.sleep(0.02)
