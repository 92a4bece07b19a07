"""The states of a job and the transitions between them.

The table below is the same that the CHECK constraints of the first migration state in SQL.
"""

from enum import StrEnum

__all__ = ["ACTIVE", "FINISHED", "TRANSITIONS", "Status"]


class Status(StrEnum):
    """Where a job is in its life; the value is the text in the column ``status``."""

    SCHEDULED = "SCHEDULED"
    READY = "READY"
    RUNNING = "RUNNING"
    DONE = "DONE"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def is_active(self) -> bool:
        """Whether the job still holds its dedupe key and may yet run."""
        return self in ACTIVE

    @property
    def is_finished(self) -> bool:
        """Whether nothing more happens to the job unless somebody retries it by hand."""
        return self in FINISHED


ACTIVE = frozenset({Status.SCHEDULED, Status.READY, Status.RUNNING})
FINISHED = frozenset({Status.DONE, Status.FAILED, Status.CANCELLED})

TRANSITIONS: dict[Status, frozenset[Status]] = {
    Status.SCHEDULED: frozenset({Status.READY, Status.CANCELLED}),
    Status.READY: frozenset({Status.RUNNING, Status.CANCELLED}),
    Status.RUNNING: frozenset({Status.DONE, Status.SCHEDULED, Status.FAILED, Status.READY, Status.CANCELLED}),
    Status.DONE: frozenset({Status.READY}),
    Status.FAILED: frozenset({Status.READY}),
    Status.CANCELLED: frozenset({Status.READY}),
}
"""From each state, the states that may follow (retry by hand leads from a finished one back to READY)."""
