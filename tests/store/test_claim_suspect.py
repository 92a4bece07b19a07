"""claim_suspect.sql: jobs that were running when a worker died are claimed one at a time."""

import asyncpg

from pqrun.job.state import Status
from pqrun.store import PgJobStore
from pqrun.store.claiming import Claimer
from tests.support.jobs import facts
from tests.support.rows import make_job


async def test_one_suspect_is_claimed_at_a_time_best_first(
    connection: asyncpg.Connection, claimer: Claimer, store: PgJobStore, worker: int
) -> None:
    later = await make_job(connection, lost=1)
    first = await make_job(connection, lost=2, priority=5, queue="other", attempts=2)
    await make_job(connection)  # no suspect
    job = await claimer.claim_suspect(None, ["t"], [])
    assert job is not None
    assert (job.id, job.attempts, job.lost, job.status, job.locked_by) == (first, 3, 2, Status.RUNNING, "w")
    assert facts(await store.get(first)) == facts(job)
    assert await connection.fetchval("SELECT worker FROM pqrun.jobs WHERE id = $1", first) == worker
    second = await claimer.claim_suspect(None, ["t"], [])
    assert second is not None
    assert second.id == later
    assert (second.claim_id or 0) > (job.claim_id or 0)
    assert await claimer.claim_suspect(None, ["t"], []) is None


async def test_a_suspect_is_left_that_is_not_served_alive_or_used_up(
    connection: asyncpg.Connection, claimer: Claimer
) -> None:
    alive = await make_job(connection, lost=1)
    await make_job(connection, lost=1, job_type="gone")
    await make_job(connection, lost=1, queue="other")
    await make_job(connection, lost=1, status=Status.RUNNING)
    assert await claimer.claim_suspect(["default"], ["t"], [alive]) is None
    job = await claimer.claim_suspect(["default"], ["t"], [])
    assert job is not None
    assert job.id == alive


async def test_a_worker_that_was_taken_for_dead_claims_no_suspect(
    connection: asyncpg.Connection, claimer: Claimer
) -> None:
    await make_job(connection, lost=1)
    await connection.execute("UPDATE pqrun.workers SET dead_at = now()")
    assert await claimer.claim_suspect(None, ["t"], []) is None
