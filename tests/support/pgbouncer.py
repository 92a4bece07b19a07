"""The real PgBouncer of the system in front of a test's database: transaction mode, few server connections, ended by its process id."""

import asyncio
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Self
from urllib.parse import parse_qs, urlsplit, urlunsplit

import asyncpg

from tests.support.waiting import wait_until

__all__ = ["PgBouncer", "pgbouncer"]

_ITS_OWN = ("application_name", "client_encoding", "DateStyle", "standard_conforming_strings", "TimeZone")
"""What PgBouncer itself carries from each client to its server connections."""

_LEFT = """
SELECT 'LISTEN ' || channel FROM pg_listening_channels() AS channel
UNION ALL SELECT 'PREPARE ' || statement FROM pg_prepared_statements
UNION ALL SELECT 'SET ' || name || ' = ' || setting FROM pg_settings WHERE source = 'session' AND NOT name = ANY ($1::text[])
UNION ALL SELECT 'LOCK ' || objid FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()
"""


class PgBouncer:
    """One running pooler."""

    def __init__(self, dsn: str, folder: Path, pool_size: int) -> None:
        self._server = urlsplit(dsn)
        self._folder = folder
        self._pool_size = pool_size
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def dsn(self) -> str:
        """The same database, through the pooler."""
        return urlunsplit(self._server._replace(netloc="postgres@", query=f"host={self._folder}&port=6432"))

    async def start(self) -> Self:
        """Start it and wait until it answers."""
        self._launch()
        await wait_until(self._is_up)
        return self

    def _launch(self) -> None:
        query = parse_qs(self._server.query)
        host = query["host"][0] if "host" in query else self._server.hostname or "localhost"
        port = query["port"][0] if "port" in query else self._server.port or 5432
        login = f"user={self._server.username or 'postgres'}"
        if self._server.password:
            login += f" password={self._server.password}"
        ini = self._folder / "pgbouncer.ini"
        ini.write_text(f"""
[databases]
* = host={host} port={port} {login}
[pgbouncer]
pool_mode = transaction
default_pool_size = {self._pool_size}
auth_type = any
listen_addr =
unix_socket_dir = {self._folder}
listen_port = 6432
logfile = {self._folder}/log
""")
        program = shutil.which("pgbouncer", path=os.environ.get("PATH", "") + ":/usr/sbin")
        assert program is not None, "PgBouncer is not installed: apt-get install pgbouncer"
        user = group = None
        if os.getuid() == 0:  # PgBouncer refuses to run as root, and the server's socket may be its owner's alone
            nobody = pwd.getpwnam("nobody")
            user, group = nobody.pw_uid, nobody.pw_gid
            if host.startswith("/"):
                user, group = Path(host).stat().st_uid, Path(host).stat().st_gid
            os.chown(self._folder, user, group)
        self._process = subprocess.Popen(
            [program, "--quiet", str(ini)],
            user=user,
            group=group,
            extra_groups=None if user is None else [],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def _is_up(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"PgBouncer ended: {(self._folder / 'log').read_text()}"
        with socket.socket(socket.AF_UNIX) as looking:
            return looking.connect_ex(str(self._folder / ".s.PGSQL.6432")) == 0

    async def left_in_sessions(self) -> list[str]:
        """What outlived the transactions on its server connections, all of them: locks, LISTEN, settings, prepared statements."""
        left = []
        async with AsyncExitStack() as stack:
            backends = set()
            for _ in range(self._pool_size):  # each holds one server connection until all were seen
                connection = await asyncpg.connect(self.dsn, statement_cache_size=0)
                stack.push_async_callback(connection.close)
                await stack.enter_async_context(connection.transaction())
                backends.add(await connection.fetchval("SELECT pg_backend_pid()"))
                left += [row[0] for row in await connection.fetch(_LEFT, list(_ITS_OWN))]
            assert len(backends) == self._pool_size
        return left

    async def stop(self) -> None:
        """End it; its server connections go with it."""
        if self._process is not None:
            self._process.terminate()
            await asyncio.to_thread(self._process.wait)


@asynccontextmanager
async def pgbouncer(dsn: str, *, pool_size: int = 2) -> AsyncIterator[PgBouncer]:
    """Run a pooler in front of this database."""
    folder = Path(tempfile.mkdtemp(prefix="pqrun-bouncer-"))
    running = PgBouncer(dsn, folder, pool_size)
    try:
        yield await running.start()
    finally:
        await running.stop()
        shutil.rmtree(folder)
