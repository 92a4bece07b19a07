"""Exactly once in the database: the worker is killed at every statement of its handler in turn, and effects are counted.

The table that it makes is printed with ``pytest -s``.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

import asyncpg
import pytest

from pqrun import App, Status, Task
from tests.cli.running import environment
from tests.faults.till import TABLES, make_till
from tests.faults.town import ROOT
from tests.faults.wire import Point, When, Wire, wired
from tests.support.waiting import wait_until

VICTIMS_AT_ONCE = 4
HEIRS = 10
"""A job that lost its worker runs apart from all others, for 2 s or so: several workers see to several of them."""


class Row(NamedTuple):
    """What became of the job of one victim."""

    point: Point
    statement: str
    starts: int
    effects: int
    follow_ups: int
    """Rows of follow-up jobs."""
    followed: int
    """What those have done."""


class Nursery:
    """Makes worker processes that are there to be killed; see tests/faults/till.py."""

    def __init__(self, process: asyncio.subprocess.Process, dsn: str) -> None:
        self._process = process
        self._dsn = dsn
        self._lock = asyncio.Lock()

    async def start(self, wire: Wire, queue: str) -> int:
        """Start a worker that serves this queue, and book through this wire; return its process id."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        async with self._lock:
            self._process.stdin.write(f"{self._dsn}\t{wire.dsn}\t{queue}\n".encode())
            pid = int(await self._process.stdout.readline())
        wire.kill = lambda: os.kill(pid, signal.SIGKILL)
        return pid


@asynccontextmanager
async def nursery(dsn: str) -> AsyncIterator[Nursery]:
    """Run one, and let no worker of it survive."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.faults.till"),
        cwd=ROOT,
        env=environment(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,  # they tell of the jobs of all others, which none of them serves
    )
    try:
        yield Nursery(process, dsn)
    finally:
        await process.communicate(b"")  # the end of its input ends it


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def statements_of(task: "Task[..., Any, dict[str, int], None]", dsn: str, workers: Nursery) -> list[str]:
    """Let a handler run undisturbed, and return the statements of its connection."""
    job = await task.options(queue="whole").defer()
    async with wired(dsn, None) as wire:
        pid = await workers.start(wire, "whole")
        await job.result(timeout=60)
        wire.kill()
        await wait_until(lambda: is_gone(pid))
    return wire.statements


async def kill_at(
    point: Point,
    task: "Task[..., Any, dict[str, int], None]",
    dsn: str,
    workers: Nursery,
    gate: asyncio.Semaphore,
) -> tuple[Point, int]:
    """Defer a job for a worker of its own, and kill that at this point; return the job's id."""
    queue = f"{point.when} {point.number}"
    async with gate, wired(dsn, point) as wire, asyncio.timeout(60):
        job = await task.options(queue=queue).defer()
        pid = await workers.start(wire, queue)
        await wire.killed.wait()
        await wait_until(lambda: is_gone(pid))
    return point, job.id


async def finish(jobs: App[None], connection: asyncpg.Connection) -> None:
    """Let other workers finish everything."""
    queues = [row["queue"] for row in await connection.fetch("SELECT DISTINCT queue FROM pqrun.jobs")] + ["follow"]
    async with AsyncExitStack() as stack:
        for number in range(HEIRS):
            heir = jobs.worker(queues=queues, worker_id=f"heir {number}", enable_reaper=number == 0, environ={})
            await stack.enter_async_context(heir.lifespan())
        unfinished = "SELECT count(*) FROM pqrun.jobs WHERE status NOT IN ('DONE', 'FAILED')"
        await wait_until(lambda: _is_none(connection, unfinished), seconds=60)


async def _is_none(connection: asyncpg.Connection, question: str) -> bool:
    return not await connection.fetchval(question)


async def count(connection: asyncpg.Connection, point: Point, job_id: int, statement: str) -> Row:
    row = await connection.fetchrow(
        """SELECT (SELECT attempts FROM pqrun.jobs WHERE id = $1), (SELECT count(*) FROM effects WHERE job_id = $1),
                  (SELECT count(*) FROM pqrun.jobs WHERE job_type = 'follow' AND payload->>'of' = $1::text),
                  (SELECT count(*) FROM follow_ups WHERE job_id = $1)""",
        job_id,
    )
    assert row is not None
    return Row(point, statement, *row.values())


async def killed_at_each(
    kind: str, points: Sequence[Point] | None, dsn: str, connection: asyncpg.Connection
) -> list[Row]:
    """Kill a worker at each of these points (None: at all), let others finish its job, and count."""
    await connection.execute(TABLES)
    jobs, tasks = make_till(dsn, dsn)
    async with jobs, nursery(dsn) as workers:
        task = tasks[kind]
        statements = await statements_of(task, dsn, workers)
        if points is None:
            whens: tuple[When, ...] = ("before", "after")
            points = [Point(number, when) for number in range(1, len(statements) + 1) for when in whens]
        else:
            points = [Point(number % (len(statements) + 1), when) for number, when in points]
        gate = asyncio.Semaphore(VICTIMS_AT_ONCE)
        killed = await asyncio.gather(*(kill_at(point, task, dsn, workers, gate) for point in points))
        await finish(jobs, connection)
    ends = await connection.fetch("SELECT DISTINCT status FROM pqrun.jobs")
    assert [row["status"] for row in ends] == [Status.DONE]
    return [await count(connection, point, job_id, statements[point.number - 1]) for point, job_id in killed]


def show(kind: str, rows: Sequence[Row]) -> None:
    """Print the table."""
    print(f"\n{kind}\n{'killed':<10} {'statement':<66} {'starts':>6} {'effects':>7} {'follow-ups':>10} {'followed':>8}")  # noqa: T201
    for point, statement, *counts in rows:
        starts, effects, follow_ups, followed = counts
        print(  # noqa: T201
            f"{point.when:<6} {point.number:>3} {statement:<66} {starts:>6} {effects:>7} {follow_ups:>10} {followed:>8}"
        )


@pytest.mark.parametrize("kind", ["asyncpg", "SQLAlchemy AsyncSession", "psycopg Connection"])
async def test_wherever_the_worker_is_killed_the_effects_happen_exactly_once(
    kind: str, dsn: str, connection: asyncpg.Connection
) -> None:
    rows = await killed_at_each(kind, None, dsn, connection)
    show(kind, rows)
    assert {(row.effects, row.follow_ups, row.followed) for row in rows} == {(1, 1, 1)}
    commit = next(row.point.number for row in rows if row.statement == "COMMIT")
    is_committed = [row.point.number > commit or row.point == (commit, "after") for row in rows]
    assert any(is_committed)
    assert [row.starts for row in rows] == [1 if committed else 2 for committed in is_committed]


async def test_without_complete_a_worker_killed_after_its_commit_does_everything_again(
    dsn: str, connection: asyncpg.Connection
) -> None:
    """The control: what the test above counts is what ``ctx.complete`` is for."""
    (row,) = await killed_at_each("asyncpg, not completing", [Point(-1, "after")], dsn, connection)
    assert row.statement == "COMMIT"
    assert (row.starts, row.effects, row.follow_ups, row.followed) == (2, 2, 2, 2)
