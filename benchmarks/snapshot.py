"""``python -m benchmarks snapshot``: half a million jobs go through while a REPEATABLE READ snapshot is held open.

Nothing that dies can be vacuumed meanwhile: a claim or settle that reads dead rows becomes slower with each job. The rate of the last
tenth is compared with that of the first, by the times at which the rows were finished.
"""

import asyncio
import itertools
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

from benchmarks.chaos.child import end_with_parent
from benchmarks.ground import (
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
    at_least,
    at_work,
    connected,
    run_measurement,
)
from benchmarks.no_op import Recorder, plain
from benchmarks.processes import start_process
from benchmarks.producing import producers
from benchmarks.streaming import claimed, stream

__all__ = ["main", "measure", "window_rates"]

JOBS = 500_000

WINDOWS = 10

INSERTS_PER_SECOND = 2_000

INSERT_SECONDS = 0.01
"""Between two inserts of the other process, each of as many single defers as the rate asks for."""

BACKLOG = 50_000
"""Jobs that wait, where they come in a stream."""

LOOK_SECONDS = 0.1


class Variant(NamedTuple):
    """What goes through, and what happens meanwhile."""

    what: str
    setup: Setup = FAST
    max_attempts: int = 5
    has_inserts: bool = False
    is_streamed: bool = False
    """Jobs come as others go; else all are there from the start."""


VARIANTS = {
    "plain": Variant("a snapshot held open"),
    "inserts": Variant("and another process inserting 2,000/s", has_inserts=True),
    # Retries go to the end of the line: only with a stream do they come among the rest.
    "retries": Variant(
        "and 5 % failing once, retried", FAST._replace(app="benchmarks.loads:retrying"), is_streamed=True
    ),
    # What has one attempt is claimed into free slots only, so never more at once than there are slots.
    "batches": Variant("and batches of 20 at most", FAST._replace(concurrency=20), max_attempts=1),
}

FINISHED = """
SELECT extract(epoch FROM finished_at)::float8
  FROM (SELECT finished_at, row_number() OVER (ORDER BY finished_at) AS number FROM pqrun.jobs_finished) f
 WHERE (number - 1) % $1 = 0 AND number <= $2 + 1
 ORDER BY finished_at
"""
"""When every so many had finished, from the first on."""

COUNTED = "SELECT count(*) FROM pqrun.jobs_finished"

BATCHES = "SELECT count(*)::float8 / count(DISTINCT xmin::text) FROM pqrun.jobs_finished"
"""Jobs per settle: those of one settle were written by one transaction. No claim of 20 jobs is settled with many more."""


def window_rates(times: Sequence[float], size: int) -> list[float]:
    """Jobs per second in each window, from the times at which every ``size`` jobs had finished."""
    return [size / (later - earlier) for earlier, later in itertools.pairwise(times)]


class _Passage(NamedTuple):
    rates: list[float]
    batch: float
    inserted: float
    """Jobs per second that came meanwhile."""


async def measure(ground: Ground) -> list[Measured]:
    """The last window's rate over the first's, for each variant; and all windows, for the plot."""
    jobs = ground.sized(JOBS, 5_000)

    def passing(variant: Variant) -> Callable[[], Awaitable[_Passage]]:
        return lambda: _pass(ground, variant, jobs)

    found = await alternate({name: passing(variant) for name, variant in VARIANTS.items()}, ground.repeat)
    rows = []
    for name, variant in VARIANTS.items():
        ratios = [passage.rates[-1] / passage.rates[0] for passage in found[name]]
        rates = [statistics.median(window) for window in zip(*(passage.rates for passage in found[name]), strict=True)]
        batch = statistics.median(passage.batch for passage in found[name])
        reach = at_least(0.9, f"the last {jobs // WINDOWS:,} at 0.9 of the first or more")
        rows += [
            Measured(f"snapshot.{name}", variant.what, statistics.median(ratios), "ratio", reach, "the first", ratios),
            Measured(f"snapshot.{name}.rates", variant.what, statistics.median(rates), "jobs/s", samples=rates),
            Measured(f"snapshot.{name}.batch", f"{variant.what}: jobs per settle", batch, "jobs"),
        ]
        if variant.has_inserts:
            inserted = statistics.median(passage.inserted for passage in found[name])
            rows.append(Measured(f"snapshot.{name}.inserted", f"{variant.what}: inserted", inserted, "jobs/s"))
    return rows


async def _pass(ground: Ground, variant: Variant, jobs: int) -> _Passage:
    waiting = ground.sized(BACKLOG, 4_000) if variant.is_streamed else jobs + jobs // WINDOWS
    async with ground.database() as database:
        await database.fill(waiting, max_attempts=str(variant.max_attempts))
        await database.rest()
        began = time.monotonic()
        async with connected(database.dsn) as holder, holder.transaction(isolation="repeatable_read"):
            await holder.fetchval("SELECT count(*) FROM pqrun.workers")  # the snapshot is taken here
            async with _inserting(database, is_wanted=variant.has_inserts):
                await _let_through(database, variant, waiting, jobs)
                seconds = time.monotonic() - began
        async with connected(database.dsn) as connection:
            times = [row[0] for row in await connection.fetch(FINISHED, jobs // WINDOWS, jobs)]
            batch = await connection.fetchval(BATCHES)
            more = await connection.fetchval("SELECT last_value FROM pqrun.jobs_id_seq") - waiting
    return _Passage(window_rates(times, jobs // WINDOWS), float(batch), more / seconds)


async def _let_through(database: Database, variant: Variant, waiting: int, jobs: int) -> None:
    """Until so many have finished, and more still wait: how a drain ends is not the question here."""
    async with AsyncExitStack() as stack:
        connection = await stack.enter_async_context(connected(database.dsn))
        if variant.is_streamed:
            (producer,) = await stack.enter_async_context(producers(database.dsn))
            await stack.enter_async_context(at_work(database.dsn, [variant.setup]))
            claims = jobs + jobs // WINDOWS  # a tenth more than jobs: one of twenty is claimed twice
            async for _ in stream(connection, producer, waiting=waiting, claims=claims):
                pass
        else:
            await stack.enter_async_context(at_work(database.dsn, [variant.setup]))
        # Counted only near the end: it takes the longer the more have finished.
        while await claimed(connection) < jobs or await connection.fetchval(COUNTED) <= jobs:  # noqa: ASYNC110  # the database sets no event
            await asyncio.sleep(LOOK_SECONDS)


@asynccontextmanager
async def _inserting(database: Database, *, is_wanted: bool) -> AsyncIterator[None]:
    if not is_wanted:
        yield
        return
    process = await start_process("benchmarks.snapshot", database.dsn)
    try:
        yield
    finally:
        process.kill()
        await process.wait()


async def _insert(dsn: str) -> None:
    """Defer single jobs at the rate, until the parent ends."""
    end_with_parent()
    app = plain(dsn, Recorder())
    loop = asyncio.get_running_loop()
    at = loop.time()
    async with app:
        while True:
            burst = range(round(INSERTS_PER_SECOND * INSERT_SECONDS))
            await asyncio.gather(*(app.store.enqueue("no_op", {"t": 1.5, "i": i, "s": "more"}) for i in burst))
            at += INSERT_SECONDS
            await asyncio.sleep(max(at - loop.time(), 0.0))


def main(dsn: DsnOption = None, out: OutOption = None, quick: QuickOption = False, repeat: RepeatOption = 3) -> None:
    """Let jobs go through while a snapshot is held open; compare the last with the first."""
    run_measurement("snapshot", measure, dsn=dsn, out=out, quick=quick, repeat=repeat)


if __name__ == "__main__":
    import sys

    asyncio.run(_insert(sys.argv[1]))
