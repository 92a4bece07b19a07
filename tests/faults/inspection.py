"""The tables as they are, held against what is always true, and against the model."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import asyncpg

from pqrun.job.state import ACTIVE, FINISHED, Status
from tests.faults.model import Model, ModelJob

__all__ = ["JOBS", "ORPHANED", "WORKERS", "Tables", "compare", "compare_workers", "must_hold", "read"]

NEAR = 40.0
"""Seconds: less than any difference of ages that matters here, more than an example takes."""

JOBS = """
SELECT tableoid::regclass::text AS part, id, place, claim_id, worker, locked_by, status, attempts, max_attempts, lost, releases, snoozes,
       priority, queue, job_type, dedupe_key, last_error, timeout_seconds, duration_ms,
       (payload ->> 'n')::integer AS number, result::text AS result,
       locked_at IS NOT NULL AS is_locked, finished_at IS NOT NULL AS is_finished, cancel_requested_at IS NOT NULL AS is_asked,
       extract(epoch FROM run_after - clock_timestamp())::double precision AS due_in,
       extract(epoch FROM clock_timestamp() - coalesce(finished_at, locked_at))::double precision AS age,
       (SELECT ARRAY[p.claim_id, p.attempt, round(100 * p.value)]::bigint[] FROM pqrun.progress p WHERE p.job_id = jobs.id) AS progress,
       (SELECT count(*) FROM pqrun.progress p WHERE NOT EXISTS (SELECT FROM pqrun.jobs j WHERE j.id = p.job_id)) AS orphans,
       (SELECT array_agg(concat_ws(' ', t.number, t.kind, t.status_after) ORDER BY t.id)
          FROM pqrun.attempts t WHERE t.job_id = jobs.id) AS kept
  FROM pqrun.jobs
"""
ORPHANED = "SELECT count(*) FROM pqrun.attempts t WHERE NOT EXISTS (SELECT FROM pqrun.jobs j WHERE j.id = t.job_id)"
WORKERS = "SELECT id, worker_id, beat, dead_at IS NOT NULL AS is_dead FROM pqrun.workers"

Tables = tuple[Sequence[asyncpg.Record], Sequence[asyncpg.Record]]


async def read(connection: asyncpg.Connection) -> Tables:
    """All rows, as every other connection would see them."""
    return await connection.fetch(JOBS), await connection.fetch(WORKERS)


def must_hold(rows: Sequence[asyncpg.Record]) -> None:
    """What is true of the table whatever happened."""
    twice = [job_id for job_id, count in Counter(row["id"] for row in rows).items() if count > 1]
    assert not twice, f"in both partitions: {twice}"
    active = [row for row in rows if Status(row["status"]) in ACTIVE]
    keys = Counter((row["job_type"], row["dedupe_key"]) for row in active if row["dedupe_key"] is not None)
    assert all(count == 1 for count in keys.values()), f"active jobs share a key: {keys}"
    claims = Counter(row["claim_id"] for row in rows if row["claim_id"] is not None)
    assert all(count == 1 for count in claims.values()), f"jobs share a claim: {claims}"
    for row in rows:
        _row_must_hold(row, Status(row["status"]))
        assert row["orphans"] == 0, "reports without their jobs"


def _row_must_hold(row: asyncpg.Record, status: Status) -> None:
    said = dict(row)
    assert row["part"] == ("pqrun.jobs_finished" if status in FINISHED else "pqrun.jobs_active"), said
    assert 0 <= row["attempts"] <= row["max_attempts"], said
    assert row["is_finished"] is (status in FINISHED), said
    assert row["duration_ms"] is None or status in FINISHED, said
    assert row["result"] is None or status is Status.DONE, said
    assert not row["is_asked"] or status in {Status.RUNNING, Status.CANCELLED}, said
    who = (row["is_locked"], row["worker"] is not None, row["locked_by"] is not None)
    assert set(who) == {status in {Status.RUNNING, Status.DONE}}, said
    if status in {Status.SCHEDULED, Status.READY}:
        assert row["attempts"] < row["max_attempts"], said
        assert row["claim_id"] is None, said
    if status in {Status.RUNNING, Status.DONE}:
        assert row["claim_id"] is not None, said


def compare(model: Model, rows: Sequence[asyncpg.Record]) -> None:
    """Every job is as the model has it, and there are no others. The model learns the places of new jobs."""
    found = {row["id"]: row for row in rows}
    assert set(found) == set(model.jobs), f"jobs {sorted(found)}, expected {sorted(model.jobs)}"
    for job_id, job in model.jobs.items():
        _compare_job(job, found[job_id])


def _compare_job(job: ModelJob, row: asyncpg.Record) -> None:
    names = (
        "status",
        "attempts",
        "lost",
        "releases",
        "snoozes",
        "claim_id",
        "worker",
        "locked_by",
        "is_asked",
        "result",
    )
    values = {name: row[name] for name in names}
    expected: dict[str, Any] = {name: getattr(job, name) for name in names}
    assert values == expected, f"job {job.id} is {values}, expected {expected}"
    assert row["progress"] == (None if job.progress is None else list(job.progress)), (row["progress"], job)
    assert (row["kept"] or []) == job.kept, f"attempts of job {job.id}: {row['kept']}, expected {job.kept}"
    spec = job.spec
    same = ("number", "job_type", "queue", "priority", "max_attempts", "dedupe_key", "timeout_seconds")
    wanted = (spec.number, spec.job_type, spec.queue, spec.priority, spec.max_attempts, spec.key, spec.timeout)
    assert tuple(row[name] for name in same) == wanted
    assert (row["last_error"] or "").startswith(job.error or ""), (row["last_error"], job.error)
    assert (row["last_error"] is None) is (job.error is None), (row["last_error"], job.error)
    if job.status is Status.SCHEDULED:
        assert abs(row["due_in"] - job.due_in) < NEAR, f"job {job.id} is due in {row['due_in']}, expected {job.due_in}"
    if job.status is Status.READY:
        assert row["due_in"] <= 0, f"job {job.id} is READY before it is due"
    if job.status is Status.RUNNING or job.status.is_finished:
        assert abs(row["age"] - job.age) < NEAR, f"job {job.id}: {row['age']}, expected {job.age}"
    if job.place is not None:
        assert row["place"] > job.place if job.is_replaced else row["place"] == job.place, f"place of job {job.id}"
    job.place, job.is_replaced = row["place"], False


def compare_workers(model: Model, rows: Sequence[asyncpg.Record]) -> None:
    """The registry is as the model has it."""
    found = {row["id"]: (row["worker_id"], row["beat"], row["is_dead"]) for row in rows}
    expected = {number: (w.worker_id, w.beat, w.is_dead) for number, w in model.workers.items()}
    assert found == expected, f"workers {found}, expected {expected}"
