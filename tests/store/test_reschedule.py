"""When a job that waits is due: now, later, or at an instant; behind those that wait there."""

from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from pqrun import Status
from pqrun.store.link import Session
from tests.store.listening import hearing
from tests.support.rows import make_job


async def state(connection: asyncpg.Connection, job_id: int) -> tuple[str, int]:
    row = await connection.fetchrow("SELECT status, place FROM pqrun.jobs WHERE id = $1", job_id)
    assert row is not None
    return row["status"], row["place"]


async def test_a_scheduled_job_becomes_ready_with_a_new_place_and_is_told(
    connection: asyncpg.Connection, session: Session, dsn: str
) -> None:
    job_id = await make_job(connection, status=Status.SCHEDULED, queue="q", priority=3)
    _, before = await state(connection, job_id)
    async with hearing(dsn) as heard:
        (row,) = await session.run("reschedule", job_id, None, 0.0)
        assert row["status"] == "READY"
        assert await heard.wait_for(1) == ["ready:3:q"]
    status, place = await state(connection, job_id)
    assert status == "READY"
    assert place > before


async def test_a_ready_job_is_put_off_by_the_clock_of_the_database(
    connection: asyncpg.Connection, session: Session
) -> None:
    job_id = await make_job(connection)
    (row,) = await session.run("reschedule", job_id, None, 3600.0)
    assert row["status"] == "SCHEDULED"
    left = await connection.fetchval("SELECT run_after - clock_timestamp() FROM pqrun.jobs WHERE id = $1", job_id)
    assert timedelta(minutes=59) < left <= timedelta(hours=1)
    await session.run("reschedule", job_id, datetime(2020, 1, 1, tzinfo=UTC), 0.0)
    assert (await state(connection, job_id))[0] == "READY"


@pytest.mark.parametrize("status", [Status.RUNNING, Status.DONE, Status.FAILED])
async def test_what_has_started_or_ended_is_left_alone(
    connection: asyncpg.Connection, session: Session, status: Status
) -> None:
    job_id = await make_job(connection, status=status)
    assert await session.run("reschedule", job_id, None, 0.0) == []
    assert (await state(connection, job_id))[0] == status.value


async def test_a_row_that_another_transaction_holds_is_passed(
    connection: asyncpg.Connection, session: Session, dsn: str
) -> None:
    job_id = await make_job(connection, status=Status.SCHEDULED)
    other = await asyncpg.connect(dsn)
    try:
        async with other.transaction():
            await other.execute("SELECT FROM pqrun.jobs_active WHERE id = $1 FOR UPDATE", job_id)
            assert await session.run("reschedule", job_id, None, 0.0) == []
    finally:
        await other.close()
