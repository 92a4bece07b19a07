"""``python -m benchmarks server``: what the server does for a thousand no-op jobs, and how large ``jobs_active`` becomes over a million.

WAL, commits and dead tuples of the enqueue and of claims and settles are told apart by a pause between them, and no checkpoint may fall
into either: a page is written to the WAL as a whole when it is first changed after one.
"""

import asyncio
import statistics
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import NamedTuple

import asyncpg

from benchmarks.ground import (
    FAST,
    Database,
    DsnOption,
    Ground,
    Measured,
    OutOption,
    QuickOption,
    RepeatOption,
    at_most,
    at_work,
    connected,
    run_measurement,
)
from benchmarks.produce import Bulk
from benchmarks.producing import producers
from benchmarks.results import Reach
from benchmarks.streaming import stream

__all__ = ["Activity", "Size", "growth_of", "main", "measure"]

BACKLOG = 50_000
"""Jobs that wait, while a million goes through."""

FLUSH_SECONDS = 1.5
"""Until an idle backend has told the statistics what it did."""

ACTIVITY = """
SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8 AS wal,
       (SELECT xact_commit FROM pg_stat_database WHERE datname = current_database())::float8 AS commits,
       (SELECT sum(n_tup_upd + n_tup_del) FROM pg_stat_user_tables WHERE schemaname = 'pqrun')::float8 AS dead,
       (SELECT num_timed + num_requested FROM pg_stat_checkpointer)::float8 AS checkpoints
"""

SIZES = """
SELECT pg_relation_size('pqrun.jobs_active')::float8 AS heap, pg_indexes_size('pqrun.jobs_active')::float8 AS indexes
"""

GROWTH = 1.1
"""What counts as none: the two halves of a run are never quite alike."""


class Activity(NamedTuple):
    """Counters of a server, or their differences."""

    wal: float
    """Bytes."""
    commits: float
    dead: float
    """Tuples: updated and deleted ones."""
    checkpoints: float

    def since(self, before: "Activity", *, own_commits: int = 0) -> "Activity":
        """What came since, but for commits of the measurement itself."""
        found = Activity(*(now - then for now, then in zip(self, before, strict=True)))
        return found._replace(commits=found.commits - own_commits)

    def per_thousand(self, jobs: int) -> "Activity":
        """For a thousand jobs."""
        return Activity(*(value * 1_000 / jobs for value in self))


async def measure(ground: Ground) -> list[Measured]:
    """What a thousand jobs cost the server, and the size of the table over a million."""
    jobs = ground.sized(100_000, 5_000)
    enqueues, drains = [], []
    for _ in range(ground.repeat):
        async with ground.database() as database:
            enqueue, drain = await _cost(database, jobs)
            enqueues.append(enqueue.per_thousand(jobs))
            drains.append(drain.per_thousand(jobs))
    return [*_rows(enqueues, drains), *await _measure_growth(ground)]


async def _cost(database: Database, jobs: int) -> tuple[Activity, Activity]:
    async with producers(database.dsn) as (producer,), connected(database.dsn) as connection:
        await database.rest()
        before = await _activity(connection)
        await producer.count(Bulk(jobs - 1))  # it has written one to be ready
        await asyncio.sleep(FLUSH_SECONDS)
        between = await _activity(connection)
    await asyncio.sleep(FLUSH_SECONDS)
    async with connected(database.dsn) as connection:
        resumed, looked = await _activity(connection), database.looks
        await database.drain(jobs, FAST)
        await asyncio.sleep(FLUSH_SECONDS)
        after = await _activity(connection)
    return between.since(before), after.since(resumed, own_commits=database.looks - looked)


async def _activity(connection: asyncpg.Connection) -> Activity:
    row = await connection.fetchrow(ACTIVITY)
    assert row is not None
    return Activity(*row)


def _rows(enqueues: list[Activity], drains: list[Activity]) -> list[Measured]:
    def row(name: str, what: str, unit: str, samples: list[float], reach: Reach | None = None) -> Measured:
        what = f"{what} per 1,000 jobs"
        return Measured(f"server.{name}", what, statistics.median(samples), unit, reach, samples=samples)

    return [
        row("wal", "WAL of claim and settle", "MB", [a.wal / 1e6 for a in drains], at_most(1.2, "at most 1.2 MB")),
        row(
            "commits", "commits of claim and settle", "commits", [a.commits for a in drains], at_most(20, "at most 20")
        ),
        row(
            "dead",
            "dead tuples of claim and settle",
            "tuples",
            [a.dead for a in drains],
            at_most(2_100, "at most 2,100"),
        ),
        row(
            "checkpoints",
            "checkpoints in both",
            "checkpoints",
            [a.checkpoints for a in (*enqueues, *drains)],
            at_most(0, "none"),
        ),
        row("enqueue.wal", "WAL of the enqueue", "MB", [a.wal / 1e6 for a in enqueues]),
        row("enqueue.commits", "commits of the enqueue", "commits", [a.commits for a in enqueues]),
    ]


class Size(NamedTuple):
    """Of jobs_active, in bytes, when so many jobs had been claimed."""

    jobs: int
    heap: float
    indexes: float


def growth_of(sizes: Sequence[Size]) -> float:
    """The largest size, heap and indexes, of the second half over that of the first."""
    total = sizes[-1].jobs
    first = [s.heap + s.indexes for s in sizes if s.jobs <= total / 2]
    second = [s.heap + s.indexes for s in sizes if s.jobs > total / 2]
    return max(second) / max(first)


async def _measure_growth(ground: Ground) -> list[Measured]:
    jobs, backlog = ground.sized(1_000_000, 8_000), ground.sized(BACKLOG, 2_000)
    async with ground.database() as database:
        sizes = await _stream(database, jobs, backlog)
    heaps, indexes = [s.heap / 1e6 for s in sizes], [s.indexes / 1e6 for s in sizes]
    reach = at_most(GROWTH, "no growth from the first half to the second")
    return [
        Measured(
            "server.growth", f"jobs_active over {jobs:,} jobs", growth_of(sizes), "ratio", reach, "the first half"
        ),
        Measured("server.heap", "heap of jobs_active: largest, and over time", max(heaps), "MB", samples=heaps),
        Measured(
            "server.indexes", "indexes of jobs_active: largest, and over time", max(indexes), "MB", samples=indexes
        ),
    ]


async def _stream(database: Database, jobs: int, backlog: int) -> list[Size]:
    """Keep a backlog while so many jobs go through; return the sizes all the while."""
    await database.fill(backlog)
    await database.rest()
    sizes: list[Size] = []
    async with AsyncExitStack() as stack:
        connection = await stack.enter_async_context(connected(database.dsn))
        (producer,) = await stack.enter_async_context(producers(database.dsn))
        await stack.enter_async_context(at_work(database.dsn, [FAST]))
        async for done in stream(connection, producer, waiting=backlog, claims=jobs):
            row = await connection.fetchrow(SIZES)
            assert row is not None
            sizes.append(Size(done, row["heap"], row["indexes"]))
    return sizes


def main(dsn: DsnOption = None, out: OutOption = None, quick: QuickOption = False, repeat: RepeatOption = 3) -> None:
    """Measure WAL, commits and dead tuples per thousand jobs, and the growth of the table over a million."""
    run_measurement("server", measure, dsn=dsn, out=out, quick=quick, repeat=repeat)
