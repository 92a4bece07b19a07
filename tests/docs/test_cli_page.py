"""docs/cli.md and the grammar in docs/operating.md say what the code says."""

import re

import click
import typer.main

from pqrun.cli.examples import EXAMPLES
from pqrun.cli.main import cli
from pqrun.job.explaining import Why
from pqrun.job.query import KEYS, parse_query
from tests.docs.test_docs import ROOT, table


def commands() -> dict[str, click.Command]:
    """Every command by its words."""
    found: dict[str, click.Command] = {}
    pending = [("pqrun", typer.main.get_command(cli))]
    while pending:
        words, command = pending.pop()
        inner = getattr(command, "commands", {})
        found |= {f"{words} {name}": one for name, one in inner.items()}
        pending += [(f"{words} {name}", one) for name, one in inner.items()]
    return found


def test_the_table_has_every_command_and_no_other() -> None:
    assert sorted(name for name, _ in table("docs/cli.md", "command")) == sorted(commands())


def test_every_command_of_the_first_level_has_examples_in_its_help() -> None:
    first = {name.removeprefix("pqrun "): command for name, command in commands().items() if name.count(" ") == 1}
    assert first.keys() == EXAMPLES.keys()
    assert not [name for name, one in first.items() if not all(line in (one.epilog or "") for line in EXAMPLES[name])]


def test_the_examples_name_their_command_and_its_options() -> None:
    known = commands()
    for name, lines in EXAMPLES.items():
        for line in lines:
            assert line.split()[:2] == ["pqrun", name]
            words = " ".join(line.split()[:3])
            options = {
                option
                for one in known.get(words, known[f"pqrun {name}"]).params
                for option in (*one.opts, *one.secondary_opts)
            }
            assert set(re.findall(r" (--[\w-]+)", line)) <= options, line


def test_every_command_that_lists_has_json() -> None:
    known = commands()
    listing = ("jobs", "workers", "tasks", "why", "schedules list", "check")
    assert not [name for name in listing if not any("--json" in one.opts for one in known[f"pqrun {name}"].params)]


def test_the_reasons_are_those_of_the_code_in_their_order() -> None:
    assert [why for why, _ in table("docs/cli.md", "why")] == [why.value for why in Why]


def test_the_grammar_has_every_key_with_its_example() -> None:
    told = [example for condition, _ in table("docs/operating.md", "condition") for example in condition.split(", ")]
    assert told == list(KEYS.values())
    assert not [example for example in told if parse_query(example).is_empty]


def test_the_examples_in_the_prose_of_the_grammar_are_read() -> None:
    text = (ROOT / "docs" / "operating.md").read_text()
    section = text.partition("## The query language")[2].partition("\n## ")[0]
    prose = "\n".join(line for line in section.splitlines() if not line.startswith("|"))
    conditions = re.findall(r"`((?:queue|error|payload)[.:][^`]+)`", prose)
    assert len(conditions) >= 6
    assert not [one for one in conditions if parse_query(one).is_empty]
