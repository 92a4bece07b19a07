"""Rows in any state, with everything that state must have; a test names only what it is about."""

from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg

from pqrun.job.state import Status

_NOW = datetime(2026, 1, 1, tzinfo=UTC)


async def make_job(connection: asyncpg.Connection, *, status: Status = Status.READY, **columns: Any) -> int:
    """Insert one job and return its id; columns that its state requires are filled in unless given."""
    values: dict[str, Any] = {"job_type": "t", "payload": "{}", "status": status.value}
    if status is Status.SCHEDULED:
        values["run_after"] = datetime.now(UTC) + timedelta(hours=1)
    if status is Status.RUNNING:
        claim_id = await connection.fetchval("SELECT nextval('pqrun.claims_id_seq')")
        values |= {"attempts": 1, "locked_at": datetime.now(UTC), "locked_by": "somebody", "claim_id": claim_id}
    if status.is_finished:
        values |= {"attempts": 1, "finished_at": datetime.now(UTC)}
    if status is Status.DONE:
        values |= {"locked_at": _NOW, "locked_by": "somebody", "duration_ms": 1, "result": '{"ok": true}'}
    if status is Status.FAILED:
        values["last_error"] = "ValueError: x"
    values |= columns
    names = ", ".join(values)
    marks = ", ".join(f"${i}" for i in range(1, len(values) + 1))
    return int(
        await connection.fetchval(f"INSERT INTO pqrun.jobs ({names}) VALUES ({marks}) RETURNING id", *values.values())
    )


async def make_worker(connection: asyncpg.Connection, worker_id: str = "w", *, dead: bool = False) -> int:
    """Register a worker that nobody runs."""
    query = "INSERT INTO pqrun.workers (worker_id, dead_at) VALUES ($1, CASE WHEN $2 THEN clock_timestamp() END) RETURNING id"
    return int(await connection.fetchval(query, worker_id, dead))
