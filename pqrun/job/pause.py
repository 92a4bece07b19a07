"""Pauses: what is paused for all workers, and which claims a pause takes back. Values and decisions."""

from collections.abc import Iterable
from datetime import datetime
from typing import Final, Literal, Protocol, TypeAlias

import msgspec

from pqrun.errors import ArgumentsError, OptionError
from pqrun.job.options import check_job_type, check_queue
from pqrun.job.record import Job
from pqrun.job.storable import unstorable_reason

__all__ = ["NO_PAUSES", "Named", "Pause", "PauseKind", "Pauses", "check_pausable", "check_reason"]

PauseKind: TypeAlias = Literal["queue", "task"]

REASON_MAX: Final = 1_000


class Named(Protocol):
    """A task, as far as a pause is concerned."""

    @property
    def name(self) -> str:
        """The job_type of its jobs."""
        ...


class Pause(msgspec.Struct, frozen=True):
    """One pause: of a queue or a task, for all workers."""

    kind: PauseKind
    name: str
    """Of the queue, or the job_type of the task."""
    paused_at: datetime
    """By the database's clock; no job of it was claimed later."""
    reason: str | None = None
    """What whoever paused it said."""


class Pauses(msgspec.Struct, frozen=True):
    """What is paused, as a worker knows it: names with their times."""

    queues: dict[str, datetime] = {}
    tasks: dict[str, datetime] = {}

    @classmethod
    def of(cls, pauses: Iterable[tuple[str, str, datetime]]) -> "Pauses":
        """Make it of (kind, name, time)."""
        made = cls({}, {})
        for kind, name, at in pauses:
            (made.queues if kind == "queue" else made.tasks)[name] = at
        return made

    def __bool__(self) -> bool:
        return bool(self.queues or self.tasks)

    def takes_back(self, job: Job) -> bool:
        """Whether a claimed job that has not started goes back: it was claimed before the pause.

        One that was claimed later was claimed after a resume that this worker has not heard of yet.
        """
        at = self.queues.get(job.queue) or self.tasks.get(job.job_type)
        return at is not None and (job.locked_at is None or job.locked_at <= at)

    def ends(self, before: "Pauses") -> bool:
        """Whether something that was paused ``before`` is not paused any more."""
        return bool(before.queues.keys() - self.queues.keys() or before.tasks.keys() - self.tasks.keys())


NO_PAUSES: Final = Pauses()


def check_pausable(queue: object, task: object) -> tuple[PauseKind, str]:
    """Return what is meant by exactly one of a queue's name and a task (or its name); raises ArgumentsError and OptionError."""
    if (queue is None) is (task is None):
        came = "neither" if queue is None else "both"
        raise ArgumentsError(f"give queue= or task=, one of them; got {came}")
    if queue is not None:
        return "queue", check_queue(queue)
    return "task", check_job_type(task if isinstance(task, str) else getattr(task, "name", task))


def check_reason(reason: object) -> str | None:
    """Check why something is paused; raises OptionError."""
    if reason is None:
        return None
    if not isinstance(reason, str) or not 1 <= len(reason) <= REASON_MAX:
        came = f"{len(reason)} characters" if isinstance(reason, str) else type(reason).__name__
        raise OptionError(f"reason: expected a text of 1 to {REASON_MAX} characters, or None; got {came}")
    if (why := unstorable_reason(reason)) is not None:
        raise OptionError(f"reason: it holds {why}, which PostgreSQL cannot store")
    return reason
