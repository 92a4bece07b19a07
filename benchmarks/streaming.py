"""A steady stream: jobs are added as fast as workers take them, so that a backlog of the same size waits all the while."""

import asyncio
import time
from collections.abc import AsyncIterator

import asyncpg

from benchmarks.produce import Bulk
from benchmarks.producing import ProducerProcess

__all__ = ["claimed", "stream"]

BATCH = 5_000
"""Jobs per ``defer_many``."""

LOOK_SECONDS = 0.1

STALL_SECONDS = 120.0
"""So long without any claim means that something is wrong."""

CLAIMED = "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM pqrun.claims_id_seq"
"""Each claim of a job takes a number: to read the last costs the same however many there were, and whatever lies dead in the tables."""


async def claimed(connection: asyncpg.Connection) -> int:
    """How many claims there were: of each job one per attempt."""
    return int(await connection.fetchval(CLAIMED))


async def stream(
    connection: asyncpg.Connection, producer: ProducerProcess, *, waiting: int, claims: int
) -> AsyncIterator[int]:
    """Keep as many jobs waiting as there are now, until there were so many claims; yields their number at each look.

    Raises RuntimeError when nothing is claimed any more.
    """
    sent, before = waiting, -1
    until = time.monotonic() + STALL_SECONDS
    while before < claims:
        now = await claimed(connection)
        yield now
        if now > before:
            until = time.monotonic() + STALL_SECONDS
        elif time.monotonic() > until:
            raise RuntimeError(f"no job was claimed for {STALL_SECONDS:g} s, {now} before that")
        before = now
        missing = now + waiting - sent
        if missing > 0:
            sent += (await producer.count(Bulk(min(missing, BATCH)))).jobs
        else:
            await asyncio.sleep(LOOK_SECONDS)
