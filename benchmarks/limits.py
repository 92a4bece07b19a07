"""``python -m benchmarks limits``: what PostgreSQL and Python carry without any queue between them; what ratios are taken of.

Each limit works on a plain table in an empty database, in a process of its own: ``python -m benchmarks.limits NAME DSN NUMBER`` prints what
it found as JSON. A round trip bounds every latency, COPY every mass of inserts; the lean worker is the least that still claims with
SKIP LOCKED, decodes a payload, runs a task per job, and stores a result.
"""

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Literal, TypeAlias

import asyncpg
import msgspec

from benchmarks.ground import (
    DsnOption,
    Ground,
    Measured,
    OutOption,
    QuickOption,
    RepeatOption,
    alternate,
    run_measurement,
)
from benchmarks.lean import BODY, CLAIM, INSERT, TABLE, drain_lean, fill_lean
from benchmarks.processes import ROOT, loop_factory
from tests.support.database import connected

__all__ = ["LIMITS", "copy_rows", "insert_rows", "limit", "main", "round_trips", "wakes"]

Figures: TypeAlias = dict[str, float]

PAUSE_SECONDS = 0.01
"""Between two wakes: the server has gone quiet."""


LIMIT_SECONDS = 120.0
"""No limit takes so long, unless it hangs."""

NOTIFY = """
WITH notified AS MATERIALIZED (SELECT pg_notify('lean', ''))
INSERT INTO lean (name, body) SELECT $1::text, $2::jsonb FROM notified RETURNING id
"""


async def copy_rows(dsn: str, count: int) -> Figures:
    """COPY so many rows in one go."""
    now = datetime.now(UTC)
    rows = [("no_op", BODY, 0, now)] * count
    async with connected(dsn) as connection:
        await connection.execute(TABLE)
        began = time.perf_counter()
        await connection.copy_records_to_table("lean", records=rows, columns=["name", "body", "rank", "due"])
        return {"rate": count / (time.perf_counter() - began)}


async def insert_rows(dsn: str, connections: int, seconds: float) -> Figures:
    """Insert rows one by one, each in a transaction of its own, from so many connections at once."""
    async with connected(dsn) as connection:
        await connection.execute(TABLE)
    open_ones = [await asyncpg.connect(dsn) for _ in range(connections)]
    try:
        inserts = [await one.prepare(INSERT) for one in open_ones]
        began = time.perf_counter()
        counts = await asyncio.gather(*(_insert_until(insert.fetchval, began + seconds) for insert in inserts))
        return {"rate": sum(counts) / (time.perf_counter() - began)}
    finally:
        await asyncio.gather(*(one.close() for one in open_ones))


async def _insert_until(insert: Callable[..., Awaitable[object]], until: float) -> int:
    count = 0
    while time.perf_counter() < until:
        await insert("no_op", BODY)
        count += 1
    return count


async def work_lean(dsn: str, count: int) -> Figures:
    """Drain so many jobs with the lean worker."""
    async with connected(dsn) as connection:
        await fill_lean(connection, count)
    return {"rate": count / await drain_lean(dsn, count)}


async def round_trips(dsn: str, count: int) -> Figures:
    """Ask the server for nothing, so often; milliseconds."""
    took = []
    async with connected(dsn) as connection:
        nothing = await connection.prepare("SELECT 1")
        for _ in range(count):
            began = time.perf_counter()
            await nothing.fetchval()
            took.append(time.perf_counter() - began)
    return _milliseconds(took)


async def wakes(dsn: str, count: int) -> Figures:
    """From an INSERT that notifies until a claim by the one that listens has returned the row; milliseconds."""
    async with connected(dsn) as producer, connected(dsn) as listener, connected(dsn) as claimer:
        await producer.execute(TABLE)
        claim = await claimer.prepare(CLAIM)
        await claim.fetch(
            10, "lean"
        )  # the driver's first execution has the transaction, and so the now(), of its prepare
        insert = await producer.prepare(NOTIFY)
        woken, claimed = asyncio.Event(), asyncio.Event()
        await listener.add_listener("lean", lambda *_: woken.set())

        async def serve() -> None:
            while True:
                await woken.wait()
                woken.clear()
                if await claim.fetch(10, "lean"):
                    claimed.set()

        serving = asyncio.create_task(serve())
        took = []
        for _ in range(count):
            await asyncio.sleep(PAUSE_SECONDS)
            claimed.clear()
            began = time.perf_counter()
            waiting = asyncio.create_task(claimed.wait())
            await insert.fetchrow("no_op", BODY)
            await waiting
            took.append(time.perf_counter() - began)
        serving.cancel()
        return _milliseconds(took)


def _milliseconds(seconds: Sequence[float]) -> Figures:
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return {"p50": cuts[49] * 1000, "p95": cuts[94] * 1000, "p99": cuts[98] * 1000}


LIMITS: dict[str, Callable[[str, int], Awaitable[Figures]]] = {
    "copy": copy_rows,
    "insert_1": lambda dsn, seconds: insert_rows(dsn, 1, seconds),
    "insert_20": lambda dsn, seconds: insert_rows(dsn, 20, seconds),
    "lean": work_lean,
    "round_trip": round_trips,
    "wake": wakes,
}
"""Each takes the DSN of an empty database and a number: of rows, seconds (inserts), or tries."""


async def limit(ground: Ground, name: str, number: int, *, loop: Literal["uvloop", "asyncio"] = "uvloop") -> Figures:
    """Measure a limit in a process of its own, on a database of its own; raises RuntimeError when it fails."""
    async with ground.database(migrated=False) as database:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.limits", name, database.dsn, str(number), loop),
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            output, _ = await asyncio.wait_for(process.communicate(), LIMIT_SECONDS)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            raise RuntimeError(f"the limit {name!r} ended with code {process.returncode}")
        return msgspec.json.decode(output, type=Figures)


async def measure(ground: Ground) -> list[Measured]:
    """All limits, in turn."""
    jobs = ground.sized(50_000, 2_000)
    seconds = ground.sized(3, 1)
    numbers = {"copy": jobs, "insert_1": seconds, "insert_20": seconds, "lean": jobs}
    numbers |= {"round_trip": ground.sized(10_000, 500), "wake": ground.sized(300, 30)}

    def one(name: str, number: int) -> Callable[[], Awaitable[Figures]]:
        return lambda: limit(ground, name, number)

    found = await alternate({name: one(name, number) for name, number in numbers.items()}, ground.repeat)
    rows = [_rate(name, what, [f["rate"] for f in found[name]]) for name, what in RATES.items()]
    for name, what in LATENCIES.items():
        for point in ("p50", "p99"):
            samples = [figures[point] for figures in found[name]]
            rows.append(
                Measured(
                    f"limits.{name}.{point}", f"{what}, {point}", statistics.median(samples), "ms", samples=samples
                )
            )
    return rows


RATES = {
    "copy": "COPY into a plain table",
    "insert_1": "single inserts, 1 connection",
    "insert_20": "single inserts, 20 connections",
    "lean": "the lean worker on a plain table",
}

LATENCIES = {"round_trip": "one round trip", "wake": "INSERT with NOTIFY until the claim it wakes has returned"}


def _rate(name: str, what: str, samples: list[float]) -> Measured:
    return Measured(f"limits.{name}", what, statistics.median(samples), "rows/s", samples=samples)


def main(dsn: DsnOption = None, out: OutOption = None, quick: QuickOption = False, repeat: RepeatOption = 3) -> None:
    """Measure what PostgreSQL and Python carry without a queue library."""
    run_measurement("limits", measure, dsn=dsn, out=out, quick=quick, repeat=repeat)


def _measure_here(name: str, dsn: str, number: str, loop: str) -> None:
    async def run() -> Figures:
        return await LIMITS[name](dsn, int(number))

    with asyncio.Runner(loop_factory=loop_factory(loop)) as runner:
        sys.stdout.buffer.write(msgspec.json.encode(runner.run(run())))


if __name__ == "__main__":
    _measure_here(*sys.argv[1:])
