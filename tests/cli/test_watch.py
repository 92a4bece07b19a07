"""``pqrun watch``: lines, JSON, a bar on a terminal, and exit codes."""

import asyncio
import json
import os
import pty
import signal

import asyncpg
import pytest

from pqrun.job.outcome import Done
from pqrun.job.progress import Report
from pqrun.job.record import Claim
from pqrun.job.state import Status
from pqrun.store import PgJobStore
from pqrun.store.reporting import report
from pqrun.store.settling import settle
from tests.cli.running import PQRUN, environment, run_command, running
from tests.support.rows import make_job
from tests.support.waiting import DEADLINE_SECONDS


async def run(dsn: str, *arguments: str) -> tuple[int, str]:
    return await run_command(*arguments, env=environment(PQRUN_DSN=dsn))


async def make_claim(connection: asyncpg.Connection) -> Claim:
    job_id = await make_job(connection, status=Status.RUNNING)
    return Claim(job_id, await connection.fetchval("SELECT claim_id FROM pqrun.jobs WHERE id = $1", job_id))


async def reported(connection: asyncpg.Connection, status: Status) -> int:
    """A job that ended so, with a report."""
    job_id = await make_job(connection, status=status)
    await connection.execute("INSERT INTO pqrun.progress VALUES ($1, 1, 2, 0.4, $2)", job_id, "half\n[bold]of it")
    return job_id


async def test_each_report_is_a_line_and_the_end_is_the_last(
    dsn: str, store: PgJobStore, connection: asyncpg.Connection
) -> None:
    claim = await make_claim(connection)
    await report(store, {claim: Report(0.4, "half of the pages")})
    async with running("watch", str(claim.job_id), "--every", "0.05", env=environment(PQRUN_DSN=dsn)) as command:
        await command.wait_line(r"^ 40\.0%  half of the pages$")
        await report(store, {claim: Report(1.0, None)})
        await command.wait_line(r"^100\.0%$")
        await settle(store, [Done(claim, 1, None)], awaited=[claim.job_id])
        await command.wait_line("^DONE$")
        assert await command.end() == 0


@pytest.mark.parametrize(
    ("status", "code", "end"),
    [(Status.DONE, 0, "DONE"), (Status.FAILED, 1, "FAILED: ValueError: x"), (Status.CANCELLED, 1, "CANCELLED")],
)
async def test_the_exit_code_tells_how_it_ended(
    dsn: str, connection: asyncpg.Connection, status: Status, code: int, end: str
) -> None:
    job_id = await reported(connection, status)
    assert await run(dsn, "watch", str(job_id)) == (code, f" 40.0%  half\\n[bold]of it  attempt 2\n{end}")


async def test_json_is_an_object_per_line(dsn: str, connection: asyncpg.Connection) -> None:
    job_id = await reported(connection, Status.FAILED)
    code, output = await run(dsn, "watch", str(job_id), "--json")
    assert code == 1
    first, end = map(json.loads, output.splitlines())
    assert first.pop("reported_at").endswith("Z")
    assert first == {"value": 0.4, "message": "half\n[bold]of it", "attempt": 2}
    assert end == {"status": "FAILED", "attempts": 1, "error": "ValueError: x"}


async def test_what_cannot_be_watched_is_code_two(dsn: str, connection: asyncpg.Connection) -> None:
    code, output = await run(dsn, "watch", "999")
    assert (code, output) == (2, "pqrun: there is no job 999 (deleted, or removed by retention)")
    code, output = await run(dsn, "watch", "999", "--json")
    assert code == 2
    assert json.loads(output.splitlines()[-1]) == {"error": "there is no job 999 (deleted, or removed by retention)"}
    claim = await make_claim(connection)
    code, output = await run(dsn, "watch", str(claim.job_id), "--timeout", "0")
    assert code == 2
    assert "it goes on" in output


@pytest.mark.parametrize(
    "arguments", [["x"], [], ["1", "--every", "0"], ["1", "--timeout", "nan"], ["1", "--timeout", "-1"]]
)
async def test_wrong_usage_is_code_two(dsn: str, arguments: list[str]) -> None:
    code, _ = await run(dsn, "watch", *arguments)
    assert code == 2


async def test_ctrl_c_ends_the_watch_and_not_the_job(
    dsn: str, store: PgJobStore, connection: asyncpg.Connection
) -> None:
    claim = await make_claim(connection)
    await report(store, {claim: Report(0.4, None)})
    async with running("watch", str(claim.job_id), env=environment(PQRUN_DSN=dsn)) as command:
        await command.wait_line("40")
        command.send(signal.SIGINT)
        assert await command.end() == 128 + signal.SIGINT
        assert "Traceback" not in command.output
    assert await connection.fetchval("SELECT status FROM pqrun.jobs") == "RUNNING"


async def test_on_a_terminal_a_bar_is_drawn(dsn: str, connection: asyncpg.Connection) -> None:
    job_id = await reported(connection, Status.DONE)
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *PQRUN, "watch", str(job_id), env=environment(PQRUN_DSN=dsn, TERM="xterm", COLUMNS="100"), stdout=theirs
    )
    os.close(theirs)
    async with asyncio.timeout(DEADLINE_SECONDS):
        assert await process.wait() == 0
    shown = os.read(ours, 65_536).decode()
    os.close(ours)
    assert " 40%" in shown
    assert "half\\n[bold]of it" in shown
    assert "━" in shown
    assert "DONE" in shown
