"""``pqrun check``: exit codes, text, JSON, and what is never shown."""

import asyncio
import json
import os
import pty
import re
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.cli.running import PQRUN, environment, run_command, running
from tests.support.rows import make_job

SECRET = "payload-nobody-may-see"

STORE = """\
from pydantic import BaseModel

from pqrun import App, JobContext


class Order(BaseModel):
    number: int
    note: str = ""


jobs = App()


@jobs.task(payload=Order, version=2, upgrades={1: lambda payload: {"number": payload["id"]}})
async def pay(ctx: JobContext, payload: Order) -> None: ...


@jobs.task
async def send(ctx: JobContext, to: str) -> None: ...
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the module code.py, whose app is ``code_of:jobs``."""
    (tmp_path / "code_of.py").write_text(STORE)
    return tmp_path


async def checked(folder: Path, dsn: str, *options: str) -> tuple[int, str]:
    return await run_command("check", "code_of:jobs", *options, env=environment(PQRUN_DSN=dsn), cwd=folder)


async def report(folder: Path, dsn: str, *options: str) -> tuple[int, Mapping[str, Any]]:
    """The exit code and what stands on stdout alone."""
    code, output = await checked(folder, dsn, "--json", *options)
    return code, json.loads(output[output.index("{") :])


async def test_nothing_that_waits_is_clean(folder: Path, dsn: str) -> None:
    assert await checked(folder, dsn) == (0, "0 jobs waiting\nclean: this code can run them")


async def test_jobs_that_this_code_reads_are_clean(folder: Path, dsn: str, connection: asyncpg.Connection) -> None:
    await make_job(connection, job_type="pay", payload='{"id": 1}')
    await make_job(connection, job_type="pay", payload='{"number": 1, "unknown": 1}', payload_version=2)
    assert await checked(folder, dsn) == (0, "2 jobs waiting\nclean: this code can run them")


async def test_each_problem_is_told_with_what_to_do_and_no_payload(
    folder: Path, dsn: str, connection: asyncpg.Connection
) -> None:
    first = await make_job(connection, job_type="pay", payload=json.dumps({"id": SECRET}))
    for _ in range(29):
        await make_job(connection, job_type="pay", payload=json.dumps({"id": SECRET}))
    await make_job(connection, job_type="gone", queue="old")
    shape = {"to": {"type": "integer", "required": True}, "cc": {"type": "string", "required": True}}
    await connection.execute(
        "INSERT INTO pqrun.task_shapes (job_type, version, shape) VALUES ('send', 1, $1)", json.dumps(shape)
    )
    code, output = await checked(folder, dsn)
    assert code == 1
    told = (
        "pay: 30 jobs cannot be decoded (payload version 1): pay, payload of version 1 for 2: the stored payload does not satisfy "
        "Order: number: Input should be a valid integer, unable to parse string as an integer"
    )
    advice = (
        "state version=2 and upgrades={1: ...}, a function that makes such a payload from one of before; "
        "or keep the fields, and give new ones a default"
    )
    ids = ", ".join(str(first + n) for n in range(20))
    assert output.splitlines() == [
        f"the sample: {told}",
        "31 jobs waiting",
        f"PROBLEM {told}",
        f"    ids {ids} and 10 more",
        "    -> keep reading them (a default, or version= and upgrades=), let code of before finish them, or cancel them",
        "PROBLEM gone: 1 job in old, and no task of the app serves them",
        "    -> keep the task (name= holds its name) until they are done, import the module that declares it, or cancel them",
        "PROBLEM send: the payload of version 1 looks different from what its workers have noted",
        "    cc: gone (was string)",
        "    to: integer, now string",
        f"    -> {advice}",
    ]
    assert SECRET not in output


async def test_json_is_one_object_on_stdout_with_names_that_stay(
    folder: Path, dsn: str, connection: asyncpg.Connection
) -> None:
    bad = await make_job(connection, job_type="pay", payload=json.dumps({"number": SECRET}))
    await make_job(connection, job_type="gone")
    shape = {"id": {"type": "integer", "required": True}, "number": {"type": "integer", "required": True}}
    await connection.execute(
        "INSERT INTO pqrun.task_shapes (job_type, version, shape) VALUES ('pay', 1, $1)", json.dumps(shape)
    )
    code, found = await report(folder, dsn)
    assert code == 1
    assert found == {
        "clean": False,
        "error": None,
        "waiting": 2,
        "decoded": 1,
        "is_sample": False,
        "undecodable": [
            {
                "job_type": "pay",
                "count": 1,
                "versions": [1],
                "first_error": "pay, payload of version 1 for 2: the upgrade from version 1 raised KeyError",
                "ids": [bad],
            }
        ],
        "unserved": [{"job_type": "gone", "count": 1, "queues": ["default"]}],
        "shapes": [
            {
                "job_type": "pay",
                "version": 2,
                "noted_version": 1,
                "changes": [
                    {"field": "id", "change": "removed", "before": "integer", "after": None, "is_additive": False},
                    {"field": "note", "change": "added", "before": None, "after": "string", "is_additive": True},
                ],
                "is_problem": False,
                "advice": "nothing to do: payloads of version 1 are upgraded; "
                "start workers of this code before anything defers with it",
            }
        ],
    }
    assert (await report(folder, dsn, "--task", "send")) == (
        0,
        {**found, "clean": True, "waiting": 0, "decoded": 0, "undecodable": [], "unserved": [], "shapes": []},
    )


async def test_an_additive_change_is_a_note_and_a_problem_only_where_that_is_asked_for(
    folder: Path, dsn: str, connection: asyncpg.Connection
) -> None:
    await connection.execute(
        "INSERT INTO pqrun.task_shapes (job_type, version, shape) VALUES ('send', 1, '{}'), ('pay', 2, $1)",
        '{"number": {"type": "integer", "required": true}}',
    )
    code, output = await checked(folder, dsn, "--task", "pay")
    assert code == 0
    assert "note pay: the payload of version 2 looks different" in output
    assert "    note: new, with a default (string)" in output
    assert (await checked(folder, dsn, "--task", "pay", "--strict"))[0] == 1


async def test_a_sample_says_that_it_is_one(folder: Path, dsn: str, connection: asyncpg.Connection) -> None:
    for _ in range(5):
        await make_job(connection, job_type="send", payload='{"to": "x"}')
    assert await checked(folder, dsn, "--sample", "2", "--sample-only") == (
        0,
        "5 jobs waiting, 2 of them decoded as a sample\nclean: this code can run them, as far as the sample shows",
    )
    assert await checked(folder, dsn, "--sample", "2") == (0, "5 jobs waiting\nclean: this code can run them")


async def test_the_flag_names_another_database(folder: Path, dsn: str) -> None:
    env = environment(PQRUN_DSN="postgresql://nobody@localhost:1/none")
    code, _ = await run_command("check", "code_of:jobs", "--dsn", dsn, env=env, cwd=folder)
    assert code == 0


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("code_of",), "expected module:app"),
        (("code_of:job",), "has no 'job'; did you mean code_of:jobs"),
        (("nowhere:jobs",), "there is no module nowhere"),
        (("broken:jobs",), "RuntimeError"),
        (("code_of:jobs", "--task", "sned"), "no task 'sned'; did you mean 'send'"),
        (("code_of:jobs", "--sample", "0"), "sample"),
        (("code_of:jobs", "--dsn", "postgresql://shop:hunter2@localhost:1/none"), "localhost"),
        (
            (
                "code_of:jobs",
                "--nothing",
            ),
            "No such option",
        ),
    ],
)
async def test_what_cannot_be_checked_is_code_two(
    folder: Path, dsn: str, arguments: tuple[str, ...], reason: str
) -> None:
    (folder / "broken.py").write_text("raise RuntimeError\n")
    code, output = await run_command("check", *arguments, env=environment(PQRUN_DSN=dsn), cwd=folder)
    assert (code, reason in output) == (2, True), output
    assert "hunter2" not in output


async def test_without_a_database_or_a_schema_it_is_code_two_and_json_says_why(folder: Path, empty_dsn: str) -> None:
    code, output = await run_command("check", "code_of:jobs", env=environment(), cwd=folder)
    assert code == 2
    assert "PQRUN_DSN" in output
    code, found = await report(folder, empty_dsn)
    assert (code, found["clean"]) == (2, None)
    assert "run: pqrun migrate" in found["error"]


async def test_progress_is_shown_on_a_terminal_and_nowhere_else(
    folder: Path, dsn: str, connection: asyncpg.Connection
) -> None:
    await connection.execute(
        """INSERT INTO pqrun.jobs (job_type, payload) SELECT 'send', '{"to": "x"}' FROM generate_series(1, 6000)"""
    )
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *(*PQRUN, "check", "code_of:jobs"),
        env=environment(PQRUN_DSN=dsn, TERM="xterm", COLUMNS="120"),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=theirs,
    )
    os.close(theirs)
    shown, (said, _) = await asyncio.gather(asyncio.to_thread(_read_all, ours), process.communicate())
    assert process.returncode == 0
    assert b"6,000 jobs waiting" in said
    assert re.search(r"decoding all.*6000/6000", shown.replace("\x1b", ""))
    assert "jobs/s" in shown
    code, output = await checked(folder, dsn)
    assert (code, output) == (0, "6,000 jobs waiting\nclean: this code can run them")


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


async def test_an_interrupt_ends_it_with_the_signals_code(
    folder: Path, dsn: str, connection: asyncpg.Connection
) -> None:
    (folder / "slow.py").write_text(STORE + "\nprint('loaded', flush=True)\n")
    await make_job(connection, job_type="send", payload='{"to": "x"}')
    async with connection.transaction():
        await connection.execute("LOCK pqrun.jobs_active")  # it waits for as long as this lasts
        async with running("check", "slow:jobs", env=environment(PQRUN_DSN=dsn), cwd=folder) as command:
            await command.wait_line("loaded")
            command.send(signal.SIGINT)
            assert await command.end() == 130
