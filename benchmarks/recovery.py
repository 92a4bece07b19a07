"""``python -m benchmarks recovery``: time from the SIGKILL of a worker to the start of its job elsewhere, direct or behind PgBouncer.

All victims hold one job each, in a queue of its own, before the survivors come, which serve all these queues; then they are killed one
after the other, so far apart that no recovery waits for another one.
"""

import asyncio
import random
import signal
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from pqrun.cli.signals import Interrupts
from pqrun.store import PgJobStore
from tests.faults.serving import serving
from tests.faults.town import Ledger, at_work
from tests.support.pgbouncer import pgbouncer

__all__ = ["main", "measure"]

SURVIVORS = 2

SETTLED_SECONDS = 3.0
"""After the start of the survivors, before the first kill: they have seen everybody's beat."""

APART_SECONDS = (3.0, 4.0)
"""Between two kills: a job that was lost is started with nothing else starting for a second before and after it."""

LIMIT_SECONDS = 120.0
"""Far beyond every contract: only a job that is never recovered reaches it."""

MAX_CONNECTIONS = "300"


class Recovery(msgspec.Struct, frozen=True):
    """Seconds from the kill to the start elsewhere."""

    way: str
    tries: int
    p50: float
    longest: float


async def measure(victims_dsn: str, survivors_dsn: str, ledger: Ledger, *, tries: int) -> list[float]:
    """Seconds of each try, with the default settings of a worker. The database behind both DSNs is migrated and has no jobs."""
    queues = [f"victim-{number}" for number in range(tries)]
    async with AsyncExitStack() as stack:
        victims = [
            await stack.enter_async_context(at_work(victims_dsn, ledger, "--queues", queue, is_waited_for=False))
            for queue in queues
        ]
        async with PgJobStore(victims_dsn) as store:
            for queue in queues:
                await store.enqueue("work", {"key": queue, "how": "first-sleep", "seconds": 3600}, queue=queue)
        for queue in queues:
            await ledger.wait_for("start", queue, seconds=LIMIT_SECONDS)
        for _ in range(SURVIVORS):
            await stack.enter_async_context(at_work(survivors_dsn, ledger, "--queues", ",".join(queues)))
        await asyncio.sleep(SETTLED_SECONDS)
        killed = {}
        for queue, victim in zip(queues, victims, strict=True):
            killed[queue] = time.time()
            victim.send(signal.SIGKILL)
            await asyncio.sleep(random.uniform(*APART_SECONDS))
        return [
            (await ledger.wait_for("start", queue, count=2, seconds=LIMIT_SECONDS)).at - at
            for queue, at in killed.items()
        ]


async def _measure_direct(ledger: Ledger, tries: int) -> list[float]:
    async with serving(max_connections=MAX_CONNECTIONS) as server:
        return await measure(server.dsn, server.dsn, ledger, tries=tries)


async def _measure_pooled(ledger: Ledger, tries: int) -> list[float]:
    # Two poolers, as each takes a hundred clients at most.
    async with (
        serving(max_connections=MAX_CONNECTIONS) as server,
        pgbouncer(server.dsn, pool_size=5) as victims,
        pgbouncer(server.dsn, pool_size=5) as survivors,
    ):
        return await measure(victims.dsn, survivors.dsn, ledger, tries=tries)


def main(
    tries: Annotated[int, typer.Option(min=1, max=50, help="Workers to kill.")] = 20,
    pooled: Annotated[bool, typer.Option("--pooled", help="Behind PgBouncer in transaction mode.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the figures as JSON here, too.")] = None,
) -> None:
    """Kill workers and measure how long it takes until their jobs start elsewhere, with default settings."""
    console = Console(highlight=False)
    way = "behind PgBouncer, transaction mode" if pooled else "direct connections"
    console.print(f"{tries} workers, {way} ...")
    with Interrupts() as interrupts, tempfile.TemporaryDirectory(prefix="pqrun-recovery-") as folder:
        ledger = Ledger(Path(folder) / "ledger")
        took = interrupts.run((_measure_pooled if pooled else _measure_direct)(ledger, tries))
    recovery = _summarise(way, took)
    console.print(f"from the kill to the start elsewhere: p50 {recovery.p50:.2f} s, longest {recovery.longest:.2f} s")
    console.print(", ".join(f"{seconds:.2f}" for seconds in sorted(took)))
    if out is not None:
        out.write_bytes(msgspec.json.format(msgspec.json.encode(recovery)) + b"\n")


def _summarise(way: str, took: Sequence[float]) -> Recovery:
    return Recovery(way, len(took), round(statistics.median(took), 2), round(max(took), 2))
