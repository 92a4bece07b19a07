"""``python -m benchmarks schedules``: a schedule every second, workers killed at random; firings expected, seen, doubled, missed.

And the table of clock changes: what a time in a gap, a time in a repeated hour and a quarter-hourly expression do in three zones.
"""

import asyncio
import random
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, NamedTuple
from zoneinfo import ZoneInfo

import asyncpg
import typer
from rich.console import Console
from rich.table import Table

from pqrun import Call, PgJobStore, Schedules
from pqrun.cli.signals import Interrupts
from pqrun.job.record import NewJob
from pqrun.job.schedule import check_rule, latest
from tests.cli.running import Command
from tests.faults.serving import serving
from tests.faults.town import Ledger, at_work
from tests.support.waiting import wait_until

__all__ = ["Counts", "clock_changes", "count_firings", "hurt", "main", "second_schedule"]

SCHEDULE = "second"

EVERY = timedelta(seconds=1)

APART_SECONDS = (1.0, 3.0)
"""Between two kills."""

LEAST_ALIVE = 2
"""So many are never killed at once: what nobody is there for is downtime, which is another question."""

LAST_SECONDS = 30.0
"""For what was fired to be seen; a survivor needs some milliseconds."""


class Counts(NamedTuple):
    """What became of the planned times between the first and the last."""

    expected: int
    seen: int
    doubled: int
    missed: int
    kills: int = 0


async def second_schedule(store: PgJobStore, *, every: timedelta = EVERY) -> None:
    """Add a schedule of the shop's task that every worker process serves."""
    job = NewJob(job_type="work", payload='{"key": "tick"}')
    await Schedules(store).add(SCHEDULE, Call(job, lambda _: None, lambda _: None), every=every)


async def count_firings(connection: asyncpg.Connection, *, every: timedelta = EVERY) -> Counts:
    """Compare the jobs that are stored with the planned times from the first on, up to where the schedule stands."""
    rows = await connection.fetch("SELECT scheduled_for FROM pqrun.jobs WHERE scheduled_for IS NOT NULL")
    planned = [row["scheduled_for"] for row in rows]
    following = await connection.fetchval("SELECT next_at FROM pqrun.schedules WHERE name = $1", SCHEDULE)
    expected = (following - min(planned)) // every
    seen = len(set(planned))
    return Counts(expected, seen, len(planned) - seen, expected - seen)


class Crowd:
    """Worker processes, some of which are killed and replaced."""

    def __init__(self, dsn: str, ledger: Ledger, stack: AsyncExitStack) -> None:
        self._dsn = dsn
        self._ledger = ledger
        self._stack = stack
        self._starting: set[asyncio.Task[None]] = set()
        self.alive: list[Command] = []
        self.kills = 0

    async def start(self) -> None:
        """Add a worker, and wait until it works."""
        command = await self._stack.enter_async_context(at_work(self._dsn, self._ledger))
        self.alive.append(command)

    def kill(self, chance: random.Random) -> None:
        """Kill one without a warning, and start another in its place."""
        if len(self.alive) <= LEAST_ALIVE:
            return
        victim = self.alive.pop(chance.randrange(len(self.alive)))
        victim.send(signal.SIGKILL)
        self.kills += 1
        task = asyncio.create_task(self.start())
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def settle(self) -> None:
        """Wait for those that are on their way."""
        await asyncio.gather(*self._starting)


@asynccontextmanager
async def _crowd(dsn: str, workers: int) -> AsyncIterator[Crowd]:
    with tempfile.TemporaryDirectory(prefix="pqrun-schedules-") as folder:
        async with AsyncExitStack() as stack:
            crowd = Crowd(dsn, Ledger(Path(folder) / "ledger"), stack)
            for _ in range(workers):
                await crowd.start()
            yield crowd
            await crowd.settle()


async def hurt(dsn: str, *, workers: int, seconds: float, seed: int) -> Counts:
    """Run a schedule every second under workers that are killed at random for so long, and count its firings."""
    chance = random.Random(seed)
    connection = await asyncpg.connect(dsn)
    try:
        async with PgJobStore(dsn) as store, _crowd(dsn, workers) as crowd:
            await second_schedule(store)
            loop = asyncio.get_running_loop()
            end = loop.time() + seconds
            while (left := end - loop.time()) > 0:
                await asyncio.sleep(min(chance.uniform(*APART_SECONDS), left))
                crowd.kill(chance)
            kills = crowd.kills
            await Schedules(store).pause(SCHEDULE)
            await wait_until(lambda: _has_none_waiting(connection), seconds=LAST_SECONDS)
            counts = await count_firings(connection)
    finally:
        await connection.close()
    return counts._replace(kills=kills)


async def _has_none_waiting(connection: asyncpg.Connection) -> bool:
    return not await connection.fetchval("SELECT count(*) FROM pqrun.jobs WHERE status <> 'DONE'")


CHANGES = [
    ("Europe/Berlin", "30 2 * * *", "2026-03-29 01:00", "2026-10-25 01:00"),
    ("America/New_York", "30 2 * * *", "2026-03-08 07:00", None),
    ("America/New_York", "30 1 * * *", None, "2026-11-01 06:00"),
    ("Australia/Lord_Howe", "15 2 * * *", "2026-10-03 15:30", None),
    ("Australia/Lord_Howe", "45 1 * * *", None, "2026-04-04 15:00"),
    ("Europe/Berlin", "*/15 * * * *", "2026-03-29 01:00", "2026-10-25 01:00"),
]
"""Zone, expression, and the instants in UTC at which its clock goes forward and back in 2026."""


def clock_changes() -> list[tuple[str, str, str, str]]:
    """Return rows of zone, expression, change, and the firings on the day of that change."""
    rows = []
    for zone, expression, forward, back in CHANGES:
        for word, change in (("forward", forward), ("back", back)):
            if change is not None:
                rows.append((zone, expression, f"{word} {change}Z", _firings(zone, expression, change)))
    return rows


def _firings(zone: str, expression: str, change: str) -> str:
    moment = datetime.fromisoformat(change).replace(tzinfo=UTC)
    rule = check_rule(cron=expression, tz=zone)
    around = timedelta(hours=1) if expression.startswith("*") else timedelta(hours=12)
    found = latest(rule, moment - around - timedelta(seconds=1), moment + around - timedelta(seconds=1), 100)
    if len(found) > 1:
        return f"{len(found)} from {found[0]:%H:%M}Z to {found[-1]:%H:%M}Z"
    return ", ".join(f"{one:%H:%M}Z ({one.astimezone(ZoneInfo(zone)):%H:%M%z})" for one in found)


async def _measure(workers: int, seconds: float, seed: int) -> Counts:
    async with serving() as server:
        return await hurt(server.dsn, workers=workers, seconds=seconds, seed=seed)


def main(
    workers: Annotated[int, typer.Option(help="Worker processes.")] = 8,
    seconds: Annotated[float, typer.Option(help="How long to kill them.")] = 120.0,
    seed: Annotated[int, typer.Option(help="Of whom to kill and when.")] = 1,
) -> None:
    """Print the table of clock changes, then kill workers under a schedule that fires every second, and count."""
    console = Console()
    table = Table("zone", "expression", "the clock goes", "firings around", title="clock changes of 2026", box=None)
    for row in clock_changes():
        table.add_row(*row)
    console.print(table)
    with Interrupts():
        counts = asyncio.run(_measure(workers, seconds, seed))
    console.print(
        f"{workers} workers, {counts.kills} killed in {seconds:g} s; firings: expected {counts.expected}, seen {counts.seen}, "
        f"doubled {counts.doubled}, missed {counts.missed}"
    )
    if counts.doubled or counts.missed:
        raise typer.Exit(1)
