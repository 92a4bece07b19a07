"""``python -m benchmarks history``: a drain beside 5 million finished and 1 million scheduled jobs, and the same in an empty table."""

import statistics
from collections.abc import Awaitable, Callable

from benchmarks.ground import (
    FAST,
    Database,
    DsnOption,
    Ground,
    Measured,
    OutOption,
    QuickOption,
    RepeatOption,
    alternate,
    at_least,
    ratio_of,
    run_measurement,
)
from benchmarks.no_op import PAYLOAD

__all__ = ["main", "measure"]

FINISHED, SCHEDULED, JOBS = 5_000_000, 1_000_000, 50_000

FINISHED_ROWS = f"""
INSERT INTO pqrun.jobs_finished (job_type, payload, status, attempts, claim_id, worker, locked_by, created_at, run_after, locked_at,
                                 finished_at, updated_at, duration_ms, result)
SELECT 'no_op', {PAYLOAD}, 'DONE', 1, nextval('pqrun.claims_id_seq'), 0, 'gone', t.at, t.at, t.at, t.at, t.at, 1, '{{"ok": true}}'
  FROM generate_series(1, COUNT) AS i
 CROSS JOIN LATERAL (SELECT now() - interval '6 days' + i * interval '100 milliseconds' AS at) t
"""
"""In the order in which they ended, and younger than the retention."""

SCHEDULED_ROWS = f"""
INSERT INTO pqrun.jobs_active (job_type, payload, status, priority, run_after)
SELECT 'no_op', {PAYLOAD}, 'SCHEDULED', 10, now() + interval '30 days' + i * interval '1 second'
  FROM generate_series(1, COUNT) AS i
"""
"""Of a higher priority than what is drained."""


async def measure(ground: Ground) -> list[Measured]:
    """Rates with and without history, in turn, and their ratio."""
    finished, scheduled = ground.sized(FINISHED, 20_000), ground.sized(SCHEDULED, 5_000)
    jobs = ground.sized(JOBS, 2_000)
    async with ground.database() as old:
        ground.tell(f"{finished:,} finished and {scheduled:,} scheduled jobs ...")
        await old.execute(
            FINISHED_ROWS.replace("COUNT", str(finished)), SCHEDULED_ROWS.replace("COUNT", str(scheduled))
        )
        await old.rest()

        async def empty() -> float:
            async with ground.database() as fresh:
                return await _rate(fresh, jobs)

        variants: dict[str, Callable[[], Awaitable[float]]] = {"empty": empty, "full": lambda: _rate(old, jobs)}
        found = await alternate(variants, ground.repeat)
    value, ratios = ratio_of(found["full"], found["empty"])
    what = f"drain of {jobs:,} beside {finished:,} finished and {scheduled:,} scheduled jobs"
    return [
        Measured(
            "history.empty",
            "the same in an empty table",
            statistics.median(found["empty"]),
            "jobs/s",
            samples=found["empty"],
        ),
        Measured("history.full", what, statistics.median(found["full"]), "jobs/s", samples=found["full"]),
        Measured(
            "history.full/empty",
            what,
            value,
            "ratio",
            at_least(0.9, "at least 0.9 of an empty table"),
            "an empty table",
            ratios,
        ),
    ]


async def _rate(database: Database, jobs: int) -> float:
    await database.fill(jobs)
    await database.rest()
    return (await database.drain(jobs, FAST)).rate


def main(dsn: DsnOption = None, out: OutOption = None, quick: QuickOption = False, repeat: RepeatOption = 3) -> None:
    """Drain jobs beside millions that are finished or scheduled, and in an empty table."""
    run_measurement("history", measure, dsn=dsn, out=out, quick=quick, repeat=repeat)
