"""The command: a database, the jobs, the worker, and in the end nothing left of them."""

import asyncio
import logging
import os
import time
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pqrun.cli.database import embedded_server
from pqrun.cli.demo.progress import ConsoleLog, Tally, showing
from pqrun.cli.demo.report import Findings, report
from pqrun.cli.demo.sources import find_sources, write_broken
from pqrun.cli.demo.tasks import FileIndex, Totals, add, add_up, index_file, jobs, read_index
from pqrun.cli.signals import Interrupts
from pqrun.errors import EmbeddedError
from pqrun.handle import JobHandle

__all__ = ["demo"]

CONCURRENCY = 4
"""Files at once; parsing is bound by Python's lock, so more would only take turns."""

DEADLINE = timedelta(minutes=3)
"""The demo takes some seconds; what takes longer than this hangs."""


def demo(
    path: Annotated[
        Path | None, typer.Option(file_okay=False, help="Keep the database in this folder (default: private, removed).")
    ] = None,
    files: Annotated[int | None, typer.Option(min=1, help="Read so many files only (default: all).")] = None,
) -> None:
    """Index the source files of this Python's library, one job each, on a PostgreSQL of its own; check every sum."""
    console = Console(highlight=False)
    logging.getLogger("pqrun").addHandler(ConsoleLog(console))
    with Interrupts() as interrupts, embedded_server(path) as (server, folder):
        console.print(f"PostgreSQL runs in {folder} (process {server.pid}), no port is open", soft_wrap=True)
        os.environ["PQRUN_DSN"] = server.dsn  # what a deployment would set
        is_right = interrupts.run(_demo(folder, files, console))
    if path is not None:
        console.print(f"The jobs are kept: PQRUN_DSN=embedded:{folder}", soft_wrap=True)
    if not is_right:
        raise typer.Exit(1)


async def _demo(folder: Path, limit: int | None, console: Console) -> bool:
    broken = write_broken(folder)
    sources = [*find_sources(limit), broken]
    async with jobs:
        await jobs.store.migrate()
        handles = await jobs.defer_many([index_file.call(path=str(source)) for source in sources])
        again = await index_file.defer(path=str(sources[0]))  # its job waits: the same one is found
        ids = [handle.id for handle in handles]
        totals = await add_up.options(run_after=timedelta(seconds=1)).defer(job_ids=ids)
        console.print(f"{len(ids)} jobs deferred, one per file; job {totals.id} adds up, a second from now")
        tally = Tally(ids)
        found = await _work(tally, totals, console)
        loop_started = time.perf_counter()
        expected = await _plain_loop(sources)
        findings = Findings(
            jobs=found,
            loop=expected,
            jobs_seconds=tally.seconds,
            loop_seconds=time.perf_counter() - loop_started,
            broken=await handles[-1].job(),
            first_id=ids[0],
            again_id=again.id,
            again_created=again.created,
        )
    return report(findings, console)


async def _work(tally: Tally, totals: JobHandle[Totals], console: Console) -> Totals:
    """Run a worker until the sum of all results is there."""
    worker = jobs.worker(concurrency=CONCURRENCY, worker_id="demo", environ={})
    worker.events.subscribe(tally)
    async with worker.lifespan():
        console.print(f"worker started, {CONCURRENCY} jobs at once", soft_wrap=True)
        with showing(tally, console):
            try:
                return await totals.result(timeout=DEADLINE)
            except TimeoutError:
                late = f"the jobs did not end within {DEADLINE}: {tally}"
        raise EmbeddedError(late)


async def _plain_loop(sources: Iterable[Path]) -> Totals:
    found: list[FileIndex | None] = []
    for source in sources:
        try:
            found.append(read_index(source))
        except SyntaxError:
            found.append(None)
        await asyncio.sleep(0)  # lets Ctrl-C in
    return add(found)
