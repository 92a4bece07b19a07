"""The entry point: version, usage, and how errors are told."""

import importlib.metadata
import sys

import pytest

from pqrun.cli.main import cli
from pqrun.config import WORKER_VARIABLES
from tests.cli.running import environment, run_command


async def test_version_prints_that_of_the_package() -> None:
    code, output = await run_command("--version")
    assert (code, output) == (0, f"pqrun {importlib.metadata.version('pqrun')}")


@pytest.mark.parametrize(
    "command",
    [
        "migrate",
        "worker",
        "check",
        "tasks",
        "defer",
        "jobs",
        "why",
        "workers",
        "cancel",
        "retry",
        "delete",
        "move",
        "prioritize",
        "watch",
        "demo",
        "bench",
        "schedules",
    ],
)
async def test_the_help_lists_every_command(command: str) -> None:
    code, output = await run_command("--help")
    assert code == 0
    assert f"  {command} " in output


async def test_a_shell_completes_commands_and_options() -> None:
    program = [sys.executable, "-c", "import sys; sys.argv[0] = 'pqrun'; from pqrun.cli.main import run; run()"]
    for words, found in (("pqrun wor", ["worker", "workers"]), ("pqrun jobs --li", ["--limit"])):
        env = environment(_PQRUN_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=str(len(words.split()) - 1))
        _, output = await run_command(env=env, program=program)
        assert output.split() == found


async def test_an_unknown_command_is_wrong_usage() -> None:
    code, output = await run_command("wokrer")
    assert code == 2
    assert "wokrer" in output


async def test_every_worker_variable_has_its_flag_in_the_help() -> None:
    _, output = await run_command("worker", "--help", env=environment(COLUMNS="200"))
    assert [variable.flag for variable in WORKER_VARIABLES if variable.flag not in output] == []
    assert [variable.name for variable in WORKER_VARIABLES if variable.name not in output] == []


def test_every_command_explains_itself() -> None:
    assert [command for command in cli.registered_commands if not (command.callback and command.callback.__doc__)] == []
