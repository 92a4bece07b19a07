"""Producer processes of a measurement, as their parent sees them: started, given orders, ended."""

import asyncio
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from benchmarks.processes import ROOT
from benchmarks.produce import Bulk, Count, Defers, OpenLoop, Paced, Sent

__all__ = ["ProducerProcess", "producers"]

LINE_BYTES = 64 * 1024 * 1024
"""Of an answer, at most: a hundred thousand ids and times are five million bytes."""

ANSWER_SECONDS = 240.0
"""Longer than any order here takes."""

END_SECONDS = 30.0


class ProducerProcess:
    """A process that defers what it is told to; see ``benchmarks.produce``."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def count(self, order: Defers | Bulk) -> Count:
        """Let it defer so much; return how long that took."""
        return msgspec.json.decode(await self._ask(order), type=Count)

    async def send(self, order: Paced | OpenLoop) -> Sent:
        """Let it defer so much; return ids and times."""
        return msgspec.json.decode(await self._ask(order), type=Sent)

    async def wait_ready(self) -> None:
        """Wait until its first job is written. Raises RuntimeError when it ends before."""
        await self._answer()

    async def end(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), END_SECONDS)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    async def _ask(self, order: Defers | Bulk | Paced | OpenLoop) -> bytes:
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(order) + b"\n")
        return await self._answer()

    async def _answer(self) -> bytes:
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), ANSWER_SECONDS)
        if not line:
            raise RuntimeError(f"producer process {self._process.pid} ended; its error is above")
        return line


@asynccontextmanager
async def producers(dsn: str, count: int = 1, *, is_silent: bool = False) -> AsyncIterator[list[ProducerProcess]]:
    """Start so many and wait until each has written a first job; ``is_silent``: without notifications."""
    async with AsyncExitStack() as stack:
        words = ["benchmarks.produce", dsn, *(["--silent"] if is_silent else [])]
        members = []
        for _ in range(count):
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", *words, cwd=ROOT, stdin=PIPE, stdout=PIPE, limit=LINE_BYTES
            )
            members.append(ProducerProcess(process))
            stack.push_async_callback(members[-1].end)
        for member in members:
            await member.wait_ready()
        yield members
