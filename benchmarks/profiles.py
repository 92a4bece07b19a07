"""``python -m benchmarks profiles``: where the time of a drain goes; docs/profiles.md.

Three looks at the same load, none of which is free, so no rate is taken from this run: the worker's Python stacks (py-spy, which samples
from outside; ``pip install py-spy``), what the server's processes wait for, and the plans of the statements as PostgreSQL executes them
(auto_explain on a connection of our own, which a superuser may load).
"""

import asyncio
import re
import shutil
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import asyncpg
import typer

from benchmarks.ground import FAST, Database, DsnOption, Ground, at_work, connected, first_of, ground
from benchmarks.no_op import JOB_TYPE
from benchmarks.processes import ROOT
from benchmarks.results import versions
from benchmarks.waits import Waits, sampled_waits
from pqrun.cli.signals import Interrupts
from pqrun.store.link import PLANNER_SETTINGS, Session
from pqrun.store.statements import Statements

__all__ = ["Stacks", "main", "read_stacks"]

JOBS = 200_000
SECONDS = 6
RATE = 250
"""Samples of the worker's stacks per second."""

BATCH = 1_000
"""Rows of the explained claim and settle: what a busy worker takes."""

FRAMES = 18
"""Functions listed."""

FOLDERS: Final = (
    ("pqrun/", "pqrun"),
    ("asyncpg/", "asyncpg"),
    ("asyncio/", "asyncio"),
    ("benchmarks/", "the handler and its app"),
)

MAIN_THREAD = "MainThread"

_FRAME: Final = re.compile(r"^(?P<function>.+) \((?P<file>.+?)(?::\d+)?\)$")

EXPLAIN = """
LOAD 'auto_explain';
SET auto_explain.log_min_duration = 0; SET auto_explain.log_analyze = on; SET auto_explain.log_buffers = on;
SET auto_explain.log_wal = on; SET auto_explain.log_parameter_max_length = 0; SET auto_explain.log_level = notice;
"""

PAGE = """\
# Where the time goes

Profiles of a drain of no-op jobs (`python -m benchmarks profiles`), for those who want it faster. What they mean for the goals that were
not reached stands in [benchmarks.md](benchmarks.md). Versions: {known}.

## In the worker

One process, uvloop, concurrency 200, while it drains: {samples} samples of the stack of its main thread, {rate} a second. A sample counts
for the innermost Python function; C code that it calls (the driver's protocol, pydantic's core, the event loop) is in it.

| package | share |
|---|---|
{packages}

| function | share |
|---|---|
{functions}

## What the server waits for

Active backends, looked at every few milliseconds; "none" computes.

| workers | waits |
|---|---|
| 1 | {one} |
| 2 | {two} |

## Plans

EXPLAIN (ANALYZE, BUFFERS, WAL) of the statements of `pqrun/store/sql`: a claim and a settle of {batch} jobs and an insert of one, in a
table of {rows} with all pages in memory. Taking the times of every node makes them slower than they are otherwise.
{plans}
"""


class Stacks(NamedTuple):
    """Samples of one process: of all, by the package at work, and by the function."""

    samples: int
    packages: Counter[str]
    functions: Counter[str]
    """By the innermost Python function of each sample; C code below it counts for its caller."""


def read_stacks(lines: Iterable[str]) -> Stacks:
    """Read what ``py-spy record --threads --format raw`` writes, of the main thread: frames from the outermost in, and a count."""
    stacks = Stacks(0, Counter(), Counter())
    samples = 0
    for line in lines:
        frames, _, count = line.rpartition(" ")
        thread, _, stack = frames.partition(";")
        found = _FRAME.match(stack.rpartition(";")[2])
        if found is None or MAIN_THREAD not in thread:  # the keeper's thread waits in a way that looks like work
            continue
        samples += int(count)
        file = found["file"]
        package = next((name for part, name in FOLDERS if part in file), "other modules")
        place = "/".join(Path(file).parts[-2:])
        stacks.packages[package] += int(count)
        stacks.functions[f"{found['function']} ({place})"] += int(count)
    return stacks._replace(samples=samples)


def _py_spy() -> str:
    """The sampler: beside this Python, or on the PATH."""
    beside = Path(sys.executable).with_name("py-spy")
    found = str(beside) if beside.exists() else shutil.which("py-spy")
    if found is None:
        raise typer.BadParameter("py-spy is not installed; run: pip install py-spy")
    return found


async def _record(pid: int, folder: Path) -> Stacks:
    out = folder / "stacks"
    words = [
        "--pid",
        str(pid),
        "--duration",
        str(SECONDS),
        "--rate",
        str(RATE),
        "--format",
        "raw",
        "--output",
        str(out),
    ]
    process = await asyncio.create_subprocess_exec(
        _py_spy(), "record", "--threads", *words, stdout=DEVNULL, stderr=PIPE
    )
    _, errors = await process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"py-spy ended with code {process.returncode}: {errors.decode(errors='replace').strip()}")
    return read_stacks(out.read_text("utf-8").splitlines())


async def _sampled(ground: Ground, workers: int) -> tuple[list[Stacks], Waits]:
    """The stacks of each worker and the waits of the server, while they drain."""
    async with ground.database() as database:
        await database.fill(JOBS * workers)
        await database.rest()
        async with at_work(database.dsn, [FAST] * workers) as members:
            await first_of(members)
            with tempfile.TemporaryDirectory(prefix="pqrun-profile-") as folder:
                async with sampled_waits(database.dsn) as waits:
                    stacks = [await _record(members[0].pid, Path(folder))] if workers == 1 else []
                    if not stacks:
                        await asyncio.sleep(SECONDS)
            return stacks, waits


async def _plans(database: Database) -> dict[str, str]:
    """The plans of a claim and its settle of one batch, and of a single insert."""
    await database.fill(BATCH * 20)
    await database.execute("INSERT INTO pqrun.workers (worker_id) VALUES ('profile')", "VACUUM (ANALYZE)")
    plans: dict[str, str] = {}
    async with connected(database.dsn) as connection:
        told: list[str] = []
        await connection.execute(EXPLAIN + PLANNER_SETTINGS)
        connection.add_log_listener(lambda _, message: told.append(getattr(message, "message", "")))
        session = Session(connection, Statements("pqrun"))
        worker = await connection.fetchval("SELECT max(id) FROM pqrun.workers")

        async def explained(name: str, *arguments: object) -> list[asyncpg.Record]:
            rows: list[asyncpg.Record] = []
            for _ in range(3):  # the third has every page in memory and its plan made
                rows = await session.run(name, *arguments)
            plans[name] = next(text for text in reversed(told) if "Query Text" in text)
            return rows

        types = [JOB_TYPE]
        await explained("claim", ["default"], [0], [0], types, BATCH, BATCH + 100, worker, "profile", BATCH, types, [])
        claims = await connection.fetch(
            "SELECT id, claim_id FROM pqrun.jobs_active WHERE status = 'RUNNING' ORDER BY id"
        )
        for number in range(3):
            part = claims[number * BATCH : (number + 1) * BATCH]
            ids, fences = ("{" + ",".join(str(row[column]) for row in part) + "}" for column in ("id", "claim_id"))
            done, took = "{" + ",".join(["DONE"] * BATCH) + "}", "{" + ",".join(["0"] * BATCH) + "}"
            await session.run("settle", ids, fences, done, [], [], took, [], [], [], [], [])
        plans["settle"] = next(text for text in reversed(told) if "Query Text" in text)
        await explained("enqueue_one", JOB_TYPE, "{}", "default", 0, 5, None, None, None, None, None, True)
    return plans


def _plan_alone(text: str) -> str:
    """The plan without the statement, which stands in its file."""
    lines = text.splitlines()
    first = next(number for number, line in enumerate(lines) if "(cost=" in line)
    return "\n".join(line.rstrip() for line in lines[first:])


def _page(versions_of: dict[str, str], one: tuple[list[Stacks], Waits], two: Waits, plans: dict[str, str]) -> str:
    (stacks,), waits = one
    total = max(stacks.samples, 1)
    packages = [f"| {name} | {100 * count / total:.0f} % |" for name, count in stacks.packages.most_common()]
    functions = [f"| `{name}` | {100 * count / total:.1f} % |" for name, count in stacks.functions.most_common(FRAMES)]
    known = ", ".join(
        f"{name} {version}" for name, version in sorted(versions_of.items()) if name not in {"system", "cores"}
    )
    explained = (
        line
        for name in ("claim", "settle", "enqueue_one")
        for line in ("", f"### {name}.sql", "", "```text", _plan_alone(plans[name]), "```")
    )
    return PAGE.format(
        known=known,
        samples=stacks.samples,
        packages="\n".join(packages),
        functions="\n".join(functions),
        one=waits.most(8),
        two=two.most(8),
        plans="\n".join(explained),
        rate=RATE,
        batch=f"{BATCH:,}",
        rows=f"{BATCH * 20:,}",
    )


async def _measure(ground: Ground) -> str:
    ground.tell("one worker ...")
    one = await _sampled(ground, 1)
    ground.tell("two workers ...")
    _, two = await _sampled(ground, 2)
    ground.tell("plans ...")
    async with ground.database() as database:
        plans = await _plans(database)
    return _page(versions(await ground.version()), one, two, plans)


def main(
    dsn: DsnOption = None,
    page: Annotated[Path, typer.Option(metavar="FILE", help="The page to write.")] = ROOT / "docs" / "profiles.md",
) -> None:
    """Sample a worker and the server during a drain, explain the hot statements, and write the page."""

    async def run() -> str:
        async with ground(dsn) as standing:
            return await _measure(standing)

    with Interrupts() as interrupts:
        page.write_text(interrupts.run(run()), "utf-8")
