"""``pqrun schedules``: each subcommand, with a DSN alone and with an app, in words and as JSON."""

import json
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.cli.running import environment, run_command

APP = """
from pqrun import App, JobContext

jobs = App()


@jobs.task
async def report(ctx: JobContext, day: str) -> None: ...


@jobs.task(version=3)
async def versioned(ctx: JobContext, day: str) -> None: ...
"""

DAILY = ("--cron", "30 2 * * *", "--tz", "Europe/Berlin")


class Shell:
    """A shell in a folder with an app, whose environment names the database."""

    def __init__(self, dsn: str, folder: Path) -> None:
        (folder / "shop.py").write_text(APP)
        self._folder = folder
        self._env = environment(PQRUN_DSN=dsn, COLUMNS="200")

    async def __call__(self, *arguments: str) -> tuple[int, str]:
        return await run_command("schedules", *arguments, env=self._env, cwd=self._folder)

    async def says(self, *arguments: str) -> str:
        code, output = await self(*arguments)
        assert code == 0, output
        return output

    async def json(self, *arguments: str) -> Any:
        return json.loads(await self.says(*arguments, "--json"))


@pytest.fixture
def shell(dsn: str, tmp_path: Path) -> Shell:
    return Shell(dsn, tmp_path)


async def test_a_schedule_is_added_shown_edited_paused_resumed_run_and_removed(
    shell: Shell, connection: asyncpg.Connection
) -> None:
    assert await shell.says("list") == "no schedules"
    added = await shell.says("add", "nightly", "--task", "report", "--payload", '{"day": "x"}', *DAILY)
    assert added.startswith("added nightly: at 02:30 every day, Europe/Berlin, next at ")
    header, line = (await shell.says("list")).splitlines()
    assert header.split() == ["name", "task", "when", "next", "last", "state"]
    assert line.split()[:2] == ["nightly", "report"]
    assert "at 02:30 every day, Europe/Berlin" in line
    assert line.rstrip().endswith("active")

    edited = await shell.json(
        "edit", "nightly", "--every", "90m", "--overlap", "skip", "--jitter", "30s", "--queue", "slow"
    )
    assert (edited["every_seconds"], edited["cron"], edited["overlap"], edited["jitter_seconds"]) == (
        5400,
        None,
        "skip",
        30,
    )
    assert edited["queue"] == "slow"
    assert (await shell.json("show", "nightly"))["payload"] == {"day": "x"}
    assert "every 1 hour 30 minutes" in await shell.says("show", "nightly")

    assert await shell.says("pause", "nightly") == "paused nightly"
    assert (await shell.json("list"))[0]["state"] == "paused"
    assert await shell.says("resume", "nightly") == "resumed nightly"
    planned = (await shell.json("show", "nightly"))["next_at"]
    skipped = await shell.says("skip", "nightly")
    assert skipped.startswith("skipped nightly at ")
    assert (await shell.json("show", "nightly"))["next_at"] > planned
    job_id = int(await shell.says("run", "nightly"))
    row = await connection.fetchrow("SELECT job_type, queue, status FROM pqrun.jobs WHERE id = $1", job_id)
    assert row is not None
    assert tuple(row) == ("report", "slow", "READY")
    code, output = await shell("run", "nightly")
    assert (code, f"its last job, {job_id}, is still active" in output) == (1, True)
    assert await shell.says("remove", "nightly") == "removed nightly"
    assert await shell.json("list") == []


async def test_a_preview_is_the_rule_in_words_and_the_next_times(shell: Shell) -> None:
    await shell.says("add", "nightly", "--task", "report", *DAILY)
    words, *firings = (await shell.says("preview", "nightly", "-n", "3")).splitlines()
    assert words == "at 02:30 every day, Europe/Berlin"
    assert len(firings) == 3
    found = await shell.json("preview", "nightly", "--count", "3")
    assert found == {"words": words, "firings": firings}


async def test_with_an_app_the_task_and_its_payload_are_checked(shell: Shell) -> None:
    app = ("--app", "shop:jobs")
    added = await shell.json("add", "a", "--task", "report", "--payload", '{"day": "x"}', "--every", "1h", *app)
    assert (added["task"], added["origin"], added["next_at"] is not None) == ("report", "operator", True)
    code, output = await shell("add", "b", "--task", "other", "--every", "1h", *app)
    assert (code, "no task 'other'; it has report, versioned" in output) == (1, True)
    code, output = await shell("add", "b", "--task", "report", "--payload", "{}", "--every", "1h", *app)
    assert (code, "day" in output) == (1, True)
    code, output = await shell("edit", "a", "--payload", '{"day": 5}', *app)
    assert code == 1
    assert (await shell.json("show", "a", *app))["payload"] == {"day": "x"}
    await shell.says("edit", "a", "--payload", '{"day": "y"}', *app)
    assert (await shell.json("show", "a", *app))["payload"] == {"day": "y"}


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("add", "s", "--every", "1h"), 2, "--task: which task"),
        (("add", "s", "--task", "t"), 2, "cron or every"),
        (("add", "s", "--task", "t", "--cron", "x"), 2, "cron: expected"),
        (("add", "s", "--task", "t", "--every", "soon"), 2, "--every: expected a duration such as 90s"),
        (("add", "s", "--task", "t", "--every", "1h", "--jitter", "-5s"), 2, "--jitter: "),
        (("add", "s", "--task", "t", "--every", "1h", "--catch-up", "some"), 2, "catch_up: "),
        (("add", "s", "--task", "t", "--every", "1h", "--payload", "{x"), 2, "--payload: expected a JSON object"),
        (
            ("add", "s", "--task", "t", "--every", "1h", "--payload", "[1]"),
            2,
            "--payload: expected a JSON object; got list",
        ),
        (("show", "s"), 1, "there is no schedule 's'"),
        (("list", "--app", "shop:jobs", "--schema", "x"), 1, "--app names its own database and schema"),
    ],
)
async def test_what_cannot_be_done_is_told_in_one_line(
    shell: Shell, arguments: tuple[str, ...], code: int, message: str
) -> None:
    found, output = await shell(*arguments)
    assert (found, len(output.splitlines())) == (code, 1)
    assert message in output


async def test_hostile_names_forge_no_line_and_no_markup(shell: Shell, connection: asyncpg.Connection) -> None:
    await connection.execute(
        "INSERT INTO pqrun.schedules (name, job_type, every_seconds, next_at) VALUES ($1, 't', 60, now())",
        "[red]a\n2026 forged\x1b[31m",
    )
    output = await shell.says("list")
    assert len(output.splitlines()) == 2
    assert "[red]a" in output
    assert "\x1b" not in output


async def test_the_help_lists_every_subcommand(shell: Shell) -> None:
    output = await shell.says("--help")
    for command in ("list", "show", "add", "edit", "pause", "resume", "run", "remove", "preview"):
        assert f"  {command} " in output


async def test_an_app_gives_the_payload_the_version_of_its_task_and_an_edit_without_one_keeps_it(
    shell: Shell, connection: asyncpg.Connection
) -> None:
    async def stored() -> tuple[Any, ...]:
        return tuple(await connection.fetchrow("SELECT payload, payload_version FROM pqrun.schedules") or ())

    await shell.says("add", "a", "--task", "versioned", "--payload", '{"day": "x"}', *DAILY, "--app", "shop:jobs")
    assert await stored() == ('{"day": "x"}', 3)
    await shell.says("edit", "a", "--payload", '{"day": "y"}')
    assert await stored() == ('{"day": "y"}', 3)
    await shell.says("edit", "a", "--queue", "slow")
    assert await stored() == ('{"day": "y"}', 3)
    await shell.says("edit", "a", "--task", "other")
    assert await stored() == ('{"day": "y"}', 1)
    await shell.says("edit", "a", "--task", "versioned", "--app", "shop:jobs")
    assert await stored() == ('{"day": "y"}', 3)
