"""``python -m benchmarks options``: what options cost that are set and do nothing: timeouts, logging, a subscriber, resources."""

import statistics
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from benchmarks.ground import (
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

__all__ = ["main", "measure"]


class Variant(NamedTuple):
    """Something that is set."""

    what: str
    setup: Setup
    columns: dict[str, str]
    """Of the jobs, as SQL."""


VARIANTS = {
    "plain": Variant("nothing set", FAST, {}),
    "timeouts": Variant("a timeout set on every job", FAST, {"timeout_seconds": "30"}),
    "logging": Variant("logging set up, INFO off", FAST._replace(log_level="WARNING"), {}),
    "subscriber": Variant("a subscriber that wants no event", FAST._replace(is_subscribed=True), {}),
    "resources": Variant("resources= that no handler uses", FAST._replace(app="benchmarks.loads:with_resources"), {}),
}


async def measure(ground: Ground) -> list[Measured]:
    """Rates of all variants in turn, and their ratios to the plain one."""
    jobs = ground.sized(100_000, 2_000)

    def drained(variant: Variant) -> Callable[[], Awaitable[float]]:
        async def rate() -> float:
            async with ground.database() as database:
                await database.fill(jobs, **variant.columns)
                await database.rest()
                return (await database.drain(jobs, variant.setup)).rate

        return rate

    found = await alternate({name: drained(variant) for name, variant in VARIANTS.items()}, ground.repeat)
    rows = [
        Measured(f"options.{name}", variant.what, statistics.median(found[name]), "jobs/s", samples=found[name])
        for name, variant in VARIANTS.items()
    ]
    for name, variant in VARIANTS.items():
        if name != "plain":
            value, ratios = ratio_of(found[name], found["plain"])
            reach = at_least(0.95, "at least 0.95 of without")
            rows.append(Measured(f"options.{name}/plain", variant.what, value, "ratio", reach, "without", ratios))
    return rows


def main(dsn: DsnOption = None, out: OutOption = None, quick: QuickOption = False, repeat: RepeatOption = 3) -> None:
    """Drain jobs with options set that do nothing, and without."""
    run_measurement("options", measure, dsn=dsn, out=out, quick=quick, repeat=repeat)
