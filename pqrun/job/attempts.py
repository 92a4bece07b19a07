"""Attempts that did not succeed, as they are kept: one by one with their job, and in groups of the same error."""

from collections.abc import Collection
from datetime import datetime
from typing import Final

import msgspec

from pqrun.errors import OptionError
from pqrun.job.failure import FailureKind

__all__ = ["COUNT_MAX", "ERRORS", "GROUPS_MAX", "ErrorGroup", "JobAttempt", "check_groups"]

COUNT_MAX: Final = 1_000
"""A group is counted no further."""

GROUPS_MAX: Final = 1_000
"""Groups that one call returns at most."""

ERRORS: Final = frozenset({FailureKind.ERROR, FailureKind.TIMEOUT, FailureKind.LOST})
"""What went wrong by itself: neither a cancel nor a shutdown."""


class JobAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """One start of a job that did not succeed. pqrun makes these; ``repr`` shows neither message nor traceback."""

    id: int
    """Grows with each attempt of the job."""
    job_id: int
    job_type: str
    queue: str
    number: int
    """The job's count of attempts at this start; a retry by hand begins at 1 again, and a start that did not count has its number twice."""
    kind: FailureKind
    started_at: datetime
    """Aware, as ``ended_at``: when it ended less ``duration_ms``; without that, when the job was claimed."""
    ended_at: datetime
    """When its end was written, by the database's clock."""
    duration_ms: int | None
    """Milliseconds that the handler ran, by its worker's clock; None: unknown."""
    worker: str | None
    """The worker_id of who ran it, or lost it."""
    status_after: str
    """What the job became: SCHEDULED, READY, FAILED or CANCELLED."""
    exception_type: str | None
    """Module and name of the exception's class; None where there was none."""
    message: str | None
    """1,000 characters at most."""
    traceback: str | None
    """What ``last_error`` became by it, bounded alike; None where it left that as it was."""
    frame: str | None
    """``module:function:line`` of the innermost frame of your own code; None where there was none."""
    fingerprint: str
    """Equal for attempts that failed in the same way: see ``ErrorGroup``."""

    def __repr__(self) -> str:
        what = "" if self.exception_type is None else f", exception_type={self.exception_type!r}"
        return f"JobAttempt(id={self.id}, job_id={self.job_id}, number={self.number}, kind={self.kind.value!r}{what})"


class ErrorGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Attempts that failed in the same way: of one task, by one type of exception, in one function of your own code.

    Of the attempts that are still kept. What can differ from one to the other is that of the newest.
    """

    fingerprint: str
    job_type: str
    kind: FailureKind
    exception_type: str | None
    frame: str | None
    message: str | None
    count: int
    """1,000 means so many or more."""
    first_seen: datetime
    last_seen: datetime
    job_id: int
    """The job of the newest."""
    attempt_id: int
    """The newest; ``before=`` of the next page."""

    def __repr__(self) -> str:
        return (
            f"ErrorGroup(fingerprint={self.fingerprint!r}, job_type={self.job_type!r}, kind={self.kind.value!r}, "
            f"exception_type={self.exception_type!r}, count={self.count})"
        )


def check_groups(kinds: Collection[FailureKind], limit: object) -> tuple[list[str], int]:
    """Check what ``error_groups`` is asked for; raises OptionError, naming the argument."""
    known = ", ".join(kind.value for kind in FailureKind)
    if isinstance(kinds, str) or not kinds:
        raise OptionError(f"kinds: expected one or more of {known}; got {kinds!r:.80}")
    try:
        names = sorted({FailureKind(kind).value for kind in kinds})
    except ValueError as error:
        raise OptionError(f"kinds: expected some of {known}; {error}") from None
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= GROUPS_MAX:
        raise OptionError(f"limit: expected 1 to {GROUPS_MAX}; got {limit!r:.80}")
    return names, limit
