"""``python -m benchmarks model``: the simulation of ``benchmarks.model``, fed with what is measured apart, beside drains of a worker.

What goes in is measured without any drain's rate: the time of a claim and of a settle in the server for few and many rows (the client's
time less what its own process computes), the worker's processor time per job, and what a trip takes through the proxy, which adds 0, 1 and
5 ms each way. The proxy passes one piece at a time, so that a large answer takes longer than a small one; that is measured, too. How many
processors the proxy and other programs left is noted during each drain.
"""

import os
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from benchmarks.ground import (
    FAST,
    DsnOption,
    Ground,
    Measured,
    OutOption,
    QuickOption,
    at_work,
    connected,
    run_measurement,
)
from benchmarks.model import Costs, Line, Network, Sizes, predict
from benchmarks.no_op import JOB_TYPE
from pqrun.job.outcome import Done
from pqrun.job.record import Claim, Job
from pqrun.run.fetch import CLAIM_ROWS
from pqrun.store import PgJobStore, registry
from pqrun.store.claiming import Lane
from pqrun.store.work import WorkStore
from tests.support.proxy import Proxied, Proxy, proxied

__all__ = ["fit", "main", "measure"]

LEAST_CORES = 0.25

T = TypeVar("T")

DELAYS_MS = (0, 1, 5)

SIZES = (50, 200, 500)
"""Rows of the statements that are timed."""

TIMES = 12
"""Of each size."""

RESULT = '{"ok":true}'

LANE = Lane("default", 0)


class Passed(NamedTuple):
    """Bytes through the proxy."""

    to_server: int
    to_client: int


class Statements(NamedTuple):
    """Server time of both statements, and bytes of a row of each."""

    claim: Line
    settle: Line
    claim_bytes: float
    settle_bytes: float


async def measure(ground: Ground) -> list[Measured]:
    """Predicted and measured rates, and how far they are apart."""
    ground.tell("timing claims and settles ...")
    statements = await _time_statements(ground)
    client_seconds = await _client_seconds(ground)
    costs = Costs(statements.claim, statements.settle, client_seconds)
    rows = [
        _microseconds("model.claim", "claim, in the server, per row", statements.claim.per_row),
        _microseconds("model.settle", "settle, in the server, per row", statements.settle.per_row),
        _microseconds("model.client", "worker, processor time per job", client_seconds),
    ]
    jobs = ground.sized(60_000, 2_000)
    for delay in DELAYS_MS:
        ground.tell(f"{jobs:,} jobs, {delay} ms each way ...")
        network, rate, cores = await _drain_far(ground, jobs, delay / 1000, statements)
        predicted = predict(jobs, costs, network, Sizes(FAST.concurrency or 1), cores=cores)
        what = f"{delay} ms added each way"
        rows += [
            Measured(f"model.{delay}.trip", f"round trip with {what}", 1000 * network.trip, "ms"),
            Measured(f"model.{delay}.cores", f"processors that other programs left meanwhile, {what}", cores, ""),
            Measured(f"model.{delay}.measured", f"drain with {what}", rate, "jobs/s"),
            Measured(f"model.{delay}.predicted", "the same, predicted by the model", predicted, "jobs/s"),
            Measured(f"model.{delay}.error", f"error of the prediction with {what}", 100 * (predicted / rate - 1), "%"),
        ]
    return rows


def fit(points: Sequence[tuple[int, float]]) -> Line:
    """The line through points of rows and seconds with the least squares; not below zero anywhere."""
    slope, fixed = statistics.linear_regression([rows for rows, _ in points], [seconds for _, seconds in points])
    return Line(max(fixed, 0.0), max(slope, 0.0))


def _microseconds(name: str, what: str, seconds: float) -> Measured:
    return Measured(name, what, 1_000_000 * seconds, "µs")


async def _time_statements(ground: Ground) -> Statements:
    times = ground.sized(TIMES, 3)
    async with ground.database() as database, proxied(database.dsn) as proxy, connected(database.dsn) as keeper:
        await database.fill(2 * times * sum(SIZES) + 2 * SIZES[-1])
        await database.rest()
        async with PgJobStore(proxy.dsn) as store:
            work = WorkStore(store, worker_id="model")
            work.register(await registry.register(store.session(keeper), "model", "here", os.getpid()))
            try:
                return await _time_each(work, proxy, times)
            finally:
                await work.close(2.0)


async def _time_each(work: WorkStore, proxy: Proxy, times: int) -> Statements:
    claims, settles, claim_bytes, settle_bytes = [], [], [], []
    trip, place = 0.0, 0
    for number in range(-1, times * len(SIZES)):  # the first one is not counted: connections are opened, plans made
        rows = SIZES[number % len(SIZES)]
        before = _passed(proxy)
        batch, claiming = await _idle_seconds(work.claim([(LANE, place)], [JOB_TYPE], [JOB_TYPE], [], **_limits(rows)))
        between = _passed(proxy)
        _, settling = await _idle_seconds(work.settle([_done(job) for job in batch.jobs], []))
        after = _passed(proxy)
        place = max(look.place for look in batch.looks)
        if number < 0:
            trip = await _idle_trip(proxy.dsn)
            continue
        claims.append((rows, claiming - trip))
        settles.append((rows, settling - trip))
        claim_bytes.append((between.to_client - before.to_client) / rows)
        settle_bytes.append((after.to_server - between.to_server) / rows)
    return Statements(fit(claims), fit(settles), claim_bytes[-1], settle_bytes[-1])


def _limits(rows: int) -> dict[str, int]:
    return {"limit": rows, "look": rows, "free": rows}


def _done(job: Job) -> Done:
    return Done(Claim(job.id, job.claim_id or 0), 1, RESULT)


async def _idle_seconds(act: Awaitable[T]) -> tuple[T, float]:
    """What it returned, and the time in which this process, client and proxy, computed nothing: that of the server."""
    began, computed = time.perf_counter(), time.process_time()
    found = await act
    return found, (time.perf_counter() - began) - (time.process_time() - computed)


async def _idle_trip(dsn: str) -> float:
    async with connected(dsn) as connection:
        nothing = await connection.prepare("SELECT 1")
        return statistics.median([(await _idle_seconds(nothing.fetchval()))[1] for _ in range(50)])


def _passed(proxy: Proxy) -> Passed:
    """Bytes so far, over all connections."""
    return Passed(
        sum(one.to_server.passed for one in proxy.connections), sum(one.to_client.passed for one in proxy.connections)
    )


async def _client_seconds(ground: Ground) -> float:
    """A worker's processor time per job: by two drains, since its start takes some, too."""
    sizes = [ground.sized(20_000, 500), ground.sized(100_000, 3_000)]
    spent = []
    for jobs in sizes:
        async with ground.database() as database:
            await database.fill(jobs)
            drain = await database.drain(jobs, FAST)
        if drain.worker_cpu_seconds is None:
            raise RuntimeError("the system does not tell the processor time of a process; the model needs Linux")
        spent.append(drain.worker_cpu_seconds)
    return max((spent[1] - spent[0]) / (sizes[1] - sizes[0]), 1e-6)


async def _drain_far(
    ground: Ground, jobs: int, delay_seconds: float, statements: Statements
) -> tuple[Network, float, float]:
    """The network with a delay on each way, jobs per second over it, and how many processors were left for that."""

    def delay(one: Proxied) -> None:
        one.to_server.delay_seconds = one.to_client.delay_seconds = delay_seconds

    async with ground.database() as database, proxied(database.dsn) as proxy:
        await database.fill(jobs)
        await database.rest()
        proxy.on_open = delay
        network = await _network(proxy.dsn, statements)
        began, busy, server = time.monotonic(), _busy_seconds(), database.server_cpu_seconds()
        async with at_work(proxy.dsn, [FAST]) as workers:
            drain = await database.time_drain(jobs, workers, server)
            others = _busy_seconds() - busy - (drain.worker_cpu_seconds or 0.0) - (drain.server_cpu_seconds or 0.0)
            cores = (os.cpu_count() or 1) - max(others, 0.0) / (time.monotonic() - began)
    return network, drain.rate, max(cores, LEAST_CORES)


def _busy_seconds() -> float:
    """Processor time of everything on this machine so far; what the machine under a virtual one took for others is among it."""
    with Path("/proc/stat").open() as file:
        user, nice, system, _idle, _waiting, *rest = (int(ticks) for ticks in file.readline().split()[1:9])
    return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")


async def _network(dsn: str, statements: Statements) -> Network:
    """Times of rows that are as large as those of a claim, and of arguments as large as those of a settle."""
    back, there = round(statements.claim_bytes), "x" * round(statements.settle_bytes * CLAIM_ROWS)
    async with connected(dsn) as connection:
        few = await connection.prepare("SELECT octet_length($1::text)")
        rows = await connection.prepare(f"SELECT repeat('x', {back}) FROM generate_series(1, {CLAIM_ROWS})")
        trip = statistics.median([await _seconds(lambda: few.fetchval("x")) for _ in range(30)])
        claim = statistics.median([await _seconds(rows.fetch) for _ in range(10)])
        settle = statistics.median([await _seconds(lambda: few.fetchval(there)) for _ in range(10)])
    return Network(trip, max(claim - trip, 0.0) / CLAIM_ROWS, max(settle - trip, 0.0) / CLAIM_ROWS)


async def _seconds(act: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await act()
    return time.perf_counter() - began


def main(dsn: DsnOption = None, out: OutOption = None, quick: QuickOption = False) -> None:
    """Predict the rate of a worker near to and far from its database, and measure it."""
    run_measurement("model", measure, dsn=dsn, out=out, quick=quick, repeat=1)
