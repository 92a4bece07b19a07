"""``pqrun top``: one frame as text and as JSON, and the live view on a real terminal, which is left as it was."""

import asyncio
import contextlib
import json
import os
import pty
import signal
import subprocess
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from pqrun.job.state import Status
from pqrun.store import PgJobStore
from tests.cli.running import PQRUN, environment, run_command
from tests.support.rows import make_job
from tests.support.waiting import wait_until

COUNTED = """
INSERT INTO pqrun.statistics (minute, worker, queue, job_type, started, arrived, done, failed, retrying, snoozed, cancelled, lost, released,
                              run_ms, wait_ms, run_counts, wait_counts)
SELECT date_trunc('minute', clock_timestamp()) - n * interval '1 minute', 1, 'mail', 't', 120, 120, 90, 10, 20, 0, 0, 0, 0, 0, 0, '{}', '{}'
  FROM generate_series(1, 9) n
"""


async def says(dsn: str, *arguments: str) -> str:
    code, output = await run_command("top", *arguments, env=environment(PQRUN_DSN=dsn))
    assert code == 0, output
    return output


async def fill(connection: asyncpg.Connection) -> int:
    """Jobs in all states, and a worker; return the id of the slowest."""
    for _ in range(3):
        await make_job(connection, queue="mail")
    for status in (Status.DONE, Status.DONE, Status.DONE, Status.FAILED):
        await make_job(connection, status=status)
    await make_job(connection, status=Status.RUNNING, job_type="young")
    slowest = await make_job(connection, status=Status.RUNNING, job_type="old", queue="mail")
    age = timedelta(hours=3)
    await connection.execute(
        "UPDATE pqrun.jobs_active SET locked_at = locked_at - $1::interval WHERE id = $2", age, slowest
    )
    await connection.execute("UPDATE pqrun.jobs_finished SET finished_at = clock_timestamp()")
    await connection.execute("INSERT INTO pqrun.workers (worker_id, concurrency, version) VALUES ('web-1', 7, '9.9')")
    return slowest


async def test_a_frame_is_printed_with_what_waits_runs_and_ended(dsn: str, connection: asyncpg.Connection) -> None:
    assert (await says(dsn, "--once")).splitlines()[2:] == ["", "no queues", "", "no workers", "", "nothing runs"]
    slowest = await fill(connection)
    lines = (await says(dsn)).splitlines()  # not a terminal: once
    assert "1 workers alive" in lines[0]
    assert "7 slots" in lines[0]
    assert (
        "last 60 s: 3 done, 1 failed, 0 cancelled; out 0.1/s (statistics are off, or too young); errors: 25.0%"
        in lines[1]
    )
    (mail,) = [line.split() for line in lines if line.startswith("mail")]
    assert mail[1:3] == ["3", "1"]
    (worker,) = [line.split() for line in lines if line.startswith("web-1")]
    assert worker[2:5] == ["9.9", "alive", "0/7"]
    first = lines.index(next(line for line in lines if line.startswith("slowest"))) + 1
    assert lines[first].split()[:5] == [str(slowest), "old", "mail", "1/5", "3h"]


async def test_minutes_that_workers_counted_are_shown_with_the_share_of_errors(
    dsn: str, connection: asyncpg.Connection
) -> None:
    await connection.execute(COUNTED)
    lines = (await says(dsn, "--once")).splitlines()
    assert "in 2.0/s, out 1.7/s; errors: 25.0%" in lines[1]
    assert [line.split()[1:] for line in lines[4:9]] == [["120", "90", "10", "20"]] * 5


async def test_a_frame_is_one_object_of_json(dsn: str, connection: asyncpg.Connection) -> None:
    slowest = await fill(connection)
    frame: dict[str, Any] = json.loads(await says(dsn, "--json"))
    assert {queue["name"]: queue["ready"] for queue in frame["queues"]} == {"mail": 3, "default": 0}
    assert frame["last_minute"] == {"done": 3, "failed": 1, "cancelled": 0, "at_least": False}
    assert (frame["minutes"], frame["error_rate"]) == ([], 0.25)
    assert [job["id"] for job in frame["slowest"]][:1] == [slowest]
    assert [worker["worker_id"] for worker in frame["workers"]] == ["web-1"]


async def test_wrong_usage_and_a_database_that_is_away(dsn: str) -> None:
    code, output = await run_command("top", "--every", "0.01", env=environment(PQRUN_DSN=dsn))
    assert (code, output) == (2, "pqrun: --every: expected 0.2 seconds or more; got 0.01")
    code, output = await run_command("top", "--once", env=environment(PQRUN_DSN="postgresql://127.0.0.1:1/none"))
    assert code == 1
    assert output.startswith("pqrun: ")


class Terminal:
    """A terminal with the command on it."""

    def __init__(self, process: asyncio.subprocess.Process, ours: int, theirs: int) -> None:
        self.process = process
        self._ours, self._theirs = ours, theirs
        self.shown = b""
        self.before = termios.tcgetattr(theirs)
        asyncio.get_running_loop().add_reader(ours, self._read)

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            self.shown += os.read(self._ours, 65_536)

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def settings(self) -> list[Any]:
        return termios.tcgetattr(self._theirs)

    async def shows(self, text: str) -> None:
        await wait_until(lambda: text.encode() in self.shown)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._ours)
        os.close(self._ours)
        os.close(self._theirs)


@asynccontextmanager
async def on_terminal(dsn: str) -> AsyncIterator[Terminal]:
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *(*PQRUN, "top", "--every", "0.2"),
        env=environment(PQRUN_DSN=dsn, TERM="xterm", COLUMNS="150", LINES="40"),
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.PIPE,
    )
    terminal = Terminal(process, ours, theirs)
    try:
        yield terminal
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
        terminal.close()


@pytest.mark.parametrize("end", ["q", signal.SIGINT, signal.SIGTERM])
async def test_the_live_view_follows_and_leaves_the_terminal_as_it_was(
    dsn: str, store: PgJobStore, end: str | signal.Signals
) -> None:
    async with on_terminal(dsn) as terminal:
        await terminal.shows("no queues")
        assert terminal.settings() != terminal.before  # keys are not echoed
        await store.enqueue("t", {}, queue="fresh")
        await terminal.shows("fresh")
        assert b"\x1b[?1049h" in terminal.shown
        if isinstance(end, signal.Signals):
            terminal.process.send_signal(end)
        else:
            terminal.type(f"x{end}")
        _, errors = await asyncio.wait_for(terminal.process.communicate(), 60)
        await terminal.shows("\x1b[?1049l")
        assert terminal.shown.rindex(b"\x1b[?25h") > terminal.shown.rindex(b"\x1b[?25l")
        assert (terminal.process.returncode, errors) == (0, b"")
        assert terminal.settings() == terminal.before


async def test_the_live_view_waits_for_a_database_that_is_away(
    dsn: str, connection: asyncpg.Connection, store: PgJobStore
) -> None:
    async with on_terminal(dsn) as terminal:
        await terminal.shows("no queues")
        await connection.execute("ALTER TABLE pqrun.workers RENAME TO gone")
        await terminal.shows("pqrun: ")
        await connection.execute("ALTER TABLE pqrun.gone RENAME TO workers")
        await store.enqueue("t", {}, queue="fresh")
        await terminal.shows("fresh")
        terminal.type("q")
        await asyncio.wait_for(terminal.process.communicate(), 60)
        assert terminal.process.returncode == 0
