"""``python -m benchmarks chaos``: load and faults for some minutes, then the proof. Exit code 1 when a promise was not kept."""

import asyncio
import random
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import typer
from rich.console import Console

from benchmarks.chaos.checker import Violation, check
from benchmarks.chaos.crowd import Crowd, spawn, stop
from benchmarks.chaos.facts import Facts, Row, gather
from benchmarks.chaos.faults import FAULTS, Scene, hurt
from benchmarks.chaos.load import COMPLETING
from benchmarks.chaos.log import Entry, Exited, Log, read_logs
from benchmarks.chaos.report import LegReport, print_report, story, summarise
from benchmarks.chaos.sites import Site, pair_site, single_site
from pqrun.cli.signals import Interrupts
from tests.support.database import connected

__all__ = ["Outcome", "main", "tell"]

WARM_SECONDS = 3.0
"""Of load before the first fault."""

DRAIN_SECONDS = 150.0
"""For everything to end once the faults have stopped: longer than the longest look back of a worker that matters here."""

STORIES = 5
"""Violations of which the whole story is printed."""

ROWS = """
SELECT id, job_type, coalesce(payload ->> 'token', ''), status, attempts, max_attempts, claim_id, dedupe_key,
       coalesce(left(last_error, 300), ''), snoozes
  FROM pqrun.jobs
"""


class Leg(NamedTuple):
    """A part of a run: a kind of database, what can be done to it, and its share of the time."""

    name: str
    site: Callable[[], AbstractAsyncContextManager[Site]]
    kinds: tuple[str, ...]
    """What it is there for: without any of these it is left out."""
    also: tuple[str, ...]
    """What happens here besides."""
    share: float
    workers: int


LEGS = (
    Leg("single server", single_site, tuple(kind for kind in FAULTS if kind != "failover"), (), 0.65, 4),
    Leg("replicated pair", pair_site, ("failover",), ("kill", "release", "reset"), 0.35, 3),
)


class Outcome(NamedTuple):
    """What a leg left."""

    entries: list[Entry]
    facts: Facts
    violations: list[Violation]
    report: LegReport


def main(
    minutes: Annotated[float, typer.Option(min=0.1, help="Minutes of faults, draining not included.")] = 2.0,
    seed: Annotated[
        str | None, typer.Option(help="Of all random choices (default: a new one, which is printed).")
    ] = None,
    only: Annotated[str | None, typer.Option(metavar="A,B", help=f"Kinds of faults: {', '.join(FAULTS)}.")] = None,
    rate: Annotated[float, typer.Option(min=1, help="Acts of producers per second.")] = 50.0,
    concurrency: Annotated[int, typer.Option(min=1, help="Jobs at once, per worker.")] = 6,
    out: Annotated[Path | None, typer.Option(help="Write the report as JSON here, too.")] = None,
    logs: Annotated[
        Path | None, typer.Option(help="Keep the logs in this folder (default: only of a failed run).")
    ] = None,
) -> None:
    """Hurt workers and databases under load, in turn; then prove that every acknowledged job ended exactly once."""
    seed = seed or secrets.token_hex(4)
    kinds = _checked_kinds(only)
    console = Console(highlight=False, width=140)
    console.print(f"seed {seed}")
    folder = logs or Path(tempfile.mkdtemp(prefix="pqrun-chaos-"))
    outcomes = []
    with Interrupts() as interrupts:
        for leg, chosen, seconds in _plan(kinds, minutes * 60):
            console.print(f"{leg.name}: {', '.join(chosen)} for {seconds:.0f} s ...")
            run = _Run(leg, chosen, seed=f"{seed}/{leg.name}", rate=rate, concurrency=concurrency)
            where = folder / leg.name.replace(" ", "-")
            where.mkdir(parents=True)
            outcomes.append(interrupts.run(run.run(where, seconds)))
            print_report(outcomes[-1].report, console)
    if out is not None:
        out.write_bytes(msgspec.json.format(msgspec.json.encode([outcome.report for outcome in outcomes])) + b"\n")
    is_kept = tell(outcomes, console)
    if not is_kept:
        console.print(f"the logs are in {folder}; the seed was {seed}")
    elif logs is None:
        shutil.rmtree(folder)
    raise typer.Exit(0 if is_kept else 1)


def _plan(kinds: Sequence[str], seconds: float) -> list[tuple[Leg, list[str], float]]:
    """Which legs to run, with which faults, for how long."""
    legs = [(leg, [kind for kind in leg.kinds + leg.also if kind in kinds]) for leg in LEGS if {*leg.kinds} & {*kinds}]
    share = sum(leg.share for leg, _ in legs)
    return [(leg, chosen, seconds * leg.share / share) for leg, chosen in legs]


def _checked_kinds(only: str | None) -> Sequence[str]:
    kinds = list(FAULTS) if only is None else [kind.strip() for kind in only.split(",")]
    if unknown := [kind for kind in kinds if kind not in FAULTS]:
        raise typer.BadParameter(
            f"no such fault: {', '.join(unknown)}; there are {', '.join(FAULTS)}", param_hint="--only"
        )
    return kinds


class _Run:
    """One leg: sets the scene, hurts it, lets it drain, and checks."""

    def __init__(self, leg: Leg, kinds: list[str], *, seed: str, rate: float, concurrency: int) -> None:
        self._leg = leg
        self._kinds = kinds
        self._seed = seed
        self._rate = rate
        self._concurrency = concurrency

    async def run(self, folder: Path, seconds: float) -> Outcome:
        """Do all of it; the logs go to ``folder``."""
        async with self._leg.site() as site:
            with Log(folder, "chaos") as log:
                drain_seconds = await self._act(site, folder, log, seconds)
            rows, effects = await _read(site.direct_dsn)
        entries = read_logs(folder)
        facts = gather(entries, rows, effects)
        violations = check(facts, completing=COMPLETING)
        report = summarise(self._leg.name, self._seed, entries, facts, violations, drain_seconds=drain_seconds)
        return Outcome(entries, facts, violations, report)

    async def _act(self, site: Site, folder: Path, log: Log, seconds: float) -> float:
        rng = random.Random(self._seed)
        crowd = Crowd(
            site.dsn,
            folder,
            log,
            workers=self._leg.workers,
            concurrency=self._concurrency,
            rng=random.Random(f"{self._seed} crowd"),
        )
        async with crowd:
            producer = await spawn(
                "benchmarks.chaos.produce", site.dsn, folder, "producer", self._seed, str(self._rate)
            )
            try:
                await asyncio.sleep(WARM_SECONDS)
                await hurt(Scene(site, crowd, log, rng, time.monotonic() + seconds), self._kinds)
            finally:
                code = await stop(producer)
            log.write(Exited("producer", code, is_last=True))
            drain_seconds = await _drain(site)
            await crowd.close()
        return drain_seconds


async def _drain(site: Site) -> float:
    """Wait until nothing is left to do, for so long at most; what is left then is stuck."""
    began = time.monotonic()
    async with connected(site.direct_dsn) as connection:
        while await connection.fetchval("SELECT count(*) FROM pqrun.jobs_active"):
            if time.monotonic() - began > DRAIN_SECONDS:
                break
            await asyncio.sleep(0.2)
    return time.monotonic() - began


async def _read(dsn: str) -> tuple[list[Row], list[int]]:
    async with connected(dsn) as connection:
        rows = [Row(*row) for row in await connection.fetch(ROWS)]
        effects = [job_id for (job_id,) in await connection.fetch("SELECT job_id FROM effects")]
    return rows, effects


def tell(outcomes: Sequence[Outcome], console: Console) -> bool:
    """Tell what was violated; return whether nothing was."""
    count = sum(len(outcome.violations) for outcome in outcomes)
    console.print("every promise was kept" if not count else f"{count} VIOLATIONS")
    for outcome in outcomes:
        for said, violation in zip(outcome.report.violations, outcome.violations[:STORIES], strict=False):
            console.print(said, markup=False)
            for line in story(outcome.entries, outcome.facts, violation):
                console.print(f"    {line}", markup=False, soft_wrap=True)
        for said in outcome.report.violations[STORIES:]:
            console.print(said, markup=False)
    return not count
