"""How commands show what they have found: tables for people, lines for other programs, JSON for both."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Final, TypeAlias, TypeVar

import msgspec
import typer
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from pqrun.cli.database import DsnOption, dsn_or_refuse
from pqrun.job.storable import one_line
from pqrun.store import PgJobStore

__all__ = ["DsnOption", "JsonOption", "SchemaOption", "instant", "json_text", "on_store", "print_table", "table"]

T = TypeVar("T")

SchemaOption: TypeAlias = Annotated[
    str, typer.Option("--schema", metavar="NAME", help="The schema that holds the tables.")
]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]

WIDE: Final = 100_000
"""Of what goes to a file or a pipe: one line each, nothing cut."""


def on_store(dsn: str | None, schema: str, act: Callable[[PgJobStore], Awaitable[T]]) -> T:
    """Open the store that the options name, do it, and close the store. Raises ConfigurationError and what ``act`` raises."""

    async def run() -> T:
        async with PgJobStore(dsn_or_refuse(dsn, os.environ), schema=schema) as store:
            return await act(store)

    return asyncio.run(run())


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Make a table; None is an empty cell, and no cell breaks its line."""
    made = Table(box=None, header_style="bold", pad_edge=False)
    for heading in headings:
        made.add_column(heading, no_wrap=True, overflow="ellipsis")
    for row in rows:
        made.add_row(*(Text("" if cell is None else one_line(str(cell))) for cell in row))
    return made


def print_table(made: RenderableType) -> None:
    """Print it: on a terminal cut to its width, else whole."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=WIDE)
    with console.capture() as captured:
        console.print(made)
    typer.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def json_text(value: object, *, indent: int = 2) -> str:
    """Return JSON text; 0 puts it on one line."""
    encoded = msgspec.json.encode(value)
    return (msgspec.json.format(encoded, indent=indent) if indent else encoded).decode()


def instant(moment: datetime | None) -> str | None:
    """Return the instant in UTC, as JSON has it."""
    return None if moment is None else moment.astimezone(UTC).isoformat()
