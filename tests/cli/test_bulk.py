"""``pqrun cancel``, ``retry``, ``delete``, ``move``, ``prioritize``: conditions, exit codes, text, JSON, and what is asked first."""

import asyncio
import json
import os
import pty
import re
import signal
import subprocess
from typing import Any

import asyncpg
import pytest

from pqrun.job.state import Status
from tests.cli.running import PQRUN, environment, run_command, running
from tests.store.locking import holding
from tests.support.rows import make_job
from tests.support.waiting import wait_until

SECRET = "payload-nobody-may-see"


async def run(dsn: str, *arguments: str) -> tuple[int, str]:
    return await run_command(*arguments, env=environment(PQRUN_DSN=dsn))


async def states(connection: asyncpg.Connection) -> list[str]:
    return [row["status"] for row in await connection.fetch("SELECT status FROM pqrun.jobs ORDER BY id")]


async def test_jobs_are_cancelled_by_their_ids(dsn: str, connection: asyncpg.Connection) -> None:
    ready, running = await make_job(connection), await make_job(connection, status=Status.RUNNING)
    code, output = await run(dsn, "cancel", str(ready), str(running))
    assert (code, output) == (0, "2 jobs cancelled\n    1 of them run: their workers are asked to stop them")
    assert await states(connection) == ["CANCELLED", "RUNNING"]


async def test_what_is_refused_is_told_with_its_reason_and_code_one(dsn: str, connection: asyncpg.Connection) -> None:
    taken = await make_job(connection, status=Status.FAILED, dedupe_key="k")
    holder = await make_job(connection, dedupe_key="k")
    free = await make_job(connection, status=Status.FAILED)
    code, output = await run(dsn, "retry", *map(str, (taken, holder, free, 999_999)))
    assert code == 1
    assert output.splitlines() == [
        "1 job made ready again",
        "3 refused: key_taken 1, not_found 1, waiting 1",
        f"    {taken} key_taken: job {holder} has its dedupe key",
        f"    {holder} waiting",
        "    999999 not_found",
    ]


async def test_only_the_first_refusals_are_listed(dsn: str, connection: asyncpg.Connection) -> None:
    await connection.execute("INSERT INTO pqrun.jobs (job_type) SELECT 't' FROM generate_series(1, 25)")
    code, output = await run(dsn, "delete", "--type", "t", "--state", "ready")
    assert code == 1
    assert len(output.splitlines()) == 23
    assert output.endswith("    and 5 more")


async def test_conditions_choose_jobs(dsn: str, connection: asyncpg.Connection) -> None:
    wanted = await make_job(
        connection,
        status=Status.FAILED,
        queue="mail",
        job_type="send",
        last_error="ValueError: No Such Card",
        payload='{"to": "ada", "n": 7}',
    )
    for change in (
        {"queue": "other"},
        {"job_type": "pay"},
        {"last_error": "x"},
        {"payload": '{"to": "ada", "n": 8}'},
        {"status": Status.CANCELLED},
    ):
        row: dict[str, Any] = {
            "status": Status.FAILED,
            "queue": "mail",
            "job_type": "send",
            "last_error": "no such card",
            "payload": '{"to": "ada", "n": 7}',
        }
        await make_job(connection, **(row | change))
    conditions = ["--state", "failed", "--type", "send", "--queue", "mail", "--error", "no such CARD", "--since", "1h"]
    conditions += ["--payload", "to=ada", "--payload", "n=7"]
    code, output = await run(dsn, "retry", *conditions, "--json")
    assert code == 0
    assert json.loads(output) == {
        "error": None,
        "action": "retry",
        "dry_run": False,
        "matched": 1,
        "done": 1,
        "requested": 0,
        "refused": 0,
        "done_ids": [wanted],
        "reasons": {},
        "refusals": [],
    }


async def test_times_are_those_of_the_end_for_retry_and_delete_and_of_the_making_for_others(
    dsn: str, connection: asyncpg.Connection
) -> None:
    await make_job(connection, status=Status.FAILED)
    await connection.execute("UPDATE pqrun.jobs SET created_at = now() - interval '3 h'")
    await make_job(connection)
    await connection.execute("UPDATE pqrun.jobs SET created_at = now() - interval '3 h'")
    assert (await run(dsn, "retry", "--since", "2h", "--dry-run"))[1] == "1 job would be made ready again"
    assert (await run(dsn, "delete", "--before", "2h", "--dry-run"))[1] == "0 jobs would be deleted"
    assert (await run(dsn, "cancel", "--since", "2h", "--dry-run"))[1] == "0 jobs would be cancelled"
    assert (await run(dsn, "cancel", "--before", "2h", "--dry-run"))[1] == "1 job would be cancelled"
    assert (await run(dsn, "cancel", "--since", "2026-01-01T00:00:00Z", "--dry-run"))[1] == "1 job would be cancelled"


async def test_a_limit_and_all(dsn: str, connection: asyncpg.Connection) -> None:
    for _ in range(3):
        await make_job(connection)
    assert await run(dsn, "cancel", "--all", "--limit", "2") == (0, "2 jobs cancelled")
    assert await states(connection) == ["CANCELLED", "CANCELLED", "READY"]


async def test_jobs_are_moved_prioritized_and_deleted(dsn: str, connection: asyncpg.Connection) -> None:
    job_id = await make_job(connection)
    assert await run(dsn, "move", str(job_id), "--to", "mail") == (0, "1 job moved")
    assert await run(dsn, "prioritize", "--queue", "mail", "--to", "-5") == (0, "1 job given the priority")
    row = await connection.fetchrow("SELECT queue, priority FROM pqrun.jobs")
    assert row is not None
    assert tuple(row) == ("mail", -5)
    assert (await run(dsn, "delete", str(job_id)))[0] == 1
    assert await run(dsn, "delete", str(job_id), "--waiting") == (0, "1 job deleted")
    assert await states(connection) == []


async def test_a_done_job_is_retried_by_force(dsn: str, connection: asyncpg.Connection) -> None:
    job_id = await make_job(connection, status=Status.DONE)
    assert await run(dsn, "retry", str(job_id)) == (
        1,
        f"0 jobs made ready again\n1 refused: is_done 1\n    {job_id} is_done",
    )
    assert await run(dsn, "retry", str(job_id), "--force") == (0, "1 job made ready again")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["cancel"], "which jobs? give their ids, or conditions"),
        (["cancel", "7", "--queue", "mail"], "not more than one of these"),
        (["cancel", "--queue", "mail", "--query", "id:7"], "not more than one of these"),
        (["cancel", "--query", " "], "which jobs?"),
        (["cancel", "--query", "stat:ready"], "query, character 1: stat:ready: no such key; did you mean state:?"),
        (["cancel", "seven"], "valid integer"),
        (
            ["cancel", "--state", "readdy"],
            "--state: expected one of scheduled, ready, running, done, failed, cancelled",
        ),
        (["cancel", "--since", "yesterday"], "--since: expected 90s, 15m, 2h, 7d or 1w ago"),
        (["cancel", "--since", "2026-01-31T12:00"], "an instant with its zone"),
        (["cancel", "--since", "999999999w"], "--since: expected"),
        (["cancel", "--payload", SECRET], "--payload: expected KEY=VALUE"),
        (["cancel", "--limit", "0", "7"], "--limit"),
        (["cancel", "--queue", ""], "queues: expected text of 1 to 200 characters"),
        (["cancel", str(2**63)], "the id of a job is an int"),
        (["move", "7"], "--to"),
        (["move", "7", "--to", ""], "queue: expected text"),
        (["prioritize", "7", "--to", "40000"], "priority: expected a whole number"),
    ],
)
async def test_wrong_usage_is_code_two_and_says_what_was_expected(dsn: str, arguments: list[str], told: str) -> None:
    code, output = await run_command(*arguments, env=environment(PQRUN_DSN=dsn, COLUMNS="300"))
    assert code == 2
    assert told in output
    assert SECRET not in output
    assert "Traceback" not in output


async def test_without_a_database_or_a_schema_it_is_code_two_and_json_says_why(empty_dsn: str) -> None:
    code, output = await run_command("cancel", "7", env=environment())
    assert code == 2
    assert "PQRUN_DSN" in output
    code, output = await run(empty_dsn, "cancel", "7", "--json")
    assert code == 2
    assert "run: pqrun migrate" in json.loads(output[output.index("{") :])["error"]


async def on_terminal(dsn: str, answer: str, *arguments: str) -> tuple[int | None, str, str]:
    """Run it with a terminal for its input and stderr; return code, stdout, and what the terminal showed."""
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *(*PQRUN, *arguments),
        env=environment(PQRUN_DSN=dsn, TERM="xterm", COLUMNS="120"),
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
    )
    os.close(theirs)
    os.write(ours, answer.encode())
    shown, (said, _) = await asyncio.gather(asyncio.to_thread(_read_all, ours), process.communicate())
    return process.returncode, said.decode(), shown


async def test_on_a_terminal_a_filter_is_asked_about_first(dsn: str, connection: asyncpg.Connection) -> None:
    for _ in range(3):
        await make_job(connection)
    code, said, shown = await on_terminal(dsn, "n\n", "cancel", "--queue", "default")
    assert (code, said) == (2, "")
    assert "3 jobs would be cancelled" in shown
    assert "nothing was done" in shown
    assert await states(connection) == ["READY"] * 3
    code, said, _ = await on_terminal(dsn, "y\n", "cancel", "--queue", "default")
    assert (code, said) == (0, "3 jobs cancelled\n")


async def test_with_yes_with_ids_and_with_nothing_to_do_nobody_is_asked(
    dsn: str, connection: asyncpg.Connection
) -> None:
    job_id = await make_job(connection)
    for arguments, done in (
        (["prioritize", "--queue", "default", "--to", "3", "--yes"], "1 job given the priority\n"),
        (["cancel", str(job_id)], "1 job cancelled\n"),
        (["cancel", "--queue", "default"], "0 jobs cancelled\n"),
    ):
        code, said, shown = await on_terminal(dsn, "", *arguments)
        assert (code, said) == (0, done)
        assert "Do it?" not in shown


async def test_an_interrupt_says_what_was_done_by_then(dsn: str, connection: asyncpg.Connection) -> None:
    free, held = await make_job(connection), await make_job(connection)

    async def is_cancelled() -> bool:
        return bool(await connection.fetchval("SELECT status = 'CANCELLED' FROM pqrun.jobs WHERE id = $1", free))

    async with (
        holding(dsn, "SELECT FROM pqrun.jobs WHERE id = $1 FOR UPDATE", held),
        running("cancel", "--queue", "default", env=environment(PQRUN_DSN=dsn)) as command,
    ):
        await wait_until(is_cancelled)  # the other one is tried again for seconds
        command.send(signal.SIGINT)
        assert await command.end() == 128 + signal.SIGINT
    assert re.fullmatch(r"pqrun: interrupted; what was done stays: [01] by then", command.output)
    assert await states(connection) == ["CANCELLED", "READY"]


async def test_progress_is_shown_on_a_terminal(dsn: str, connection: asyncpg.Connection) -> None:
    await connection.execute("INSERT INTO pqrun.jobs (job_type) SELECT 't' FROM generate_series(1, 1500)")
    code, _, shown = await on_terminal(dsn, "", "cancel", "--type", "t", "--yes")
    assert code == 0
    assert "1,500 done, 0 refused" in shown


def _read_all(descriptor: int) -> str:
    pieces: list[bytes] = []
    while True:
        try:
            piece = os.read(descriptor, 65536)
        except OSError:  # how Linux tells that the other side is closed
            piece = b""
        if not piece:
            os.close(descriptor)
            return b"".join(pieces).decode()
        pieces.append(piece)
