"""Processes that own an embedded server, and what the system says about servers and guards (Linux: by /proc)."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import asyncpg
import pytest

ROOT = Path(__file__).parents[2]

# Without fsync: these databases need not survive a power cut.
FAST: Mapping[str, str] = {"fsync": "off", "shared_buffers": "16MB"}

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root lends the server another user")

DEADLINE_SECONDS = 60.0

# Starts (or joins) the server, says so, and leaves it when its input ends or says a line.
_OWNER = """
import json, sys
from pqrun.embedded import start_server
server = start_server(sys.argv[1], settings=json.loads(sys.argv[2]))
print(json.dumps({"pid": server.pid, "dsn": server.dsn, "data": str(server.data_path)}), flush=True)
sys.stdin.readline()
server.close()
"""


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait for something that other processes do and nobody announces; fails after a long while."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"still waiting: {what}"
        pause.wait(0.05)


def processes_in(folder: Path) -> set[int]:
    """Give the processes whose working directory is this folder: the server of a data folder and its backends."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink() == folder:
                found.add(int(process.name))
        except OSError:
            continue
    return found


def user_of(pid: int) -> int:
    """Give the user that a process runs as."""
    return Path(f"/proc/{pid}").stat().st_uid


def network_sockets(pid: int) -> set[str]:
    """Give the inodes of a process's sockets that are open to the network."""
    own = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        own.add(str(file.readlink()).removeprefix("socket:[").removesuffix("]"))
    known = set()
    for protocol in ("tcp", "tcp6", "udp", "udp6"):
        table = Path(f"/proc/{pid}/net/{protocol}")
        known |= {line.split()[9] for line in table.read_text().splitlines()[1:]} if table.exists() else set()
    return own & known


def guards_of(home: Path) -> set[int]:
    """Give the live guard processes of this PATH."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(word.endswith(b"guard.py") for word in arguments) and any(
            f'"{home}"'.encode() in word for word in arguments
        ):
            found.add(int(process.name))
    return found


def wait_until_stopped(home: Path, data: Path) -> None:
    """Wait until neither a server nor a guard of this PATH is left."""
    wait_until(lambda: not processes_in(data), "the server to stop")
    wait_until(lambda: not guards_of(home), "the guard to end")


def ask(dsn: str, query: str) -> object:
    """Run one query that gives one value."""

    async def run() -> object:
        connection = await asyncpg.connect(dsn)
        try:
            return await connection.fetchval(query)
        finally:
            await connection.close()

    return asyncio.run(run())


class Owner:
    """A process with one holder of the server of ``home``; in a process group of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.pid = 0
        self.dsn = ""
        self.data = Path()
        self.process = subprocess.Popen(
            [sys.executable, "-c", _OWNER, str(home), json.dumps(dict(FAST))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            start_new_session=True,
        )

    def wait_ready(self) -> "Owner":
        """Wait until it holds a running server."""
        assert self.process.stdout is not None
        facts = json.loads(self.process.stdout.readline())
        self.pid, self.dsn, self.data = facts["pid"], facts["dsn"], Path(facts["data"])
        return self

    def kill_group(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to the owner's whole process group and wait for the owner's end."""
        os.killpg(self.process.pid, number)
        self.process.wait(DEADLINE_SECONDS)

    def leave(self) -> None:
        """Let it close its holder and end."""
        self.process.communicate("\n", timeout=DEADLINE_SECONDS)
        assert self.process.returncode == 0

    def dispose(self) -> None:
        """End it if it still runs."""
        if self.process.poll() is None:
            self.kill_group()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
