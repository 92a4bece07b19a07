"""What running jobs in a test came to, as values, and the errors that say so."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from pqrun.errors import PqrunError
from pqrun.job.state import Status
from pqrun.job.storable import one_line

__all__ = ["DrainFailed", "DrainReport", "DrainStopped", "Ran", "Waiting"]

_FAILURES = frozenset({Status.FAILED, Status.SCHEDULED})


@dataclass(frozen=True, slots=True)
class Ran:
    """One attempt of one job, and what was written about it."""

    job_type: str
    id: int
    attempt: int
    """The number of this start, from 1."""
    status: Status
    """DONE, FAILED, CANCELLED, SCHEDULED (it failed, to be tried again, or was snoozed), or READY (it was given back, or lost)."""
    error: str | None = None
    """Type and message of what went wrong, on one line."""
    exception: BaseException | None = field(default=None, compare=False, repr=False)
    """What the handler raised, where it did."""
    is_snoozed: bool = False
    """Whether its handler raised ``Snooze``: no attempt was used, and it is no failure."""

    @property
    def is_failure(self) -> bool:
        """Whether this attempt failed, with or without another one to come."""
        return self.status in _FAILURES and not self.is_snoozed

    def __str__(self) -> str:
        again = ", to be tried again" if self.status is Status.SCHEDULED and not self.is_snoozed else ""
        again = ", snoozed" if self.is_snoozed else again
        said = "" if self.error is None else f": {self.error}"
        return f"{one_line(self.job_type)} id={self.id} attempt {self.attempt}: {self.status.value}{again}{said}"


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job that was left: SCHEDULED for later, or one that nobody here runs."""

    job_type: str
    id: int
    status: Status
    run_after: datetime
    """When it is due, by the database's clock."""
    in_seconds: float
    """How long that is from the end of the drain; negative: due already."""
    attempts: int
    """How often it has been started."""

    def __str__(self) -> str:
        due = f"due in {self.in_seconds:.0f} s" if self.in_seconds > 0 else "due"
        return f"{one_line(self.job_type)} id={self.id}: {self.status.value}, {due}"


@dataclass(frozen=True, slots=True)
class DrainReport:
    """What a drain ran, in the order in which it was written, and what it left."""

    ran: tuple[Ran, ...] = ()
    scheduled: tuple[Waiting, ...] = ()
    """Jobs of the app's tasks that are due later: deferred for later, snoozed, or failed and to be tried again."""
    unserved: tuple[Waiting, ...] = ()
    """Due jobs that were left: of no task of the app, or in none of the ``queues=``."""

    @property
    def failed(self) -> tuple[Ran, ...]:
        """The attempts that failed, those included that are to be tried again."""
        return tuple(ran for ran in self.ran if ran.is_failure)

    @property
    def done(self) -> tuple[Ran, ...]:
        """The attempts that ended DONE."""
        return tuple(ran for ran in self.ran if ran.status is Status.DONE)

    @property
    def counts(self) -> dict[str, int]:
        """How many attempts ran, by job_type, in the order in which each type first came."""
        return dict(Counter(ran.job_type for ran in self.ran))

    def raise_for_failures(self) -> None:
        """Raise DrainFailed, from what the first failed handler raised, if any attempt failed."""
        if failed := self.failed:
            raise DrainFailed(self) from next((ran.exception for ran in failed if ran.exception is not None), None)

    def __str__(self) -> str:
        parts = [("ran", self.ran), ("scheduled", self.scheduled), ("unserved", self.unserved)]
        lines = [f"{len(listed)} {name}{_listed(listed)}" for name, listed in parts if listed]
        return "\n".join(lines) or "nothing ran"


SHOWN = 20
"""Lines of one kind in a message."""


def _listed(items: Sequence[object]) -> str:
    more = f"\n  and {len(items) - SHOWN} more" if len(items) > SHOWN else ""
    return "".join(f"\n  {item}" for item in items[:SHOWN]) + more


class DrainFailed(PqrunError, AssertionError):
    """Attempts failed while ``drain`` ran; ``report`` tells of all. The cause is what the first of their handlers raised."""

    def __init__(self, report: DrainReport) -> None:
        failed = report.failed
        super().__init__(
            f"{len(failed)} of {len(report.ran)} attempts failed (raise_errors=False only reports them){_listed(failed)}"
        )
        self.report = report


class DrainStopped(PqrunError, AssertionError):
    """``drain`` found no end within its limits; ``report`` tells what ran until then, and what is left."""

    def __init__(self, message: str, report: DrainReport) -> None:
        super().__init__(f"{message}\n{report}")
        self.report = report
