"""The session lock, by which a death is noticed within seconds, comes back after a connection that broke in silence."""

import asyncpg

from pqrun.run import events
from pqrun.run.context import JobContext
from pqrun.store import PgJobStore
from tests.run.working import working
from tests.support.proxy import proxied
from tests.support.waiting import wait_until


async def quick(ctx: JobContext[object]) -> None:
    """Done at once."""


async def test_a_worker_whose_old_session_still_holds_its_lock_takes_it_when_that_is_gone(
    dsn: str, connection: asyncpg.Connection
) -> None:
    async def has_lock() -> bool:
        return bool(await connection.fetchval("SELECT bool_and(has_lock) FROM pqrun.workers"))

    async def has_none() -> bool:
        return await connection.fetchval("SELECT bool_or(has_lock) FROM pqrun.workers") is False

    async with proxied(dsn) as proxy, working(PgJobStore(proxy.dsn), {"quick": quick}) as crew:
        await wait_until(has_lock)
        (first,) = proxy.open("keeper")
        first.stall()
        await crew.heard.wait_for(events.LoopFailed)
        await wait_until(lambda: len(proxy.open("keeper")) > 1)
        await wait_until(has_none)  # the server does not know yet that the first is dead
        first.hang_up()
        await wait_until(has_lock)
