"""``pqrun doctor``: whether the database and the workers are as a queue needs them, and what to do where they are not. Reads only.

0 all is well, 1 there are problems (with --strict warnings too), 2 wrong usage.
"""

import json
import os
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from pqrun.cli.database import DsnOption, dsn_or_refuse
from pqrun.cli.signals import Interrupts
from pqrun.doctor import Finding, Level, examine
from pqrun.errors import DatabaseUnavailableError, EmbeddedError
from pqrun.store import PgJobStore

__all__ = ["doctor"]

PROBLEMS: Final = 1

MARKS: Final[dict[Level, str]] = {
    "ok": "[green]ok[/]",
    "warning": "[yellow]warning[/]",
    "problem": "[bold red]problem[/]",
}

SchemaOption = Annotated[str, typer.Option("--schema", metavar="NAME", help="The schema that holds the tables.")]
Strict = Annotated[bool, typer.Option("--strict", help="Warnings count as problems too.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout instead of a table.")]


def doctor(
    dsn: DsnOption = None, schema: SchemaOption = "pqrun", strict: Strict = False, as_json: Json = False
) -> None:
    """Say what is wrong with the database or the workers, and what to do about it. Reads only.

    Looks at server, clocks, connections, pooler, snapshots, schema, rights, vacuum and workers. Exit code 0: all is well; 1: there are
    problems (with --strict also warnings); 2: wrong usage. For example: pqrun doctor --json --strict
    """
    store = PgJobStore(dsn_or_refuse(dsn, os.environ), schema=schema)
    with Interrupts() as interrupts:
        findings = interrupts.run(_examined(store))
    if as_json:
        typer.echo(json.dumps({"findings": [msgspec.to_builtins(finding) for finding in findings]}, indent=2))
    else:
        _show(findings)
    bad: tuple[Level, ...] = ("warning", "problem") if strict else ("problem",)
    if any(finding.level in bad for finding in findings):
        raise typer.Exit(PROBLEMS)


async def _examined(store: PgJobStore) -> Sequence[Finding]:
    try:
        async with store:
            return await examine(store)
    except (DatabaseUnavailableError, EmbeddedError) as error:  # an embedded one that does not start, say
        return [Finding(check="connection", level="problem", found=str(error), fix="see what the message says")]


def _show(findings: Sequence[Finding]) -> None:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        table.add_row(MARKS[finding.level], finding.check, _escaped(finding.found))
        if finding.fix is not None:
            table.add_row("", "", f"[dim]→ {_escaped(finding.fix)}[/]")
    console = Console(highlight=False)
    console.print(table)
    counts = {level: sum(finding.level == level for finding in findings) for level in MARKS}
    console.print(
        ", ".join(f"{n} {level}{'s' if n != 1 and level != 'ok' else ''}" for level, n in reversed(counts.items()))
    )


def _escaped(text: str) -> str:
    return text.replace("[", r"\[")
