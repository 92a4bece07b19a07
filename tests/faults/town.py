"""What happens to the shop's workers: processes of their own, the ledger of what really ran, and servers that can be hurt."""

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import asyncpg

from pqrun.embedded import EmbeddedServer, start_server_async
from pqrun.job.record import Job
from pqrun.store import PgJobStore
from tests.cli.running import Command, environment, running
from tests.embedded.owners import processes_in
from tests.support.database import FAST_SETTINGS, connected, with_database
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]

SLOW_MACHINE_SECONDS = 60.0
"""Far beyond what anything here takes: only a hang reaches it."""


class Line(NamedTuple):
    """One line of the ledger."""

    what: str
    key: str
    attempt: int
    pid: int
    reason: str
    at: float


class Ledger:
    """The file in which handlers note what they do."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self, what: str | None = None, key: str | None = None) -> list[Line]:
        """All lines so far, of a kind, of a job."""
        text = self.path.read_text() if self.path.exists() else ""
        found = []
        for line in text.splitlines():
            kind, name, attempt, pid, reason, at = line.split()
            if what in (None, kind) and key in (None, name):
                found.append(Line(kind, name, int(attempt), int(pid), reason, float(at)))
        return found

    def starts(self, key: str | None = None) -> int:
        """How many handlers have started."""
        return len(self.lines("start", key))

    async def wait_for(self, what: str, key: str, *, count: int = 1, seconds: float = SLOW_MACHINE_SECONDS) -> Line:
        """Wait for so many lines, and return the last of them."""
        await wait_until(lambda: len(self.lines(what, key)) >= count, seconds=seconds)
        return self.lines(what, key)[count - 1]


@asynccontextmanager
async def at_work(
    dsn: str, ledger: Ledger, *arguments: str, is_waited_for: bool = True, env: Mapping[str, str] | None = None
) -> AsyncIterator[Command]:
    """A worker process of the shop, until the block ends or something kills it before."""
    variables = environment(PQRUN_DSN=dsn, LEDGER=str(ledger.path), **(env or {}))
    async with running("worker", "tests.faults.shop:jobs", *arguments, env=variables, cwd=ROOT) as command:
        if is_waited_for:
            await command.wait_line(r"worker .* started")
        yield command


async def enqueue(
    store: PgJobStore,
    key: str,
    how: str = "sleep",
    seconds: float = 0.0,
    *,
    max_attempts: int = 5,
    timeout: float | None = None,
) -> int:
    """A job of the shop's."""
    payload = {"key": key, "how": how, "seconds": seconds}
    return await store.enqueue("work", payload, max_attempts=max_attempts, timeout_seconds=timeout)


async def finished(store: PgJobStore, job_id: int) -> Job:
    """The row of a job, once it has ended."""
    await store.wait_end(job_id, SLOW_MACHINE_SECONDS)
    return await row(store, job_id)


async def row(store: PgJobStore, job_id: int) -> Job:
    """The row of a job that exists."""
    job = await store.get(job_id)
    assert job is not None
    return job


async def backends(connection: asyncpg.Connection) -> set[int]:
    """The server processes of all workers that are connected to this database."""
    rows = await connection.fetch(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name ~ '^pqrun (claim|settle|keeper|maintain)'"
    )
    return {pid for (pid,) in rows}


async def cut(connection: asyncpg.Connection, pids: set[int]) -> None:
    """End these connections from the server's side."""
    await connection.execute("SELECT pg_terminate_backend(pid) FROM unnest($1::integer[]) pid", list(pids))


class Server:
    """A database server of the tests' own, whose processes can be stopped, ended and started again."""

    def __init__(self, folder: Path, server: EmbeddedServer) -> None:
        self._folder = folder
        self._holders = [server]
        self._count = 0

    async def make_database(self) -> str:
        """A new migrated database; its DSN."""
        self._count += 1
        name = f"faults_{self._count}"
        async with connected(self._server.dsn) as connection:
            await connection.execute(f'CREATE DATABASE "{name}"')
        dsn = with_database(self._server.dsn, name)
        await PgJobStore(dsn).migrate()
        return dsn

    @property
    def _server(self) -> EmbeddedServer:
        return self._holders[-1]

    def _processes(self) -> set[int]:
        return processes_in(self._server.data_path)

    def pause(self) -> None:
        """Stop all its processes as they are: connections stand, and nobody answers."""
        os.kill(self._server.pid, signal.SIGSTOP)  # first: it forks no more
        for pid in self._processes():
            os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let them go on."""
        for pid in self._processes():
            os.kill(pid, signal.SIGCONT)

    async def shut_down(self, how: signal.Signals = signal.SIGINT) -> None:
        """End it: SIGINT is PostgreSQL's fast shutdown, SIGQUIT the immediate one."""
        os.kill(self._server.pid, how)
        await wait_until(lambda: not self._processes())

    async def start_again(self) -> None:
        """Start it on the same data and the same address."""
        dsn = self._server.dsn
        self._holders.append(await start_server_async(self._folder, settings=FAST_SETTINGS))
        assert self._server.dsn == dsn

    async def close(self) -> None:
        """Stop it for good."""
        self.resume()
        for holder in self._holders:
            await holder.aclose()


@asynccontextmanager
async def own_server() -> AsyncIterator[Server]:
    """A server that nobody else uses."""
    with tempfile.TemporaryDirectory(prefix="pqrun-faults-") as parent:
        os.chmod(parent, 0o755)  # noqa: PTH101  # as root, the server's user must reach it
        folder = Path(parent) / "db"
        server = Server(folder, await start_server_async(folder, settings=FAST_SETTINGS))
        try:
            yield server
        finally:
            await server.close()


async def pause(seconds: float) -> None:
    """Let time pass where nothing can be awaited: that something does *not* happen."""
    await asyncio.sleep(seconds)
