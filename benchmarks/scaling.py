"""``python -m benchmarks scaling``: 1, 2, 4 and 8 worker processes on one server, then 8 with 8 producer processes beside them.

Handlers note each start, so that nothing that is said here rests on the queue's own word: who started what, when, and how often. In the
series the workers stand ready and all jobs come in one transaction, so that all of them begin at once. Fairness is the share of the
worker with the fewest starts beside that of the one with the most. What the server's processes wait for is sampled meanwhile.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.ground import (
    FAST,
    DsnOption,
    Ground,
    Measured,
    OutOption,
    QuickOption,
    Setup,
    at_most,
    at_work,
    run_measurement,
)
from benchmarks.no_op import Records
from benchmarks.processes import WorkerProcess
from benchmarks.produce import Defers
from benchmarks.producing import producers
from benchmarks.waits import Waits, sampled_waits

__all__ = ["Work", "main", "measure", "summarise"]

WORKERS = (1, 2, 4, 8)

PRODUCERS = 8

COROUTINES = 20
"""Of each producer."""

RECORDING = FAST._replace(app="benchmarks.no_op:recorded", records=True)

ANNOUNCE = "SELECT pg_notify('pqrun', 'ready:0:default')"
"""Plain SQL tells nobody by itself."""


class Work(NamedTuple):
    """What several workers did; times in seconds."""

    jobs: int
    rate: float
    """Starts per second between the first and the last."""
    fairness: float
    """1: all have started as many."""
    repeated: int
    """Starts of a job that had started before."""
    missing: int
    """Jobs that never started."""


def summarise(records: Sequence[Records], jobs: int) -> Work:
    """Sum up what workers have noted; ``jobs`` is how many there were."""
    starts = Counter(job_id for one in records for job_id in one.ids)
    times = [
        at for one in records for at in (min(one.starts, default=None), max(one.starts, default=None)) if at is not None
    ]
    counts = [len(one.ids) for one in records]
    span = max(max(times) - min(times), 1e-9) if times else float("inf")
    return Work(
        jobs,
        sum(counts) / span,
        min(counts) / max(*counts, 1),
        sum(counts) - len(starts),
        jobs - len(starts),
    )


async def measure(ground: Ground) -> list[Measured]:
    """The series, and the crowd."""
    rows: list[Measured] = []
    for count in WORKERS:
        work, waits = await _drain(ground, count)
        rows += _rows(f"scaling.{count}", f"{count} worker{'s' * (count > 1)}", work, waits)
    return [*rows, *await _measure_crowd(ground)]


async def _drain(ground: Ground, count: int) -> tuple[Work, Waits]:
    jobs = ground.sized(100_000, 1_000)
    ground.tell(f"{jobs:,} jobs for {count} workers ...")
    setups: list[Setup] = [RECORDING] * count
    async with ground.database() as database, at_work(database.dsn, setups) as workers:
        async with sampled_waits(database.dsn) as waits:
            await database.fill(jobs)
            await database.execute(ANNOUNCE)
            await database.wait_done()
        return summarise(await _stopped(workers), jobs), waits


async def _measure_crowd(ground: Ground) -> list[Measured]:
    seconds = ground.sized(10, 1)
    count = ground.sized(PRODUCERS, 2)
    ground.tell(f"{WORKERS[-1]} workers and {count} producers for {seconds} s ...")
    async with (
        ground.database() as database,
        at_work(database.dsn, [RECORDING] * WORKERS[-1]) as workers,
        producers(database.dsn, count) as members,
    ):
        await database.wait_done()
        async with sampled_waits(database.dsn) as waits:
            counts = await asyncio.gather(*(member.count(Defers(COROUTINES, seconds)) for member in members))
            await database.wait_done()
        jobs = sum(one.jobs for one in counts) + len(members)  # each began with one
        work = summarise(await _stopped(workers), jobs)
    what = f"{WORKERS[-1]} workers beside {count} producers"
    deferred = sum(one.rate for one in counts)
    return [
        Measured("scaling.crowd.deferred", f"{what}: deferred", deferred, "jobs/s"),
        *_rows("scaling.crowd", what, work, waits),
    ]


async def _stopped(workers: Sequence[WorkerProcess]) -> list[Records]:
    await asyncio.gather(*(worker.stop() for worker in workers))
    return [worker.records() for worker in workers]


def _rows(name: str, what: str, work: Work, waits: Waits) -> list[Measured]:
    rows = [
        Measured(name, f"{what}: started", work.rate, "jobs/s"),
        Measured(
            f"{name}.repeated",
            f"{what}: starts of a job that had started before",
            work.repeated,
            "starts",
            at_most(0, "none"),
        ),
        Measured(f"{name}.missing", f"{what}: jobs that never started", work.missing, "jobs", at_most(0, "none")),
        Measured(
            f"{name}.locks",
            f"{what}: share of active backends that wait for a lock ({waits.most()})",
            waits.share(waits.of("Lock")),
            "%",
        ),
    ]
    if not name.endswith(".1"):
        rows.insert(
            1, Measured(f"{name}.fairness", f"{what}: fewest starts", work.fairness, "ratio", None, "most starts")
        )
    return rows


def main(dsn: DsnOption = None, out: OutOption = None, quick: QuickOption = False) -> None:
    """Measure several worker processes on one server, alone and beside producers."""
    run_measurement("scaling", measure, dsn=dsn, out=out, quick=quick, repeat=1)
