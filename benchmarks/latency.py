"""``python -m benchmarks latency``: from the call of ``defer`` in one process to the start of the handler in another, by one clock.

Idle: one job at a time, with a random pause between two, on a worker that waits; in turn with the wake of ``benchmarks.limits``, an INSERT
that notifies and the claim that it wakes. Under load: jobs come at a rate, whatever becomes of those before. At four fifths of the
rate at which a full queue is drained, producer, worker and server together may need more processors than there are; what waits for one
is part of the figure.
"""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.ground import (
    DEFAULT,
    FAST,
    Database,
    DsnOption,
    Ground,
    Measured,
    OutOption,
    QuickOption,
    RepeatOption,
    Setup,
    alternate,
    at_most,
    at_work,
    ratio_of,
    run_measurement,
)
from benchmarks.limits import limit
from benchmarks.no_op import Records
from benchmarks.produce import OpenLoop, Paced, Sent
from benchmarks.producing import producers

__all__ = ["main", "measure"]

PAUSES = (0.01, 0.06)
"""Seconds between two jobs of the idle worker."""

WARM_JOBS = 10
"""Not counted: the first ones are slower, and a worker starts once."""

SLOW_RATE = 300.0

BATCH_SECONDS = 0.01
"""Between two ``defer_many`` under full load: one producer process makes no such number of single defers."""

FULL_SHARE = 0.8

QUANTILES = 100


class Spread(NamedTuple):
    """Of one run, in milliseconds, in order."""

    took: list[float]

    def at(self, percent: int) -> float:
        """A percentile."""
        return statistics.quantiles(self.took, n=100, method="inclusive")[percent - 1]


async def measure(ground: Ground) -> list[Measured]:
    """Idle, fast and by default, beside the wake; then under load."""
    tries = ground.sized(300, 20)
    wakes: list[dict[str, float]] = []

    async def wake() -> Spread:
        wakes.append(await limit(ground, "wake", tries))
        return Spread([])

    found = await alternate(
        {
            "fast": lambda: _measure_idle(ground, FAST, tries),
            "wake": wake,
            "default": lambda: _measure_idle(ground, DEFAULT, tries),
        },
        ground.repeat,
    )
    rows = _idle_rows(found["fast"], found["default"], wakes)
    idle_p50 = statistics.median(run.at(50) for run in found["fast"])
    slow = await _measure_loaded(ground, OpenLoop(SLOW_RATE, ground.sized(10, 1)))
    ratio = slow.at(95) / idle_p50
    goal = at_most(3.0, "p95 at most 3 times the idle p50")
    rows += _points("latency.at_300", f"defer to start at {SLOW_RATE:.0f} jobs/s", [slow], (50, 95, 99))
    rows.append(
        Measured("latency.at_300.ratio", f"p95 at {SLOW_RATE:.0f} jobs/s", ratio, "ratio", goal, "the idle p50")
    )
    return [*rows, *await _measure_full(ground), *_distributions(found, slow)]


def _idle_rows(fast: list[Spread], default: list[Spread], limits: list[dict[str, float]]) -> list[Measured]:
    wakes, tails = [figures["p50"] for figures in limits], [figures["p99"] / figures["p50"] for figures in limits]
    p50s, default_p50s = [run.at(50) for run in fast], [run.at(50) for run in default]
    to_wake, each_wake = ratio_of(p50s, wakes)
    tail, each_tail = ratio_of([run.at(99) for run in fast], p50s)
    to_fast, each_fast = ratio_of(default_p50s, p50s)
    return [
        *_points("latency.idle", "defer to start, idle worker", fast, (50, 95, 99)),
        Measured("latency.wake", "one NOTIFY and one claim, p50", statistics.median(wakes), "ms", samples=wakes),
        Measured(
            "latency.wake.tail", "the same, p99", statistics.median(tails), "ratio", None, "its p50", samples=tails
        ),
        Measured(
            "latency.idle.to_wake",
            "idle p50",
            to_wake,
            "ratio",
            at_most(2.5, "at most 2.5 times"),
            "one NOTIFY and one claim",
            each_wake,
        ),
        Measured(
            "latency.idle.tail", "idle p99", tail, "ratio", at_most(2.0, "at most 2 times"), "the idle p50", each_tail
        ),
        *_points("latency.default", "defer to start, idle worker with the defaults", default, (50, 95, 99)),
        Measured(
            "latency.default.ratio",
            "idle p50 with the defaults",
            to_fast,
            "ratio",
            at_most(2.0, "at most 2 times"),
            "uvloop, concurrency 200",
            each_fast,
        ),
    ]


async def _measure_full(ground: Ground) -> list[Measured]:
    jobs = ground.sized(100_000, 2_000)
    async with ground.database() as database:
        await database.fill(jobs)
        await database.rest()
        drain = await database.drain(jobs, FAST)
    rate = FULL_SHARE * drain.rate
    ground.tell(f"{rate:,.0f} jobs/s, {FULL_SHARE:.0%} of the drain ...")
    full = await _measure_loaded(ground, OpenLoop(rate, ground.sized(5, 1), BATCH_SECONDS))
    what = f"defer to start at {rate:,.0f} jobs/s, {FULL_SHARE:.0%} of a drain"
    return _points("latency.at_full", what, [full], (50, 95, 99))


def _points(name: str, what: str, runs: Sequence[Spread], percents: Sequence[int]) -> list[Measured]:
    rows = []
    for percent in percents:
        each = [run.at(percent) for run in runs]
        rows.append(Measured(f"{name}.p{percent}", f"{what}, p{percent}", statistics.median(each), "ms", samples=each))
    return rows


def _distributions(found: dict[str, list[Spread]], slow: Spread) -> list[Measured]:
    """All times of each kind as percentiles, for the plot."""
    kinds = {
        "idle, concurrency 200 on uvloop": [took for run in found["fast"] for took in run.took],
        "idle, default settings": [took for run in found["default"] for took in run.took],
        f"{SLOW_RATE:.0f} jobs/s": slow.took,
    }
    return [
        Measured(
            f"latency.distribution.{number}",
            label,
            len(took),
            "starts",
            samples=[round(ms, 3) for ms in statistics.quantiles(took, n=QUANTILES, method="inclusive")],
        )
        for number, (label, took) in enumerate(kinds.items())
    ]


async def _measure_idle(ground: Ground, setup: Setup, tries: int) -> Spread:
    ground.tell(f"{tries} single jobs on an idle worker ({setup.loop}, concurrency {setup.concurrency or 1}) ...")
    async with ground.database() as database:
        return await _deferred(database, setup, Paced(tries + WARM_JOBS, *PAUSES), skip=WARM_JOBS)


async def _measure_loaded(ground: Ground, order: OpenLoop) -> Spread:
    async with ground.database() as database:
        await database.rest()
        return await _deferred(database, FAST, order)


async def _deferred(database: Database, setup: Setup, order: Paced | OpenLoop, *, skip: int = 0) -> Spread:
    recording = setup._replace(app="benchmarks.no_op:recorded", records=True)
    async with at_work(database.dsn, [recording]) as (worker,), producers(database.dsn) as (producer,):
        await worker.wait_started()
        sent = await producer.send(order)
        await database.wait_done()
        await worker.stop()
        return Spread(_times_to_start(sent, worker.records(), skip=skip))


def _times_to_start(sent: Sent, records: Records, *, skip: int) -> list[float]:
    """Milliseconds of each, in order of size; raises RuntimeError where one never started."""
    starts: dict[int, float] = {}
    for job_id, start in zip(records.ids, records.starts, strict=True):
        starts.setdefault(job_id, start)
    missing = [job_id for job_id in sent.ids if job_id not in starts]
    if missing:
        raise RuntimeError(f"{len(missing)} jobs never started, job {missing[0]} among them")
    return sorted(1000 * (starts[job_id] - at) for job_id, at in list(zip(sent.ids, sent.times, strict=True))[skip:])


def main(dsn: DsnOption = None, out: OutOption = None, quick: QuickOption = False, repeat: RepeatOption = 3) -> None:
    """Time defers until their handlers start, on an idle worker and under load."""
    run_measurement("latency", measure, dsn=dsn, out=out, quick=quick, repeat=repeat)
