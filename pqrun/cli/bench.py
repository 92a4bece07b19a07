"""``pqrun bench``: how fast this machine and this database do jobs that do nothing."""

import asyncio
import json
import os
import platform
import secrets
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from typing import Annotated, NamedTuple, cast

import typer
from pydantic import BaseModel
from rich.console import Console
from rich.table import Table

from pqrun.app import App
from pqrun.cli.database import embedded_server
from pqrun.cli.signals import Interrupts
from pqrun.config import require_dsn
from pqrun.errors import StoreError
from pqrun.run.context import JobContext
from pqrun.run.events import Done, Event
from pqrun.store.failure import translating
from pqrun.store.statements import quote_identifier
from pqrun.worker import Worker

__all__ = ["bench"]

JOBS_MAX = 1_000_000

BATCH = 5_000
"""Jobs per ``defer_many``: one transaction each."""

SAMPLES = 100
"""Of the time from defer to start."""

PAUSE_SECONDS = 0.01
"""Between two samples, so that the worker has gone back to sleep."""

STALL_SECONDS = 60.0
"""So long without any job done means that something is wrong."""

SETTINGS = ("server_version", "fsync", "synchronous_commit", "full_page_writes", "shared_buffers")


class Sample(BaseModel):
    """The payload: a few fields to validate, as real ones have."""

    t: float
    """When it was deferred, by ``time.perf_counter``: the worker runs in this process."""
    i: int
    s: str


class Measured(NamedTuple):
    """Rates in jobs per second, latencies in seconds."""

    defer_rate: float
    drain_rate: float
    latencies: list[float]
    settings: dict[str, str]


def bench(
    jobs: Annotated[int, typer.Option(min=1, max=JOBS_MAX, help="Jobs to defer and drain.")] = 20_000,
    concurrency: Annotated[int, typer.Option(min=1, max=1_000, help="Jobs at once.")] = 1,
    dsn: Annotated[
        str | None,
        typer.Option(metavar="DSN", help="Measure this database (default: one of its own; no variable counts)."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout instead of a table.")] = False,
) -> None:
    """Drain jobs that do nothing and print rates and latencies.

    Without --dsn on a durable PostgreSQL of its own, in a private folder; with it in a schema that is dropped afterwards.
    """
    console = Console(highlight=False, stderr=as_json)
    with Interrupts() as interrupts, ExitStack() as stack:
        if dsn is None:
            server, _ = stack.enter_context(embedded_server(None))
            measured = interrupts.run(_measure(server.dsn, jobs, concurrency, console))
        else:
            measured = interrupts.run(_measure(require_dsn(dsn, os.environ), jobs, concurrency, console))
    if as_json:
        typer.echo(json.dumps(_as_json(measured, jobs, concurrency)))
    else:
        _report(measured, jobs, concurrency, console)


class _Bench:
    """The app of one measurement."""

    def __init__(self, dsn: str, schema: str) -> None:
        self.latencies: list[float] = []
        self.app = App(dsn=dsn, schema=schema)

        @self.app.task(payload=Sample)
        async def no_op(_ctx: JobContext, payload: Sample) -> dict[str, int]:
            return {"i": payload.i}

        @self.app.task(payload=Sample)
        async def note_start(_ctx: JobContext, payload: Sample) -> dict[str, int]:
            self.latencies.append(time.perf_counter() - payload.t)
            return {"i": payload.i}

        self.no_op, self.note_start = no_op, note_start


async def _measure(dsn: str, jobs: int, concurrency: int, console: Console) -> Measured:
    bench = _Bench(dsn, f"pqrun_bench_{secrets.token_hex(6)}")
    async with bench.app as app, _dropped_schema(app):
        settings = await _settings(app)
        console.print(f"deferring {jobs} jobs ...")
        started = time.perf_counter()
        for first in range(0, jobs, BATCH):
            batch = range(first, min(first + BATCH, jobs))
            await app.defer_many([bench.no_op.call(t=started, i=i, s=f"job {i}") for i in batch])
        deferred = time.perf_counter()
        worker = app.worker(concurrency=concurrency, worker_id="bench", environ={}, retention=None)
        counter = _Counter(worker)
        console.print("draining ...")
        async with worker.lifespan():
            began = time.perf_counter()
            await counter.wait(jobs)
            drained = time.perf_counter()
            console.print(f"{SAMPLES} single jobs on the idle worker ...")
            await _sample(bench, counter, jobs)
    return Measured(jobs / (deferred - started), jobs / (drained - began), bench.latencies, settings)


async def _sample(bench: _Bench, counter: "_Counter", before: int) -> None:
    for i in range(SAMPLES):
        await asyncio.sleep(PAUSE_SECONDS)
        await bench.note_start.defer(t=time.perf_counter(), i=i, s=f"sample {i}")
        await counter.wait(before + i + 1)


class _Counter:
    """Counts what a worker has done."""

    def __init__(self, worker: Worker) -> None:
        self._done = 0
        self._news = asyncio.Event()
        worker.events.subscribe(self._hear)

    def _hear(self, event: Event) -> None:
        if isinstance(event, Done):
            self._done += 1
            self._news.set()

    async def wait(self, count: int) -> None:
        """Wait until so many jobs are done; raises StoreError when none is for too long."""
        while self._done < count:
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), STALL_SECONDS)
            except TimeoutError:
                break
        if self._done < count:
            raise StoreError(f"no job was done for {STALL_SECONDS:g} s, {self._done} of {count} before that")


@asynccontextmanager
async def _dropped_schema(app: App[None]) -> AsyncIterator[None]:
    await app.store.migrate()
    try:
        yield
    finally:
        with translating():
            async with app.store.transaction() as connection:
                await connection.execute(f"DROP SCHEMA {quote_identifier(app.store.schema)} CASCADE")


async def _settings(app: App[None]) -> dict[str, str]:
    columns = ", ".join(f"current_setting('{name}')" for name in SETTINGS)
    async with app.store.transaction() as connection:
        (row,) = await connection.fetch(f"SELECT {columns}")  # names of our own
    return dict(zip(SETTINGS, cast("Sequence[str]", row), strict=True))


def _report(measured: Measured, jobs: int, concurrency: int, console: Console) -> None:
    p50, p95 = (f"{1000 * seconds:.1f} ms" for seconds in _p50_p95(measured.latencies))
    table = Table("measure", "value")
    table.add_row("defer_many", f"{measured.defer_rate:,.0f} jobs/s")
    table.add_row("drain", f"{measured.drain_rate:,.0f} jobs/s")
    table.add_row("defer to start, p50", p50)
    table.add_row("defer to start, p95", p95)
    table.add_section()
    table.add_row("jobs", f"{jobs:,}")
    table.add_row("concurrency", str(concurrency))
    table.add_row("Python", platform.python_version())
    for name, value in measured.settings.items():
        table.add_row(name, value)
    console.print(table)


def _as_json(measured: Measured, jobs: int, concurrency: int) -> dict[str, object]:
    p50, p95 = _p50_p95(measured.latencies)
    return {
        "jobs": jobs,
        "concurrency": concurrency,
        "defer_many_per_second": measured.defer_rate,
        "drain_per_second": measured.drain_rate,
        "defer_to_start_seconds": {"p50": p50, "p95": p95},
        "python": platform.python_version(),
        "settings": measured.settings,
    }


def _p50_p95(values: list[float]) -> tuple[float, float]:
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return cuts[49], cuts[94]
