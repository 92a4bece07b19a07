"""Jobs as a claim gives them, without a database."""

from datetime import UTC, datetime
from typing import Any

import msgspec

from pqrun.job.progress import Report
from pqrun.job.record import Claim, Job
from pqrun.job.state import Status

__all__ = ["NOW", "Noted", "facts", "job_record"]

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def job_record(job_id: int = 7, **changes: Any) -> Job:
    """A claimed job of the type ``t``, in its first attempt; its claim has the number of the job plus 1000."""
    job = Job(
        id=job_id,
        claim_id=job_id + 1000,
        queue="default",
        job_type="t",
        payload_json="{}",
        priority=0,
        attempts=1,
        max_attempts=5,
        _run_after=NOW,
        timeout_seconds=None,
        _locked_at=None,
        dedupe_key=None,
        last_error=None,
        _created_at=NOW,
        lost=0,
        releases=0,
        snoozes=0,
        backoff_seconds=None,
        payload_version=1,
        _scheduled_for=None,
        headers_json=None,
        status=Status.RUNNING,
        locked_by=None,
        _updated_at=NOW,
    )
    return msgspec.structs.replace(job, **changes)


def facts(job: Job | None) -> dict[str, object]:
    """What a job says, its times as datetimes: a claim and a look at the same row agree."""
    assert job is not None
    names = [name.lstrip("_") for name in Job.__struct_fields__]
    return {name: getattr(job, name) for name in names}


class Noted:
    """Stands for the duty that writes reports: keeps the latest of each claim, and how often one was waited for."""

    def __init__(self) -> None:
        self.reports: dict[Claim, Report] = {}
        self.unwritten: set[Claim] = set()
        self.flushes: list[Claim] = []

    def note(self, claim: Claim, report: Report) -> None:
        """Keep it."""
        self.reports[claim] = report
        self.unwritten.add(claim)

    def has_unwritten(self, claim: Claim) -> bool:
        """Whether it was not waited for since."""
        return claim in self.unwritten

    async def flush(self, claim: Claim) -> None:
        """Take it as written."""
        self.flushes.append(claim)
        self.unwritten.discard(claim)
