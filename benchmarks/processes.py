"""Worker processes of a measurement: started, timed, stopped; and the processor time that they and the server's backends took."""

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import IO, Literal, NamedTuple

from benchmarks.no_op import Records, read_records

__all__ = [
    "DEFAULT",
    "FAST",
    "Setup",
    "WorkerProcess",
    "at_work",
    "cpu_seconds",
    "loop_factory",
    "server_cpu_seconds",
    "start_process",
]

ROOT = Path(__file__).parents[1]
"""Where the package of this module is found."""

START_SECONDS = 60.0

LOG_LINES = 20
"""Of a process that failed."""

STOP_SECONDS = 60.0
"""Beyond ``shutdown_timeout``: only a hang reaches it."""

_CLOCK_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


class Setup(NamedTuple):
    """How a worker runs; everything else is a default of the library."""

    loop: Literal["uvloop", "asyncio"] = "asyncio"
    concurrency: int | None = None
    """None: the default, 1."""
    app: str = "benchmarks.no_op:plain"
    """MODULE:FACTORY."""
    queues: str | None = None
    """A,B; None: those of the app's tasks."""
    log_level: str | None = None
    """None: logging is not configured."""
    is_subscribed: bool = False
    """Somebody listens to the worker's events, and wants none of them."""
    records: bool = False
    """Keep what the app notes in its `Recorder`, for `WorkerProcess.records`."""

    def arguments(self) -> list[str]:
        """The command line of ``benchmarks.serve``, but for the DSN."""
        words = ["--app", self.app, "--loop", self.loop]
        if self.concurrency is not None:
            words += ["--concurrency", str(self.concurrency)]
        if self.queues is not None:
            words += ["--queues", self.queues]
        if self.log_level is not None:
            words += ["--log-level", self.log_level]
        if self.is_subscribed:
            words.append("--subscribe")
        return words


FAST = Setup(loop="uvloop", concurrency=200)

DEFAULT = Setup()
"""``Worker()`` as it comes, on stock asyncio."""


def loop_factory(name: str) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes event loops of this kind, "uvloop" or "asyncio", for ``asyncio.Runner``."""
    if name == "asyncio":
        return None
    import uvloop  # only where it was asked for: stock asyncio is measured without it

    return uvloop.new_event_loop


async def start_process(module: str, *arguments: str, errors: IO[bytes] | None = None) -> Process:
    """Start ``python -m module``; it may end itself when its standard input does (``end_with_parent``). ``errors``: for what it logs."""
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, *arguments, cwd=ROOT, stdin=PIPE, stdout=PIPE, stderr=errors
    )


class WorkerProcess:
    """A worker in a process of its own."""

    def __init__(self, process: Process, record: Path | None, errors: Path) -> None:
        self._process = process
        self._errors = errors
        self._record = record
        loop = asyncio.get_running_loop()
        self._told: dict[str, asyncio.Future[float]] = {"ready": loop.create_future(), "started": loop.create_future()}
        self._reading = asyncio.create_task(self._read())
        self._cpu_seconds: float | None = None

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def cpu_seconds(self) -> float | None:
        """Processor time so far, until its SIGTERM at most; None where the system does not tell."""
        return self._cpu_seconds if self._process.returncode is not None else cpu_seconds(self.pid)

    async def wait_ready(self) -> None:
        """Wait until everything is imported and the worker begins; raises RuntimeError when it ends before."""
        await asyncio.wait_for(asyncio.shield(self._told["ready"]), START_SECONDS)

    async def wait_started(self, seconds: float = START_SECONDS) -> float:
        """Wait for the first start of a handler; return its time in seconds of the epoch. Raises RuntimeError when it ends before."""
        return await asyncio.wait_for(asyncio.shield(self._told["started"]), seconds)

    def started(self) -> float | None:
        """The time of the first start of a handler, if there was one."""
        told = self._told["started"]
        return told.result() if told.done() and told.exception() is None else None

    def records(self) -> Records:
        """What its app has noted; once it has stopped."""
        if self._record is None:
            raise RuntimeError("this worker was not asked to record")
        return read_records(self._record)

    async def stop(self) -> None:
        """End it by SIGTERM; raises RuntimeError when it does not end in order. Idempotent."""
        if self._process.returncode is None:
            self._cpu_seconds = cpu_seconds(self.pid)
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)
        try:
            code = await asyncio.wait_for(self._process.wait(), STOP_SECONDS)
        except TimeoutError:
            self._process.kill()
            code = await self._process.wait()
        await self._reading
        if code != 0:
            raise RuntimeError(f"worker process {self.pid} ended with code {code}, expected 0.\n{self._said()}")

    def _said(self) -> str:
        """The end of its log."""
        return "\n".join(self._errors.read_text("utf-8", "replace").splitlines()[-LOG_LINES:])

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            word, _, rest = line.decode().strip().partition(" ")
            told = self._told.get(word)
            if told is not None and not told.done():
                told.set_result(float(rest))
        for word, told in self._told.items():
            if not told.done():
                told.set_exception(
                    RuntimeError(f"worker process {self.pid} ended before it was {word}.\n{self._said()}")
                )
                told.exception()  # nobody may be waiting for it


@asynccontextmanager
async def at_work(dsn: str, setups: Sequence[Setup]) -> AsyncIterator[list[WorkerProcess]]:
    """Start a worker process for each, and wait until they begin; all are stopped at the end."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pqrun-benchmark-")))
        members = []
        for number, setup in enumerate(setups):
            record = folder / str(number) if setup.records else None
            words = [] if record is None else ["--record", str(record)]
            errors = folder / f"{number}.log"
            with errors.open("wb") as file:
                process = await start_process("benchmarks.serve", dsn, *setup.arguments(), *words, errors=file)
            members.append(WorkerProcess(process, record, errors))
            stack.push_async_callback(members[-1].stop)
        for member in members:
            await member.wait_ready()
        yield members


def cpu_seconds(pid: int) -> float | None:
    """Processor time of a process and of its children that have ended; None where the system does not tell (only Linux does)."""
    fields = _stat(pid)
    return None if fields is None else sum(int(ticks) for ticks in fields[11:15]) / _CLOCK_TICKS


def server_cpu_seconds(postmaster: int | None) -> float | None:
    """Processor time of a server: of its backends, those that have ended included. None for one on another machine, or off Linux."""
    own = None if postmaster is None else cpu_seconds(postmaster)
    if own is None:
        return None
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    children = [pid for pid in pids if (fields := _stat(pid)) is not None and int(fields[1]) == postmaster]
    return own + sum(cpu_seconds(pid) or 0.0 for pid in children)


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on: utime, stime, cutime and cstime are 11 to 14."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("ascii", "replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()
