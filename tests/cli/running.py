"""The real command line as a process of its own, whose lines a test can wait for."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.waiting import DEADLINE_SECONDS

PQRUN = (sys.executable, "-m", "pqrun")

_OUR_VARIABLES = re.compile(r"PQRUN_DSN|DATABASE_URL|WORKER_\w+|COLUMNS|FORCE_COLOR")


def without(module: str) -> tuple[str, ...]:
    """The command line on a system where this module is not installed."""
    return (sys.executable, "-c", f"import sys; sys.modules[{module!r}] = None; from pqrun.cli.main import run; run()")


def environment(**variables: str) -> dict[str, str]:
    """This process's environment without what the command line reads, and with these variables."""
    kept = {name: value for name, value in os.environ.items() if not _OUR_VARIABLES.fullmatch(name)}
    return {**kept, "PYTHONUNBUFFERED": "1", **variables}


class Command:
    """A running command: its output, line by line, stderr included."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []
        self._news = asyncio.Event()
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.lines.append(line.decode().rstrip("\n"))
            self._news.set()

    @property
    def output(self) -> str:
        """All of it so far."""
        return "\n".join(self.lines)

    async def wait_line(self, pattern: str) -> re.Match[str]:
        """Wait for a line that contains a match."""
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                while not (found := [match for line in self.lines if (match := re.search(pattern, line))]):
                    assert not self._reader.done(), f"ended without {pattern!r}:\n{self.output}"
                    self._news.clear()
                    waiting = asyncio.ensure_future(self._news.wait())
                    await asyncio.wait({waiting, self._reader}, return_when=asyncio.FIRST_COMPLETED)
                    waiting.cancel()
        except TimeoutError:
            raise AssertionError(f"no line with {pattern!r}:\n{self.output}") from None
        return found[0]

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    async def end(self) -> int:
        """Wait for its end and return the exit code."""
        try:
            async with asyncio.timeout(2 * DEADLINE_SECONDS):
                await self._reader
                return await self.process.wait()
        except TimeoutError:
            raise AssertionError(f"it did not end:\n{self.output}") from None


@asynccontextmanager
async def running(
    *arguments: str, env: Mapping[str, str], cwd: Path | None = None, program: Sequence[str] = PQRUN
) -> AsyncIterator[Command]:
    """Start it, and see to its end."""
    process = await asyncio.create_subprocess_exec(
        *program,
        *arguments,
        env=dict(env),
        cwd=cwd,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    command = Command(process)
    try:
        yield command
    finally:
        if process.returncode is None:
            process.kill()
        await command.end()


async def run_command(
    *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None, program: Sequence[str] = PQRUN
) -> tuple[int, str]:
    """Run it to its end; return exit code and output."""
    async with running(*arguments, env=environment() if env is None else env, cwd=cwd, program=program) as command:
        return await command.end(), command.output
