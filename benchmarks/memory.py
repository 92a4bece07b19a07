"""``python -m benchmarks memory``: what a worker process needs above a bare one, and whether it grows over a million jobs (Linux only).

The bare one imports asyncpg, pydantic, msgspec and uvloop and does nothing. The worker works in ten pieces; after each its resident memory
is noted while it is idle. Its peak (VmHWM) counts as its need, the highest that any moment under full load took.
"""

import asyncio
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import NamedTuple

from benchmarks.ground import (
    FAST,
    Database,
    DsnOption,
    Ground,
    Measured,
    OutOption,
    QuickOption,
    at_most,
    at_work,
    run_measurement,
)
from benchmarks.processes import ROOT

__all__ = ["main", "measure"]

BARE = "import asyncpg, msgspec, pydantic, uvloop; print(flush=True); input()"

PIECES = 10

PIECE_JOBS = 100_000

MB = 1024.0
"""/proc counts in kB."""

GROWTH_MB = 1.0
"""Less is what an allocator does with its pages."""


class Memory(NamedTuple):
    """Of a process, in MB: now, and at most so far."""

    resident: float
    peak: float


async def measure(ground: Ground) -> list[Measured]:
    """Need, and growth between the middle and the end."""
    bare = await _measure_bare()
    jobs = ground.sized(PIECE_JOBS, 200)
    async with ground.database() as database, at_work(database.dsn, [FAST]) as (worker,):
        seen = []
        for number in range(PIECES):
            await _work_off(database, jobs)
            seen.append(read_memory(worker.pid))
            ground.tell(f"{(number + 1) * jobs:,} jobs: {seen[-1].resident:.1f} MB, at most {seen[-1].peak:.1f} MB")
    resident = [memory.resident for memory in seen]
    growth = resident[-1] - resident[PIECES // 2 - 1]
    total = f"{PIECES * jobs:,} jobs"
    return [
        Measured("memory.bare", "process that imports asyncpg, pydantic, msgspec, uvloop", bare.peak, "MB"),
        Measured("memory.peak", f"worker, peak over {total}", seen[-1].peak, "MB"),
        Measured(
            "memory.above",
            "worker's peak above that process",
            seen[-1].peak - bare.peak,
            "MB",
            at_most(25, "at most 25 MB"),
        ),
        Measured("memory.idle", "worker, idle afterwards, above that process", resident[-1] - bare.resident, "MB"),
        Measured(
            "memory.growth",
            f"growth in the second half of {total}",
            growth,
            "MB",
            at_most(GROWTH_MB, "none (at most 1 MB)"),
            samples=resident,
        ),
    ]


def main(dsn: DsnOption = None, out: OutOption = None, quick: QuickOption = False) -> None:
    """Measure a worker's memory, and its growth over a million jobs."""
    run_measurement("memory", measure, dsn=dsn, out=out, quick=quick, repeat=1)


async def _work_off(database: Database, jobs: int) -> None:
    await database.fill(jobs)
    await database.execute("SELECT pg_notify('pqrun', 'ready:0:default')")  # plain SQL has told nobody
    await database.wait_done()


def read_memory(pid: int) -> Memory:
    """Read what /proc says; raises OSError where there is none."""
    found = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in ("VmRSS", "VmHWM"):
            found[name] = int(rest.split()[0]) / MB
    return Memory(found["VmRSS"], found["VmHWM"])


async def _measure_bare() -> Memory:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", BARE, cwd=ROOT, stdin=PIPE, stdout=PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    await process.stdout.readline()
    memory = read_memory(process.pid)
    process.stdin.write(b"\n")
    await process.wait()
    return memory
