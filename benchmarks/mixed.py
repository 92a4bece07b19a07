"""``python -m benchmarks mixed``: failing and slow jobs in several queues and priorities, beside as many plain ones.

And what a slow job holds back: the longest time from the end of a handler to its row being written, and from a claim to its start, over all
jobs of such a mix; and the same while every slot is taken by a slow job, when what was fetched ahead has to go back.
"""

import statistics
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from benchmarks.ground import (
    Database,
    DsnOption,
    Ground,
    Measured,
    OutOption,
    QuickOption,
    RepeatOption,
    Setup,
    alternate,
    at_least,
    at_most,
    at_work,
    connected,
    ratio_of,
    run_measurement,
)
from benchmarks.loads import SLOW_SECONDS
from benchmarks.no_op import PAYLOAD, Records

__all__ = ["Delays", "delays_of", "main", "measure"]

QUEUES = ("default", "mail", "reports")

PRIORITIES = 5

PLAIN = Setup(loop="uvloop", concurrency=1_000)

MIXED = PLAIN._replace(app="benchmarks.loads:mixed", queues=",".join(QUEUES))

RECORDED = MIXED._replace(app="benchmarks.loads:mixed_recorded", records=True)

STUCK = Setup(loop="uvloop", concurrency=5, app="benchmarks.loads:mixed_recorded", records=True)
"""So few slots that a hundred slow jobs among five hundred take all of them, again and again."""

COLUMNS = {
    "queue": f"(ARRAY[{', '.join(repr(queue) for queue in QUEUES)}])[1 + i % {len(QUEUES)}]",
    "priority": f"i % {PRIORITIES}",
    "max_attempts": "CASE WHEN i % 100 = 0 THEN 1 ELSE 5 END",
}
"""Those that fail do so for good."""

SETTLED_SECONDS = SLOW_SECONDS / 2
"""A settle that waited for a slow job would take longer."""

UNSTARTED_SECONDS = 1.25
"""What is fetched ahead goes back after a second without a start, looked for four times a second."""

STUCK_JOBS = 500

ENDED = (
    "SELECT id, extract(epoch FROM locked_at)::float8, extract(epoch FROM finished_at)::float8 FROM pqrun.jobs_finished"
)


class Delays(NamedTuple):
    """Seconds, of each job that ended with its first attempt; from claims only where the row tells when it was."""

    to_settled: list[float]
    to_start: list[float]


def delays_of(records: Records, rows: Sequence[tuple[int, float | None, float]]) -> Delays:
    """Put together what the worker noted and what the rows say: (id, claimed, finished), in seconds of the epoch."""
    noted = dict(zip(records.ids, zip(records.starts, records.ends, strict=True), strict=True))
    delays = Delays([], [])
    for job_id, claimed, finished in rows:
        start, end = noted[job_id]
        delays.to_settled.append(finished - end)
        if claimed is not None:
            delays.to_start.append(start - claimed)
    return delays


async def measure(ground: Ground) -> list[Measured]:
    """The rates, their ratio, and what was held back."""
    jobs = ground.sized(500_000, 3_000)

    async def drained(setup: Setup, columns: dict[str, str]) -> float:
        async with ground.database() as database:
            await database.fill(jobs, **columns)
            await database.rest()
            return (await database.drain(jobs, setup)).rate

    variants: dict[str, Callable[[], Awaitable[float]]] = {
        "plain": lambda: drained(PLAIN, {}),
        "mixed": lambda: drained(MIXED, COLUMNS),
    }
    found = await alternate(variants, ground.repeat)
    value, ratios = ratio_of(found["mixed"], found["plain"])
    what = "1 % failing, 1 % slow, 5 priorities, 3 queues; concurrency 1,000"
    reach = at_least(0.8, "at least 0.8 of plain at the same concurrency")
    return [
        Measured("mixed.plain", "plain jobs", statistics.median(found["plain"]), "jobs/s", samples=found["plain"]),
        Measured("mixed.mixed", what, statistics.median(found["mixed"]), "jobs/s", samples=found["mixed"]),
        Measured("mixed.mixed/plain", what, value, "ratio", reach, "plain jobs", ratios),
        *await _measure_delays(ground),
    ]


async def _measure_delays(ground: Ground) -> list[Measured]:
    async with ground.database() as database:
        await database.fill(ground.sized(200_000, 3_000), **COLUMNS)
        mix = await _delays(database, RECORDED)
    async with ground.database() as database:
        slow = f"jsonb_set({PAYLOAD}, '{{i}}', to_jsonb(CASE WHEN i > 100 AND i % 10 = 0 THEN 1 ELSE 2 END))"
        await database.fill(STUCK_JOBS if not ground.quick else 160, payload=slow)
        stuck = await _delays(database, STUCK)
    settled = at_most(SETTLED_SECONDS, f"never for as long as a slow job takes: {SETTLED_SECONDS:g} s")
    started = at_most(UNSTARTED_SECONDS, f"within the bound of what is fetched ahead: {UNSTARTED_SECONDS:g} s")
    return [
        Measured("mixed.settled", "longest time from a handler's end to its row", max(mix.to_settled), "s", settled),
        Measured("mixed.started", "longest time from a claim to its start", max(mix.to_start), "s", started),
        Measured(
            "mixed.stuck.settled", "the same with all slots slow: end to row", max(stuck.to_settled), "s", settled
        ),
        Measured(
            "mixed.stuck.started", "the same with all slots slow: claim to start", max(stuck.to_start), "s", started
        ),
    ]


async def _delays(database: Database, setup: Setup) -> Delays:
    await database.rest()
    async with at_work(database.dsn, [setup]) as (worker,):
        await worker.wait_started()
        await database.wait_done()
        await worker.stop()
        async with connected(database.dsn) as connection:
            rows = await connection.fetch(ENDED)
        return delays_of(worker.records(), [(row[0], row[1], row[2]) for row in rows])


def main(dsn: DsnOption = None, out: OutOption = None, quick: QuickOption = False, repeat: RepeatOption = 3) -> None:
    """Drain a mix of failing, slow and quick jobs, and as many plain ones; measure what slow jobs hold back."""
    run_measurement("mixed", measure, dsn=dsn, out=out, quick=quick, repeat=repeat)
