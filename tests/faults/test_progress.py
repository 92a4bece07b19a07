"""Reports when things go wrong: killed workers, workers that were taken for dead, and a database that is away."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from pqrun.job.progress import Progress
from pqrun.job.state import Status
from pqrun.run import events
from pqrun.run.context import JobContext
from pqrun.store import PgJobStore
from pqrun.testing import lose_worker
from tests.cli.running import environment
from tests.faults.reporting import render
from tests.faults.serving import serving
from tests.faults.town import ROOT
from tests.faults.wire import Point, When, Wire
from tests.run.working import stored, wait_finished, working
from tests.support.waiting import DEADLINE_SECONDS, wait_until

Context = JobContext[Any]

REPORT = "WITH input AS MATERIALIZED ( SELECT * FROM unnest("
SETTLE = "WITH input AS MATERIALIZED ( SELECT u.* FROM unnest("
"""Of jobs that are DONE (settle_done.sql)."""


class Line(Wire):
    """One connection of the victim's: cut, and the victim killed, at the first statement that begins so."""

    def __init__(self, dsn: str, prefix: str, when: When) -> None:
        self._prefix, self._when = prefix, when
        super().__init__(dsn, None)

    @property
    def _point(self) -> Point | None:
        numbers = (n for n, statement in enumerate(self.statements, 1) if statement.startswith(self._prefix))
        number = next(numbers, None)
        return None if number is None else Point(number, self._when)

    @_point.setter
    def _point(self, point: Point | None) -> None:
        """It is found as the statements come."""


@asynccontextmanager
async def victim(dsn: str, prefix: str, when: When) -> AsyncIterator[asyncio.subprocess.Process]:
    """A worker process that is killed there."""
    lines: list[Line] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = Line(dsn, prefix, when)
        line.kill = lambda: process.send_signal(signal.SIGKILL)
        lines.append(line)
        await line.serve(reader, writer)

    listener = await asyncio.start_server(accept, "127.0.0.1", 0)
    way = Line(dsn, prefix, when)
    way.port = listener.sockets[0].getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.faults.reporting", way.dsn), cwd=ROOT, env=environment()
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        listener.close()


async def progress_of(store: PgJobStore, job_id: int) -> tuple[float, str | None, int] | None:
    found: Progress | None = await store.progress(job_id)
    return None if found is None else (found.value, found.message, found.attempt)


FIRST = (1.0, "all, by attempt 1", 1)


@pytest.mark.parametrize(
    ("prefix", "when", "left"),
    [(REPORT, "before", None), (REPORT, "after", FIRST), (SETTLE, "before", FIRST)],
    ids=["before the report", "after the report", "before the settle"],
)
async def test_wherever_a_worker_is_killed_around_its_last_report_the_job_runs_again_and_reports_anew(
    dsn: str, store: PgJobStore, prefix: str, when: When, left: tuple[float, str, int] | None
) -> None:
    job_id = await store.enqueue("render", {})
    async with victim(dsn, prefix, when) as process:
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert await process.wait() == -signal.SIGKILL
        assert (await stored(store, job_id)).status is Status.RUNNING
        assert await progress_of(store, job_id) == left
        async with working(PgJobStore(dsn), {"render": render}):
            job = await wait_finished(store, job_id)
    assert (job.status, job.attempts, job.lost) == (Status.DONE, 2, 1)
    assert await progress_of(store, job_id) == (1.0, "all, by attempt 2", 2)


async def test_killed_after_its_settle_nothing_is_repeated_and_the_report_stands(dsn: str, store: PgJobStore) -> None:
    job_id = await store.enqueue("render", {})
    async with victim(dsn, SETTLE, "after") as process:
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert await process.wait() == -signal.SIGKILL
    job = await wait_finished(store, job_id)
    assert (job.status, job.attempts) == (Status.DONE, 1)
    assert await progress_of(store, job_id) == FIRST


async def test_a_worker_that_comes_back_from_the_dead_reports_nothing_about_a_job_that_runs_elsewhere(
    dsn: str, store: PgJobStore, connection: asyncpg.Connection
) -> None:
    """Two real claims at once: the first worker's handler ignores being stopped and reports all the time."""
    both = asyncio.Event()
    reports = 0

    async def stale(ctx: Context) -> None:
        nonlocal reports
        await ctx.progress(0.1, "stale")
        while not both.is_set():
            with contextlib.suppress(asyncio.CancelledError):  # it has ears for nothing
                await asyncio.sleep(0.01)
            await ctx.progress(0.9, "stale")
            reports += 1

    fresh_started = asyncio.Event()

    async def fresh(ctx: Context) -> None:
        await ctx.progress(0.2, "fresh")
        fresh_started.set()
        await both.wait()

    job_id = await store.enqueue("t", {})
    async with working(PgJobStore(dsn), {"t": stale}, worker_id="stale") as first:
        await wait_until(lambda: _says(store, job_id, "stale"))
        async with lose_worker(first.worker), working(PgJobStore(dsn), {"t": fresh}, worker_id="fresh"):
            async with asyncio.timeout(DEADLINE_SECONDS):
                await fresh_started.wait()
            await wait_until(lambda: _says(store, job_id, "fresh"))
            noted = reports
            await wait_until(lambda: reports > noted + 200)  # two seconds and more: the duty has tried twice
            assert await progress_of(store, job_id) == (0.2, "fresh", 2)
            both.set()
            job = await wait_finished(store, job_id)
        await first.heard.wait_for(events.ClaimLost)
    assert (job.status, job.attempts, job.locked_by) == (Status.DONE, 2, "fresh")
    assert await progress_of(store, job_id) == (0.2, "fresh", 2)
    assert await connection.fetchval("SELECT count(*) FROM pqrun.progress") == 1


async def _says(store: PgJobStore, job_id: int, message: str) -> bool:
    progress = await store.progress(job_id)
    return progress is not None and progress.message == message


async def test_while_the_database_is_away_reporting_costs_nothing_and_the_outcome_is_not_lost() -> None:
    started, is_away, is_back = asyncio.Event(), asyncio.Event(), asyncio.Event()
    counted = 0

    async def work(ctx: Context) -> None:
        nonlocal counted
        await ctx.progress(0.1)
        started.set()
        await is_away.wait()
        for n in range(1_000):
            await ctx.progress(0.2 + n / 2_000)
            counted += 1
        if ctx.job.payload["stays"]:
            await is_back.wait()
            await ctx.progress(0.95, "back")

    async with serving() as server, PgJobStore(server.dsn) as store:
        async with working(PgJobStore(server.dsn), {"t": work}, concurrency=2) as crew:
            leaving, staying = [await store.enqueue("t", {"stays": stays}) for stays in (False, True)]
            await started.wait()
            await server.end(signal.SIGINT)
            is_away.set()
            await wait_until(lambda: counted == 2_000)
            await wait_until(lambda: [e for e in crew.heard.of(events.LoopFailed) if e.duty == "settle"])
            await server.start()
            first = await wait_finished(store, leaving)
            await wait_until(lambda: _has_at_least(store, staying, 0.6))  # what was noted meanwhile
            is_back.set()
            second = await wait_finished(store, staying)
        assert await progress_of(store, staying) == (0.95, "back", 1)
    assert [(job.status, job.attempts) for job in (first, second)] == [(Status.DONE, 1)] * 2


async def _has_at_least(store: PgJobStore, job_id: int, value: float) -> bool:
    progress = await store.progress(job_id)
    return progress is not None and progress.value >= value
