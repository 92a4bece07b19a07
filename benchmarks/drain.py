"""``python -m benchmarks drain``: no-op jobs per second, one and two worker processes, beside the lean worker of the same run."""

import statistics
from collections.abc import Awaitable, Callable

from benchmarks.ground import (
    DEFAULT,
    FAST,
    DsnOption,
    Ground,
    Measured,
    OutOption,
    QuickOption,
    RepeatOption,
    Setup,
    alternate,
    at_least,
    ratio_of,
    run_measurement,
)
from benchmarks.limits import limit

__all__ = ["main", "measure"]

VARIANTS = {"fast": (FAST,), "default": (DEFAULT,), "fast_2": (FAST, FAST), "default_2": (DEFAULT, DEFAULT)}

WHAT = {
    "lean": "the lean worker on a plain table",
    "fast": "1 process, uvloop, concurrency 200",
    "default": "1 process, Worker() as it comes",
    "fast_2": "2 processes, uvloop, concurrency 200",
    "default_2": "2 processes, Worker() as it comes",
}


async def measure(ground: Ground) -> list[Measured]:
    """Rates of all variants, and their ratios."""
    jobs = ground.sized(50_000, 2_000)
    found = await alternate(_variants(ground, jobs), ground.repeat)
    rows = [
        Measured(f"drain.{name}", what, statistics.median(found[name]), "jobs/s", samples=found[name])
        for name, what in WHAT.items()
    ]

    def ratio(name: str, other: str, bound: float, text: str) -> Measured:
        value, samples = ratio_of(found[name], found[other])
        return Measured(
            f"drain.{name}/{other}", WHAT[name], value, "ratio", at_least(bound, text), WHAT[other], samples
        )

    return [
        *rows,
        ratio("fast", "lean", 0.7, "at least 0.7 of the lean worker"),
        ratio("fast_2", "fast", 1.0, "ahead of one process"),
        ratio("default", "fast", 0.5, "at least 0.5 of our best rate"),
        ratio("default_2", "fast_2", 0.5, "at least 0.5 of our best rate"),
    ]


def _variants(ground: Ground, jobs: int) -> dict[str, Callable[[], Awaitable[float]]]:
    def drained(setups: tuple[Setup, ...]) -> Callable[[], Awaitable[float]]:
        async def rate() -> float:
            async with ground.database() as database:
                await database.fill(jobs * len(setups))
                await database.rest()
                return (await database.drain(jobs * len(setups), *setups)).rate

        return rate

    async def lean() -> float:
        return (await limit(ground, "lean", jobs))["rate"]

    return {"lean": lean} | {name: drained(setups) for name, setups in VARIANTS.items()}


def main(dsn: DsnOption = None, out: OutOption = None, quick: QuickOption = False, repeat: RepeatOption = 3) -> None:
    """Drain no-op jobs with one and two worker processes, fast and by default, beside the lean worker."""
    run_measurement("drain", measure, dsn=dsn, out=out, quick=quick, repeat=repeat)
