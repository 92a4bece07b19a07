"""``python -m benchmarks producers``: jobs per second that get in, single and many, beside raw inserts and COPY of the same run.

With notifications and without: 20 coroutines of one process, on the same path, while a connection listens in both. Without means a producer
process whose statements notify nobody (``benchmarks.produce --silent``). What the server's processes wait for is sampled meanwhile.
"""

import asyncio
import statistics
from typing import NamedTuple

from benchmarks.ground import (
    DsnOption,
    Ground,
    Measured,
    OutOption,
    QuickOption,
    RepeatOption,
    alternate,
    at_least,
    at_most,
    connected,
    ratio_of,
    run_measurement,
)
from benchmarks.limits import limit
from benchmarks.produce import Bulk, Count, Defers
from benchmarks.producing import ProducerProcess, producers
from benchmarks.waits import Waits, sampled_waits

__all__ = ["main", "measure"]

COROUTINES = 20

PROCESSES = 20


class Told(NamedTuple):
    """Defers per second, and what the server's processes waited for."""

    rate: float
    waits: Waits


async def measure(ground: Ground) -> list[Measured]:
    """Single, concurrent, many; with notifications and without; many processes."""
    return [
        *await _measure_single(ground),
        *await _measure_many(ground),
        *await _measure_notifying(ground),
        *await _measure_processes(ground),
    ]


async def _measure_single(ground: Ground) -> list[Measured]:
    seconds = ground.sized(3, 1)
    ground.tell("single defers, one after another and by 20 coroutines ...")
    found = await alternate(
        {
            "one": lambda: _defer(ground, Defers(1, seconds)),
            "one_limit": lambda: _rate_of(ground, "insert_1", seconds),
            "twenty": lambda: _defer(ground, Defers(COROUTINES, seconds)),
            "twenty_limit": lambda: _rate_of(ground, "insert_20", seconds),
        },
        ground.repeat,
    )
    return [
        *_beside("single", "one defer after another", found["one"], found["one_limit"], 0.7, "single inserts"),
        *_beside(
            "concurrent",
            f"defers of {COROUTINES} coroutines",
            found["twenty"],
            found["twenty_limit"],
            1.3,
            "single inserts of 20 connections",
        ),
    ]


async def _measure_many(ground: Ground) -> list[Measured]:
    jobs = ground.sized(50_000, 2_000)
    ground.tell(f"defer_many of {jobs:,} ...")
    found = await alternate(
        {
            "many": lambda: _defer(ground, Bulk(jobs)),
            "keyed": lambda: _defer(ground, Bulk(jobs, is_keyed=True)),
            "limit": lambda: _rate_of(ground, "copy", jobs),
        },
        ground.repeat,
    )
    return [
        *_beside("many", f"defer_many of {jobs:,}", found["many"], found["limit"], 0.4, "COPY"),
        *_beside("keyed", "the same with dedupe keys", found["keyed"], found["limit"], 0.2, "COPY", is_named=False),
    ]


async def _measure_notifying(ground: Ground) -> list[Measured]:
    seconds = ground.sized(4, 1)
    ground.tell(f"{COROUTINES} coroutines, with notifications and without, while somebody listens ...")
    found = await alternate(
        {
            "on": lambda: _defer_heard(ground, seconds, processes=1, coroutines=COROUTINES),
            "off": lambda: _defer_heard(ground, seconds, processes=1, coroutines=COROUTINES, is_silent=True),
        },
        ground.repeat,
    )
    on, off = [told.rate for told in found["on"]], [told.rate for told in found["off"]]
    ratio, each = ratio_of(on, off)
    waited = max(found["on"], key=lambda told: told.waits.share(told.waits.on_notify)).waits
    return [
        Measured(
            "producers.notifying",
            "20 coroutines with notifications",
            ratio,
            "ratio",
            at_least(0.9, "at least 0.9"),
            "without",
            each,
        ),
        Measured(
            "producers.notify_waits",
            f"waits for notifications, of {waited.looked:,} looks at active backends ({waited.most()})",
            waited.on_notify,
            "looks",
            at_most(0, "none"),
        ),
    ]


async def _measure_processes(ground: Ground) -> list[Measured]:
    count = ground.sized(PROCESSES, 3)
    ground.tell(f"{count} processes, one defer after another each ...")
    found = await alternate(
        {
            "on": lambda: _defer_heard(ground, ground.sized(4, 1), processes=count, coroutines=1),
            "off": lambda: _defer_heard(ground, ground.sized(4, 1), processes=count, coroutines=1, is_silent=True),
        },
        1,
    )
    on, off = found["on"][0], found["off"][0]
    return [
        Measured("producers.processes", f"{count} processes, with notifications", on.rate, "jobs/s"),
        Measured(
            "producers.processes.ratio",
            f"{count} processes with notifications",
            on.rate / off.rate,
            "ratio",
            None,
            "without",
        ),
        Measured(
            "producers.processes.notify_waits",
            f"{count} processes: share of active backends that wait for notifications ({on.waits.most()})",
            on.waits.share(on.waits.on_notify),
            "%",
        ),
    ]


async def _defer(ground: Ground, order: Defers | Bulk) -> float:
    async with ground.database() as database, producers(database.dsn) as (producer,):
        return (await producer.count(order)).rate


async def _rate_of(ground: Ground, name: str, number: int) -> float:
    return (await limit(ground, name, number))["rate"]


async def _defer_heard(
    ground: Ground, seconds: float, *, processes: int, coroutines: int, is_silent: bool = False
) -> Told:
    async with (
        ground.database() as database,
        connected(database.dsn) as listener,
        producers(database.dsn, processes, is_silent=is_silent) as members,
    ):
        await listener.add_listener("pqrun", lambda *_: None)
        async with sampled_waits(database.dsn) as waits:
            counts = await _together(members, Defers(coroutines, seconds))
        return Told(sum(count.rate for count in counts), waits)


async def _together(members: list[ProducerProcess], order: Defers) -> list[Count]:
    return list(await asyncio.gather(*(member.count(order) for member in members)))


def _beside(
    name: str,
    what: str,
    ours: list[float],
    limits: list[float],
    goal: float,
    against: str,
    *,
    is_named: bool = True,
) -> list[Measured]:
    ratio, each = ratio_of(ours, limits)
    rows = [Measured(f"producers.{name}", what, statistics.median(ours), "jobs/s", samples=ours)]
    if is_named:
        rows.append(Measured(f"producers.{name}.limit", against, statistics.median(limits), "rows/s", samples=limits))
    reach = at_least(goal, f"at least {goal:g}")
    return [*rows, Measured(f"producers.{name}.ratio", what, ratio, "ratio", reach, against, each)]


def main(dsn: DsnOption = None, out: OutOption = None, quick: QuickOption = False, repeat: RepeatOption = 3) -> None:
    """Measure how many jobs get in, and what notifications cost."""
    run_measurement("producers", measure, dsn=dsn, out=out, quick=quick, repeat=repeat)
