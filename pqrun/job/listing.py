"""Jobs as a list shows them, newest first, page by page: without payloads and results, which may be large and secret."""

from datetime import datetime

import msgspec

from pqrun.job.state import Status
from pqrun.job.storable import error_summary

__all__ = ["JobCount", "JobLine", "Listing"]


class JobLine(msgspec.Struct, frozen=True, kw_only=True):
    """One job in a list."""

    id: int
    job_type: str
    queue: str
    status: Status
    priority: int
    attempts: int
    max_attempts: int
    created_at: datetime
    run_after: datetime
    locked_at: datetime | None
    """When it was claimed; of a job that is DONE too."""
    finished_at: datetime | None
    duration_ms: int | None
    """How long the handler ran, in milliseconds; None before the end."""
    locked_by: str | None
    """The worker that runs it, or ran it."""
    dedupe_key: str | None
    last_error: str | None
    """Its last 4,000 characters."""
    snoozes: int
    cancel_requested_at: datetime | None
    now: datetime
    """The database's clock when it was read."""

    @property
    def error_summary(self) -> str | None:
        """The one line of ``last_error`` that names the exception and its message; None before the first error."""
        return None if self.last_error is None else error_summary(self.last_error)

    @property
    def age_seconds(self) -> float:
        """Since it was deferred, by the database's clock."""
        return max((self.now - self.created_at).total_seconds(), 0.0)

    @property
    def run_seconds(self) -> float | None:
        """How long it ran, or has been running since its claim; None for one that waits, and for one that ended without running."""
        if self.duration_ms is not None:
            return self.duration_ms / 1000
        if self.status is not Status.RUNNING or self.locked_at is None:
            return None
        return max((self.now - self.locked_at).total_seconds(), 0.0)


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """A page of jobs."""

    jobs: tuple[JobLine, ...]
    """Newest first: by id, or, where the filter gives times of the end, by that time."""
    looked: int
    """How many jobs were looked at for them."""
    following: int | None
    """What to give as ``after`` for the next page; None at the end."""
    is_cut: bool
    """Whether the time ran out before the page was full; ``following`` goes on from there."""


class JobCount(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs match."""

    count: int
    is_exact: bool
    """False where counting stopped at ``most``, or when its time had run out: there may be more."""
