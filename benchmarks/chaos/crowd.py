"""The processes of a run: workers, each replaced when it ends, and a producer."""

import asyncio
import random
import signal
import sys
from asyncio.subprocess import Process
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from benchmarks.chaos.log import Exited, Log

__all__ = ["Crowd", "Member", "spawn", "stop"]

ROOT = Path(__file__).parents[2]
"""Where the package of this module is found."""

REPLACED_SECONDS = 1.5
"""At most, from the end of a worker to the start of the next."""

END_SECONDS = 60.0
"""Beyond ``shutdown_timeout`` with all it may add: only a hang reaches it."""


@dataclass(eq=False)
class Member:
    """A worker process."""

    name: str
    process: Process
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if it still runs."""
        if self.process.returncode is None:
            self.process.send_signal(number)


class Crowd:
    """Keeps so many workers at work until ``close``."""

    def __init__(self, dsn: str, folder: Path, log: Log, *, workers: int, concurrency: int, rng: random.Random) -> None:
        self._dsn = dsn
        self._folder = folder
        self._log = log
        self._size = workers
        self._concurrency = concurrency
        self._random = rng
        self._members: list[Member] = []
        self._count = 0
        self._is_closing = False
        self._keeping: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        for _ in range(self._size):
            await self._keep_one()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_closing = True
        for member in self._members:
            member.send(signal.SIGKILL)
        await asyncio.gather(*self._keeping)

    @property
    def alive(self) -> list[Member]:
        """Those that have not ended."""
        return [member for member in self._members if not member.ended.is_set()]

    def choose(self, count: int) -> list[Member]:
        """Some of those that are alive, fewer where there are fewer."""
        alive = self.alive
        return self._random.sample(alive, min(count, len(alive)))

    async def close(self) -> None:
        """Stop all in order; one that does not end is killed, and its exit code tells."""
        self._is_closing = True
        for member in self._members:
            member.send(signal.SIGTERM)
        await asyncio.wait(self._keeping, timeout=END_SECONDS)

    async def _keep_one(self) -> None:
        self._count += 1
        name = f"worker-{self._count}"
        process = await spawn("benchmarks.chaos.work", self._dsn, self._folder, name, str(self._concurrency))
        member = Member(name, process)
        self._members.append(member)
        task = asyncio.create_task(self._see_to(member))
        self._keeping.add(task)
        task.add_done_callback(self._keeping.discard)

    async def _see_to(self, member: Member) -> None:
        code = await member.process.wait()
        member.ended.set()
        self._members.remove(member)
        self._log.write(Exited(member.name, code, self._is_closing))
        await asyncio.sleep(0 if self._is_closing else self._random.uniform(0, REPLACED_SECONDS))
        if not self._is_closing:
            await self._keep_one()


async def spawn(module: str, dsn: str, folder: Path, name: str, *arguments: str) -> Process:
    """Start a process of the load; it ends when this one does, and what it logs goes to a file beside its log of events."""
    with (folder / f"{name}.txt").open("ab") as output:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, dsn, str(folder), name, *arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=output,
            stderr=output,
            cwd=ROOT,
        )


async def stop(process: Process) -> int:
    """Stop a producer in order; return its exit code."""
    if process.returncode is None:
        process.terminate()
    try:
        async with asyncio.timeout(END_SECONDS):
            return await process.wait()
    except TimeoutError:
        process.kill()
        return await process.wait()
