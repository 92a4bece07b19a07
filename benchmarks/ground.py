"""The ground that measurements stand on: a durable server, a fresh database for each figure, worker processes, clocks, repetitions.

A measurement is a module with a coroutine that takes a `Ground` and returns its rows, and a ``main`` that hands it to `run_measurement`.
"""

import asyncio
import contextlib
import secrets
import shutil
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, NamedTuple, TypeAlias, TypeVar
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import typer
from rich.console import Console

from benchmarks.no_op import JOB_TYPE, PAYLOAD
from benchmarks.processes import DEFAULT, FAST, Setup, WorkerProcess, at_work, server_cpu_seconds
from benchmarks.results import RESULTS, Measured, Report, at_least, at_most, print_rows, versions, write_report
from pqrun.cli.signals import Interrupts
from pqrun.embedded import start_server_async
from pqrun.store import PgJobStore
from tests.support.database import connected

__all__ = [
    "DEFAULT",
    "FAST",
    "Database",
    "Drain",
    "DsnOption",
    "Ground",
    "Measured",
    "OutOption",
    "QuickOption",
    "RepeatOption",
    "Setup",
    "alternate",
    "at_least",
    "at_most",
    "at_work",
    "connected",
    "ground",
    "ratio_of",
    "run_measurement",
]

T = TypeVar("T")

SETTINGS = {
    "shared_buffers": "512MB",
    "max_wal_size": "4GB",
    "max_connections": "300",
    "fsync": "on",
    "synchronous_commit": "on",
}
"""Of the server that a run starts: durable."""

POLL_SECONDS = 0.02
"""Between two looks whether all is done."""

POLL_SHARE = 0.05
"""Of the time is spent on looking, at most."""

STALL_SECONDS = 120.0
"""So long without any job ending means that something is wrong."""

SETTLE_SECONDS = 0.5
"""Between the checkpoint and the start: what it set off has calmed down."""

PENDING = """
SELECT EXISTS (SELECT FROM pqrun.jobs_active WHERE status = 'READY' AND lost = 0)
    OR EXISTS (SELECT FROM pqrun.jobs_active WHERE status = 'RUNNING')
    OR EXISTS (SELECT FROM pqrun.jobs_active WHERE status = 'SCHEDULED' AND run_after < clock_timestamp() + interval '1 day')
"""
"""Whether anything is left to do; by indexes, whatever else lies in the table."""

DsnOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="DSN", help="Measure this server, in databases of its own (default: one that is started for the run)."
    ),
]
OutOption: TypeAlias = Annotated[
    Path | None, typer.Option(help="Write the report here (default: benchmarks/results/NAME.json).")
]
QuickOption: TypeAlias = Annotated[bool, typer.Option("--quick", help="Small numbers: to see that it works.")]
RepeatOption: TypeAlias = Annotated[int, typer.Option(min=1, max=99, help="Repetitions, of which the median counts.")]


class Drain(NamedTuple):
    """From the first start of a handler until nothing was left."""

    jobs: int
    seconds: float
    worker_cpu_seconds: float | None
    """Of all worker processes, from their start; None where the system does not tell."""
    server_cpu_seconds: float | None

    @property
    def rate(self) -> float:
        """Jobs per second."""
        return self.jobs / self.seconds


class Database:
    """A fresh, migrated database."""

    def __init__(self, dsn: str, postmaster: int | None) -> None:
        self.dsn = dsn
        self.looks = 0
        """How often this has looked whether all is done: a transaction each."""
        self._postmaster = postmaster

    async def execute(self, *statements: str) -> None:
        """Run statements, each in a transaction of its own."""
        async with connected(self.dsn) as connection:
            for statement in statements:
                await connection.execute(statement)

    async def fill(self, count: int, **columns: str) -> None:
        """Insert so many READY jobs by plain SQL; ``columns`` are SQL expressions of ``i``, from 1 (``priority="i % 5"``)."""
        values = {"job_type": f"'{JOB_TYPE}'", "payload": PAYLOAD} | columns
        names, expressions = ", ".join(values), ", ".join(values.values())
        await self.execute(
            f"INSERT INTO pqrun.jobs ({names}) SELECT {expressions} FROM generate_series(1, {count}) AS i"
        )

    async def rest(self) -> None:
        """Vacuum, analyse and checkpoint, so that no measurement pays for what was before it."""
        await self.execute("VACUUM (ANALYZE)")
        with contextlib.suppress(asyncpg.InsufficientPrivilegeError):  # on a user's server
            await self.execute("CHECKPOINT")
        await asyncio.sleep(SETTLE_SECONDS)

    async def wait_done(self) -> float:
        """Wait until nothing is left to do that is due; return the time in seconds of the epoch."""
        async with connected(self.dsn) as connection:
            await connection.execute("SET enable_seqscan = off")
            pending = await connection.prepare(PENDING)
            until, before = time.monotonic() + STALL_SECONDS, -1
            while True:
                began = time.time()
                self.looks += 1
                if not await pending.fetchval():
                    return began
                took = time.time() - began
                if time.monotonic() > until:
                    before, until = await self._progress(connection, before), time.monotonic() + STALL_SECONDS
                await asyncio.sleep(max(POLL_SECONDS, took / POLL_SHARE))

    async def _progress(self, connection: asyncpg.Connection, before: int) -> int:
        done = await connection.fetchval("SELECT count(*) FROM pqrun.jobs_finished")
        if done == before:
            raise RuntimeError(f"no job has ended for {STALL_SECONDS:g} s, {done} before that")
        return int(done)

    async def drain(self, jobs: int, *setups: Setup) -> Drain:
        """Let workers do what is there, ``jobs`` in number; each setup is a process."""
        before = self.server_cpu_seconds()
        async with at_work(self.dsn, setups) as workers:
            return await self.time_drain(jobs, workers, before)

    async def time_drain(self, jobs: int, workers: Sequence[WorkerProcess], server_before: float | None) -> Drain:
        """Time what these workers do, until nothing is left; ``server_before`` is `server_cpu_seconds` as it was before them."""
        await first_of(workers)
        ended = await self.wait_done()
        started = min(at for worker in workers if (at := worker.started()) is not None)
        spent = [worker.cpu_seconds for worker in workers]
        after = self.server_cpu_seconds()
        return Drain(
            jobs,
            ended - started,
            None if None in spent else sum(seconds or 0.0 for seconds in spent),
            None if after is None or server_before is None else after - server_before,
        )

    def server_cpu_seconds(self) -> float | None:
        """Processor time that the server has taken so far; None where that cannot be known."""
        return server_cpu_seconds(self._postmaster)


async def first_of(workers: Sequence[WorkerProcess]) -> None:
    """Wait for the first start of a handler in any of these."""
    waiting = [asyncio.create_task(worker.wait_started()) for worker in workers]
    try:
        await next(asyncio.as_completed(waiting))
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


class Ground:
    """The server of a run, and how much of everything to do."""

    def __init__(self, dsn: str, *, postmaster: int | None, repeat: int, quick: bool, console: Console) -> None:
        self.dsn = dsn
        """Its maintenance database."""
        self.repeat = repeat
        self.quick = quick
        self.console = console
        self._postmaster = postmaster

    def sized(self, full: int, quick: int) -> int:
        """A number for a full run, or for a quick one."""
        return quick if self.quick else full

    @asynccontextmanager
    async def database(self, *, migrated: bool = True) -> AsyncIterator[Database]:
        """Make a database, which is dropped at the end."""
        name = f"pqrun_bench_{secrets.token_hex(4)}"
        await self._admin(f'CREATE DATABASE "{name}"')
        try:
            dsn = urlunsplit(urlsplit(self.dsn)._replace(path=f"/{name}"))
            if migrated:
                await PgJobStore(dsn).migrate()
            yield Database(dsn, self._postmaster)
        finally:
            await self._admin(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    async def version(self) -> str:
        """PostgreSQL's version."""
        async with connected(self.dsn) as connection:
            return str(await connection.fetchval("SHOW server_version"))

    def tell(self, text: str) -> None:
        """Say what is going on."""
        self.console.print(text, markup=False)

    async def _admin(self, statement: str) -> None:
        async with connected(self.dsn) as connection:
            await connection.execute(statement)


@asynccontextmanager
async def ground(
    dsn: str | None = None, *, repeat: int = 3, quick: bool = False, console: Console | None = None
) -> AsyncIterator[Ground]:
    """Start a durable server in a private folder, which is removed at the end; or take the one behind ``dsn``."""
    shown = console or Console(highlight=False)
    if dsn is not None:
        yield Ground(dsn, postmaster=None, repeat=repeat, quick=quick, console=shown)
        return
    folder = Path(tempfile.mkdtemp(prefix="pqrun-benchmark-"))
    data = folder
    try:
        server = await start_server_async(folder, settings=SETTINGS)
        data = server.data_path
        try:
            yield Ground(server.dsn, postmaster=server.pid, repeat=repeat, quick=quick, console=shown)
        finally:
            await server.aclose()
    finally:
        # Started by root, the server runs as another user, whose data lies where that one can reach it.
        if folder not in data.parents and data != folder:
            shutil.rmtree(data.parent, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)


async def alternate(variants: Mapping[str, Callable[[], Awaitable[T]]], times: int) -> dict[str, list[T]]:
    """Measure each variant so often, in turn, every other round in reverse: what drifts hits all of them alike."""
    found: dict[str, list[T]] = {name: [] for name in variants}
    for number in range(times):
        for name in list(variants)[:: -1 if number % 2 else 1]:
            found[name].append(await variants[name]())
    return found


def ratio_of(values: Sequence[float], others: Sequence[float]) -> tuple[float, list[float]]:
    """The median of the ratios of each round, and all of them."""
    ratios = [value / other for value, other in zip(values, others, strict=True)]
    return statistics.median(ratios), ratios


def run_measurement(
    name: str,
    measure: Callable[[Ground], Awaitable[list[Measured]]],
    *,
    dsn: str | None,
    out: Path | None,
    quick: bool,
    repeat: int,
) -> None:
    """Run it on a ground of its own, print its rows, and write its report."""
    console = Console(highlight=False, width=160)
    times = 1 if quick else repeat

    async def run() -> Report:
        async with ground(dsn, repeat=times, quick=quick, console=console) as stood:
            began = time.monotonic()
            rows = await measure(stood)
            seconds = round(time.monotonic() - began, 1)
            return Report(
                name, _command(name, dsn, quick, repeat), seconds, versions(await stood.version()), rows, quick
            )

    with Interrupts() as interrupts:
        report = interrupts.run(run())
    print_rows(report.rows, console)
    path = out or RESULTS / f"{name}.json"
    write_report(report, path)
    console.print(f"{report.seconds:.0f} s; written to {path}")


def _command(name: str, dsn: str | None, quick: bool, repeat: int) -> str:
    """As it can be typed again; a DSN may hold a password."""
    words = ["python -m benchmarks", name, f"--repeat {repeat}"]
    words += ["--dsn …"] if dsn is not None else []
    words += ["--quick"] if quick else []
    return " ".join(words)
