"""Rows of the driver turned into the values of ``pqrun.job.record``."""

from asyncpg import Record

from pqrun.job.record import Job
from pqrun.job.state import Status

__all__ = ["claimed_job", "stored_job"]


def _backoff(row: Record) -> tuple[float, ...] | None:
    delays = row["backoff_seconds"]
    return None if delays is None else tuple(delays)


def claimed_job(row: Record) -> Job:
    """Build the job of a claim: a row of claim.sql or claim_suspect.sql."""
    return Job(
        id=row["id"],
        queue=row["queue"],
        job_type=row["job_type"],
        payload_json=row["payload"],
        status=Status.RUNNING,
        priority=row["priority"],
        attempts=row["attempts"],
        max_attempts=row["max_attempts"],
        run_after=row["run_after"],
        timeout_seconds=row["timeout_seconds"],
        locked_at=row["locked_at"],
        locked_by=row["locked_by"],
        claim_id=row["claim_id"],
        dedupe_key=row["dedupe_key"],
        last_error=row["last_error"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        backoff_seconds=_backoff(row),
        lost=row["lost"],
        releases=row["releases"],
    )


def stored_job(row: Record) -> Job:
    """Build a job from a row of get.sql."""
    return Job(
        id=row["id"],
        queue=row["queue"],
        job_type=row["job_type"],
        payload_json=row["payload"],
        status=Status(row["status"]),
        priority=row["priority"],
        attempts=row["attempts"],
        max_attempts=row["max_attempts"],
        run_after=row["run_after"],
        timeout_seconds=row["timeout_seconds"],
        locked_at=row["locked_at"],
        locked_by=row["locked_by"],
        claim_id=row["claim_id"],
        dedupe_key=row["dedupe_key"],
        last_error=row["last_error"],
        finished_at=row["finished_at"],
        duration_ms=row["duration_ms"],
        result_json=row["result"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        cancel_requested_at=row["cancel_requested_at"],
        backoff_seconds=_backoff(row),
        lost=row["lost"],
        releases=row["releases"],
    )
