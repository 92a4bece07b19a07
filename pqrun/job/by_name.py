"""A job of a name and a JSON object, as those write it who have no task: every option is checked here."""

from collections.abc import Mapping
from datetime import datetime, timedelta

from typing_extensions import TypedDict, Unpack

from pqrun.job.dedupe import stored_key
from pqrun.job.options import (
    check_headers,
    check_job_type,
    check_max_attempts,
    check_payload_version,
    check_priority,
    check_queue,
    check_run_after,
    check_timeout,
)
from pqrun.job.record import NewJob
from pqrun.job.storable import dump_object

__all__ = ["OptionsByName", "job_by_name"]


class OptionsByName(TypedDict):
    """What is said of such a job beside its name and payload; see ``PgJobStore.enqueue``."""

    queue: str
    dedupe_key: str | None
    run_after: datetime | timedelta | None
    priority: int
    max_attempts: int
    timeout_seconds: float | None
    payload_version: int
    headers: Mapping[str, str] | None


def job_by_name(job_type: str, payload: Mapping[str, object], **options: Unpack[OptionsByName]) -> NewJob:
    """Check all of it and return the job to write; raises PayloadError, OptionError or DedupeKeyError."""
    due, delay = check_run_after(options["run_after"])
    key = options["dedupe_key"]
    return NewJob(
        job_type=check_job_type(job_type),
        payload=dump_object(payload, "payload"),
        queue=check_queue(options["queue"]),
        priority=check_priority(options["priority"]),
        max_attempts=check_max_attempts(options["max_attempts"]),
        timeout_seconds=check_timeout(options["timeout_seconds"]),
        dedupe_key=None if key is None else stored_key(key),
        run_after=due,
        delay_seconds=delay,
        payload_version=check_payload_version(options["payload_version"]),
        headers=check_headers(options["headers"]),
    )
