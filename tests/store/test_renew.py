"""renew.sql: which claims still hold, and which were asked to cancel; nothing is written."""

import asyncpg

from pqrun.job.outcome import Done
from pqrun.job.record import Claim
from pqrun.job.state import Status
from pqrun.store import PgJobStore
from pqrun.store.settling import Renewal, renew, settle
from tests.store.locking import holding
from tests.support.rows import make_job


async def make_claims(connection: asyncpg.Connection, count: int) -> list[Claim]:
    claims = []
    for _ in range(count):
        job_id = await make_job(connection, status=Status.RUNNING)
        claims.append(Claim(job_id, await connection.fetchval("SELECT claim_id FROM pqrun.jobs WHERE id = $1", job_id)))
    return claims


async def test_claims_that_hold_come_back_and_lost_ones_do_not(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    held, cancelled, settled, taken, deleted = await make_claims(connection, 5)
    await store.cancel(cancelled.job_id)
    await settle(store, [Done(settled, 1, None)])
    await connection.execute("UPDATE pqrun.jobs SET claim_id = claim_id + 1000 WHERE id = $1", taken.job_id)
    await connection.execute("DELETE FROM pqrun.jobs WHERE id = $1", deleted.job_id)
    renewal = await renew(store, [held, cancelled, settled, taken, deleted])
    assert renewal == Renewal(frozenset({held, cancelled}), frozenset({cancelled}))


async def test_no_claims_need_no_answer(store: PgJobStore) -> None:
    assert await renew(store, []) == Renewal(frozenset(), frozenset())


async def test_a_renewal_waits_for_no_lock_and_writes_nothing(
    dsn: str, store: PgJobStore, connection: asyncpg.Connection
) -> None:
    (claim,) = await make_claims(connection, 1)
    version = await connection.fetchval("SELECT (xmin, xmax)::text FROM pqrun.jobs WHERE id = $1", claim.job_id)
    assert (await renew(store, [claim])).held == {claim}
    assert version == await connection.fetchval("SELECT (xmin, xmax)::text FROM pqrun.jobs WHERE id = $1", claim.job_id)
    async with holding(dsn, "UPDATE pqrun.jobs SET cancel_requested_at = now() WHERE id = $1", claim.job_id):
        assert await renew(store, [claim]) == Renewal(frozenset({claim}), frozenset())
    assert await renew(store, [claim]) == Renewal(frozenset({claim}), frozenset({claim}))
