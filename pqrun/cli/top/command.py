"""The command: frames until ``q`` or a signal, or just one."""

import asyncio
import contextlib
import os
from typing import Annotated, Final

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from pqrun.cli.database import dsn_or_refuse
from pqrun.cli.showing import DsnOption, JsonOption, SchemaOption, json_text, on_store, print_table
from pqrun.cli.signals import Interrupts
from pqrun.cli.top.drawing import draw
from pqrun.cli.top.frame import read_frame
from pqrun.cli.top.keys import heard_keys
from pqrun.errors import OptionError, StoreError
from pqrun.job.storable import one_line
from pqrun.store import PgJobStore

__all__ = ["top"]

ROWS_ONCE: Final = 50
"""Of each list, where nothing limits the height."""

ROWS_LEAST: Final = 3

LINES_AROUND: Final = 22
"""Of a frame, besides the rows of its three lists."""

LEAST_SECONDS: Final = 0.2


def top(
    once: Annotated[
        bool, typer.Option("--once", help="Print one frame and end; so it is, too, where nothing shows it live.")
    ] = False,
    every: Annotated[float, typer.Option("--every", metavar="SECONDS", help="Between two looks.")] = 2.0,
    dsn: DsnOption = None,
    schema: SchemaOption = "pqrun",
    as_json: JsonOption = False,
) -> None:
    """Show queues, throughput, workers and the slowest running jobs, live; q or Ctrl-C ends it."""
    if not every >= LEAST_SECONDS:
        raise OptionError(f"--every: expected {LEAST_SECONDS:g} seconds or more; got {every:g}")
    console = Console(highlight=False)
    if as_json:
        typer.echo(json_text(on_store(dsn, schema, read_frame)))
    elif once or not console.is_terminal:
        print_table(draw(on_store(dsn, schema, read_frame), ROWS_ONCE))
    else:
        store = PgJobStore(dsn_or_refuse(dsn, os.environ), schema=schema)
        with Interrupts() as interrupts, contextlib.suppress(KeyboardInterrupt):  # Ctrl-C is how it ends
            interrupts.run(_show(store, console, every))


async def _show(store: PgJobStore, console: Console, every: float) -> None:
    loop, ending = asyncio.get_running_loop(), asyncio.Event()
    async with store:
        shown: RenderableType = draw(await read_frame(store), _rows(console))  # before the screen changes: it may fail
        with (
            heard_keys(loop, ending.set),
            Live(shown, console=console, screen=True, auto_refresh=False) as live,
        ):
            live.refresh()
            while not await _ended_within(ending, every):
                try:
                    shown = draw(await read_frame(store), _rows(console))
                    live.update(shown, refresh=True)
                except StoreError as error:  # it may come back: the last frame stays meanwhile
                    live.update(Group(Text(f"pqrun: {one_line(str(error))}", style="red"), shown), refresh=True)


async def _ended_within(ending: asyncio.Event, seconds: float) -> bool:
    try:
        await asyncio.wait_for(ending.wait(), seconds)
    except TimeoutError:
        return False
    return True


def _rows(console: Console) -> int:
    return max((console.height - LINES_AROUND) // 3, ROWS_LEAST)
