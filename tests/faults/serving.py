"""A server of a test's own, which can be stopped, killed and started again on the same data."""

import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from pqrun.embedded import EmbeddedServer, start_server_async
from pqrun.store import PgJobStore
from tests.support.waiting import wait_until

__all__ = ["OwnServer", "serving"]

DURABLE = {"fsync": "on", "shared_buffers": "32MB", "max_connections": "60"}
"""Killed on purpose: what it has acknowledged must survive (in the page cache; only a power cut would need the disk)."""


class OwnServer:
    """An embedded server with a migrated schema in the database ``postgres``."""

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        self._folder = folder
        self._settings = settings
        self._server: EmbeddedServer | None = None

    @property
    def running(self) -> EmbeddedServer:
        """The server, while it runs."""
        assert self._server is not None
        return self._server

    @property
    def dsn(self) -> str:
        """The DSN of its database; it stays the same over restarts."""
        return self.running.dsn

    async def start(self) -> None:
        """Start it, or start it again."""
        before = self._server
        self._server = await start_server_async(self._folder, settings=self._settings)
        if before is not None:
            await before.aclose()  # the new holder keeps it running

    async def end(self, number: signal.Signals) -> None:
        """End it: SIGINT is a fast shutdown, SIGQUIT an immediate one, SIGKILL a crash of the postmaster."""
        pid = self.running.pid
        os.kill(pid, number)
        await wait_until(lambda: not _exists(pid))

    async def close(self) -> None:
        """Stop it for good."""
        if self._server is not None:
            await self._server.aclose()


@asynccontextmanager
async def serving(**settings: str) -> AsyncIterator[OwnServer]:
    """Run a server of this test's own, with these settings beside DURABLE."""
    folder = _make_folder()
    server = OwnServer(folder, {**DURABLE, **settings})
    try:
        await server.start()
        await PgJobStore(server.dsn).migrate()
        yield server
    finally:
        await server.close()
        shutil.rmtree(folder, ignore_errors=True)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _make_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="pqrun-faults-"))
    folder.chmod(0o755)  # as root, the server's user must reach it
    return folder
