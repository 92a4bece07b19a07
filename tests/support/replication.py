"""Two PostgreSQL servers with streaming replication, one DSN that names both, and failovers that can be repeated."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote

import asyncpg

from pqrun.embedded.account import Account, account_for, clean_environment, make_private_folder, open_private, run_as
from pqrun.embedded.binaries import Binaries, find_binaries, usable_by
from pqrun.embedded.cluster import ensure_cluster, last_lines
from pqrun.embedded.guard import read_postmaster
from pqrun.embedded.places import Places, socket_folder
from tests.embedded.owners import processes_in
from tests.support.database import connected
from tests.support.waiting import wait_until

__all__ = ["Replicated", "replicated"]

SETTINGS: Mapping[str, str] = {
    "shared_buffers": "32MB",
    "max_connections": "60",
    "timezone": "UTC",
    "listen_addresses": "",
    "port": "5432",
    "fsync": "off",  # processes are killed here, no machine: what was written is in the page cache
    "synchronous_commit": "on",
    "wal_keep_size": "256MB",  # from a base backup to the start of its standby
    "max_wal_size": "512MB",
    "wal_receiver_status_interval": "1s",
    "wal_retrieve_retry_interval": "200ms",
}

STANDBY = "standby"
"""What a standby calls itself to its primary."""

PROGRAM_SECONDS = 120.0
"""For a base backup and for a promotion."""


class _Server:
    """One server and its folder; it has no address but its socket."""

    def __init__(self, home: Path, account: Account | None, binaries: Binaries) -> None:
        home.mkdir(mode=0o755)
        self._places = Places(home, home, account)
        self._binaries = binaries
        self._log = home / "server.log"
        self.sockets = socket_folder(self._places)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def dsn(self) -> str:
        """The DSN of this server alone."""
        return f"postgresql://postgres@/postgres?host={quote(str(self.sockets), safe='/')}&port=5432"

    @property
    def pids(self) -> set[int]:
        """Its processes: the postmaster, and its children."""
        return processes_in(self._places.data)

    def create(self) -> None:
        """Make an empty database cluster."""
        ensure_cluster(self._places, self._binaries, durable=False)

    def copy(self, primary: "_Server") -> None:
        """Become a standby of this running server; whatever was here is dropped."""
        if self._places.data.exists():
            shutil.rmtree(self._places.data)
        data = str(make_private_folder(self._places.data, self._places.account))
        source = ["--host", str(primary.sockets), "--port", "5432", "--username", "postgres"]
        self._run(
            "pg_basebackup", "--pgdata", data, *source, "--checkpoint", "fast", "--no-sync", "--write-recovery-conf"
        )
        # It was written with the primary's own settings above it: a promoted standby must wait for none of its own.
        conninfo = f"host={primary.sockets} port=5432 user=postgres application_name={STANDBY}"
        (self._places.data / "postgresql.auto.conf").write_text(f"primary_conninfo = '{conninfo}'\n")

    async def start(self) -> None:
        """Start it, and wait until it takes connections."""
        self._launch()
        await wait_until(self._is_up)

    def _launch(self) -> None:
        settings = {**SETTINGS, "unix_socket_directories": str(self.sockets)}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        account = self._places.account
        output = open_private(self._log, os.O_WRONLY | os.O_APPEND)
        try:
            self._process = subprocess.Popen(
                [self._binaries.program("postgres"), "-D", str(self._places.data), *options],
                user=account.uid if account else None,
                group=account.gid if account else None,
                extra_groups=[] if account else None,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=os.sep,
                env=clean_environment(),
                start_new_session=True,  # an interrupt of the terminal ends the test, which then ends this
            )
        finally:
            os.close(output)

    def _is_up(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"PostgreSQL ended. {last_lines(self._log)}"
        found = read_postmaster(self._places.data)
        return found is not None and found.pid == self._process.pid and found.status in ("ready", "standby")

    def promote(self) -> None:
        """Make a primary of a standby; returns when it is one."""
        self._run("pg_ctl", "promote", "-D", str(self._places.data), "--wait", "--timeout", f"{PROGRAM_SECONDS / 2:g}")

    def pause(self) -> None:
        """Stop all its processes as they are."""
        if self._process is not None and self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGSTOP)  # first: it forks no more
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let them go on."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """End all its processes at once, as a power cut does."""
        self.pause()
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def remove(self) -> None:
        """Kill it, and delete what is not in its folder."""
        self.kill()
        shutil.rmtree(self.sockets, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        command = [self._binaries.program(program), *arguments]
        done = run_as(self._places.account, command, seconds=PROGRAM_SECONDS)
        assert done.returncode == 0, f"{program} failed: {done.stdout}\n{last_lines(self._log)}"


class Replicated:
    """A primary, its standby, and the DSN that finds the primary of the two.

    The database ``postgres`` is empty at first. All methods are for one task; ``rebuild`` must follow a failover before the next one.
    """

    def __init__(self, first: _Server, second: _Server, *, synchronous: bool) -> None:
        self._primary = first
        self._standby = second
        self._synchronous = synchronous
        hosts = ",".join(quote(str(server.sockets), safe="/") for server in (first, second))
        self.dsn = f"postgresql://postgres@/postgres?host={hosts}&port=5432,5432&target_session_attrs=read-write"
        """Names both servers; which of the two is the primary is found out by connecting."""

    @property
    def primary_dsn(self) -> str:
        """The DSN of the present primary alone."""
        return self._primary.dsn

    @property
    def standby_dsn(self) -> str:
        """The DSN of the other one alone: a standby, what was killed, or an old primary that nobody fenced."""
        return self._standby.dsn

    async def start(self) -> None:
        """Start both."""
        await asyncio.to_thread(self._primary.create)
        await self._primary.start()
        await self.rebuild()

    def kill_primary(self) -> None:
        """SIGKILL all processes of the primary."""
        self._primary.kill()

    def pause_primary(self) -> None:
        """SIGSTOP all processes of the primary: its connections stand, new ones are taken, and nobody answers."""
        self._primary.pause()

    def resume_old_primary(self) -> None:
        """Let a primary that was paused before the promotion go on; it knows of nothing, and takes writes."""
        self._standby.resume()

    async def wait_replayed(self) -> None:
        """Wait until the standby shows all that the primary has written so far."""
        async with connected(self._primary.dsn) as primary, connected(self._standby.dsn) as standby:
            written = await primary.fetchval("SELECT pg_current_wal_insert_lsn()::text")

            async def is_replayed() -> bool:
                return bool(await standby.fetchval("SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn", written))

            await wait_until(is_replayed)

    async def cut_replication(self) -> None:
        """Have the standby receive nothing from now on; with synchronous replication every commit then waits."""
        async with connected(self._standby.dsn) as connection:
            await _set(connection, "primary_conninfo", "''")

            async def is_cut() -> bool:
                return not await connection.fetchval("SELECT count(*) FROM pg_stat_wal_receiver")

            await wait_until(is_cut)

    async def promote(self) -> None:
        """Promote the standby, which is the primary from then on; returns when it takes writes."""
        await asyncio.to_thread(self._standby.promote)
        self._primary, self._standby = self._standby, self._primary

    async def rebuild(self) -> None:
        """Make the other one a fresh standby of the primary, killing it if it still runs; returns when it follows."""
        async with connected(self._primary.dsn) as connection:
            await _set(connection, "synchronous_standby_names", "''")
            await asyncio.to_thread(self._standby.kill)
            await asyncio.to_thread(self._standby.copy, self._primary)
            await self._standby.start()
            if self._synchronous:
                await _set(connection, "synchronous_standby_names", STANDBY)
            expected = "sync" if self._synchronous else "async"

            async def follows() -> bool:
                query = "SELECT count(*) FROM pg_stat_replication WHERE application_name = $1 AND state = 'streaming' AND sync_state = $2"
                return bool(await connection.fetchval(query, STANDBY, expected))

            await wait_until(follows)

    def remove(self) -> None:
        """Kill both."""
        for server in (self._primary, self._standby):
            server.remove()


def _make_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="pqrun-pair-"))
    folder.chmod(0o755)  # as root, the servers' user must reach it
    return folder


async def _set(connection: asyncpg.Connection, name: str, value: str) -> None:
    await connection.execute(f"ALTER SYSTEM SET {name} = {value}")
    await connection.execute("SELECT pg_reload_conf()")


@asynccontextmanager
async def replicated(*, synchronous: bool) -> AsyncIterator[Replicated]:
    """Run two servers; ``synchronous``: a commit is acknowledged when the standby has it too, as long as there is one."""
    folder = _make_folder()
    pair: Replicated | None = None
    try:
        account = account_for(folder)
        binaries = usable_by(find_binaries(), account)
        first, second = (_Server(folder / name, account, binaries) for name in ("a", "b"))
        pair = Replicated(first, second, synchronous=synchronous)
        await pair.start()
        yield pair
    finally:
        if pair is not None:
            pair.remove()
        shutil.rmtree(folder, ignore_errors=True)
