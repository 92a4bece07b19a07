"""What happens in a worker, as a closed union of frozen values; logs, metrics and tests subscribe to the same stream.

An event names jobs by id and type, never by payload or result. Subscribers are called on the worker's event loop and must not block;
what one raises is logged and does not reach the worker.
"""

import logging
from collections.abc import Callable
from datetime import datetime
from typing import Literal, TypeAlias

import msgspec

from pqrun.job.record import Job

__all__ = [
    "ClaimLost",
    "Done",
    "Event",
    "Events",
    "Failed",
    "Fired",
    "FiringSkipped",
    "FiringsMissed",
    "JobCancelled",
    "LateReturn",
    "LoopBlocked",
    "LoopFailed",
    "LoopResumed",
    "NeedsNewerCode",
    "Picked",
    "Pruned",
    "PutAside",
    "Recovered",
    "Released",
    "Retrying",
    "ScheduleChanged",
    "ScheduleFailed",
    "ScheduleOrphaned",
    "ScheduleTaken",
    "Snoozed",
    "StopRequested",
    "StopStep",
    "ThreadsExhausted",
    "Unserved",
    "Wants",
    "WorkerDied",
    "WorkerStarted",
    "WorkerStopped",
    "WorkerStopping",
]

StopStep: TypeAlias = Literal["stop fetching", "wait", "cancel", "give up", "flush"]
"""The steps of a shutdown, in order; those that have nothing to do are left out."""


class Picked(msgspec.Struct, frozen=True):
    """A handler is about to start; ``waited_seconds`` after its job was due, None where a worker that died or stopped had it before."""

    job: Job
    waited_seconds: float | None = None


class Done(msgspec.Struct, frozen=True):
    """DONE was written."""

    job: Job
    duration_ms: int


class Retrying(msgspec.Struct, frozen=True):
    """A failed attempt was written, ``RetryAfter`` included; the next starts in ``delay_seconds``.

    ``error`` is its type and message on one line, escaped; ``duration_ms`` how long the handler ran.
    """

    job: Job
    error: str
    delay_seconds: float
    duration_ms: int | None = None


class Failed(msgspec.Struct, frozen=True):
    """FAILED was written, after ``Abort`` too.

    ``error`` is its type and message on one line, escaped; ``duration_ms`` how long the handler ran, None where it did not.
    """

    job: Job
    error: str
    duration_ms: int | None = None


class JobCancelled(msgspec.Struct, frozen=True):
    """CANCELLED was written for a job that was claimed; ``duration_ms``: how long its handler ran, None where that is not known."""

    job: Job
    duration_ms: int | None = None


class Released(msgspec.Struct, frozen=True):
    """A claim was given back: ``started`` tells whether its handler had begun."""

    job: Job
    started: bool


class Snoozed(msgspec.Struct, frozen=True):
    """The handler raised ``Snooze``, and that was written: the job is due again in ``delay_seconds``, its attempt not counted.

    ``snoozes`` is how often it has been put off by now; ``reason`` is what the handler gave, on one line, escaped and shortened.
    """

    job: Job
    delay_seconds: float
    snoozes: int
    reason: str | None


class PutAside(msgspec.Struct, frozen=True):
    """A claim was given back because its payload needs newer code; the job is due again in ``delay_seconds``, its attempt not counted."""

    job: Job
    delay_seconds: float


class NeedsNewerCode(msgspec.Struct, frozen=True):
    """Payloads of this version are newer than this worker's code, which knows ``known``, and are left to newer workers.

    Told once for each task and version; ``job_id`` is the first that was met.
    """

    job_type: str
    version: int
    known: int
    job_id: int


class Recovered(msgspec.Struct, frozen=True):
    """The reaper of this worker took a job back from a dead worker (``is_lost``), or timed it out; ``status`` is what it is now."""

    job_id: int
    job_type: str
    worker_id: str
    status: str
    error: str
    queue: str
    is_lost: bool


class ClaimLost(msgspec.Struct, frozen=True):
    """The claim was no longer ours; the handler, if it still ran, was told to stop and its outcome is not written."""

    job: Job


class StopRequested(msgspec.Struct, frozen=True):
    """A running handler was asked to stop."""

    job: Job
    reason: Literal["timeout", "cancelled", "shutdown", "claim_lost"]


class LateReturn(msgspec.Struct, frozen=True):
    """A handler that had been given up returned after all; what it returned is not written."""

    job: Job


class ThreadsExhausted(msgspec.Struct, frozen=True):
    """So many plain-function handlers were given up and still run that no further ones are claimed."""

    threads: int


class Unserved(msgspec.Struct, frozen=True):
    """Jobs of this type wait in this queue, and no living worker serves them. Told once by each worker."""

    queue: str
    job_type: str


class WorkerDied(msgspec.Struct, frozen=True):
    """Another worker was taken for dead; its jobs are recovered."""

    worker_id: str


class Pruned(msgspec.Struct, frozen=True):
    """Retention removed finished jobs."""

    deleted: int


class Fired(msgspec.Struct, frozen=True):
    """A schedule was moved on by this worker, with ``jobs`` jobs; ``planned`` is the planned time of the last, ``job_id`` its id."""

    schedule: str
    planned: datetime
    jobs: int
    job_id: int


class FiringSkipped(msgspec.Struct, frozen=True):
    """A firing made no job: that of the last one is still active ("overlap"), or another has its dedupe key ("dedupe")."""

    schedule: str
    planned: datetime
    reason: Literal["overlap", "dedupe"]


class FiringsMissed(msgspec.Struct, frozen=True):
    """No worker fired the schedule for a while, from the planned time ``since`` on; its ``catch_up`` made ``jobs`` jobs of that."""

    schedule: str
    since: datetime
    catch_up: Literal["skip", "one", "all"]
    jobs: int


class ScheduleChanged(msgspec.Struct, frozen=True):
    """The code of this worker declared a schedule that is "new", "changed", or "restored" from an orphan."""

    schedule: str
    change: str


class ScheduleFailed(msgspec.Struct, frozen=True):
    """A schedule could not be fired and is tried again; told once per error. ``error`` is on one line, escaped."""

    schedule: str
    error: str


class ScheduleOrphaned(msgspec.Struct, frozen=True):
    """No code declares the schedule any more: it does not fire."""

    schedule: str


class ScheduleTaken(msgspec.Struct, frozen=True):
    """The code of this worker declares a schedule whose name an operator's, or another app's, has: it is not stored."""

    schedule: str


class LoopBlocked(msgspec.Struct, frozen=True):
    """The event loop of this worker stood still for ``seconds``, and runs again; told when it does.

    ``stack`` is what it executed after two seconds of that, several lines; ``job`` the one whose handler did it, None where that is
    not known; ``running`` all whose handlers had started.
    """

    seconds: float
    stack: str
    job: Job | None
    running: tuple[Job, ...]


class LoopFailed(msgspec.Struct, frozen=True):
    """A duty of the worker met an error and goes on after ``sleep_seconds``."""

    duty: str
    error: str
    consecutive: int
    sleep_seconds: float


class LoopResumed(msgspec.Struct, frozen=True):
    """A duty of the worker met no more error, ``seconds`` after the first of ``errors`` errors in a row."""

    duty: str
    errors: int
    seconds: float


class WorkerStarted(msgspec.Struct, frozen=True):
    """The worker is registered and fetches."""

    worker_id: str
    concurrency: int
    job_types: tuple[str, ...]


class WorkerStopping(msgspec.Struct, frozen=True):
    """A step of the shutdown: what is done now, with how many jobs in hand."""

    worker_id: str
    step: StopStep
    jobs: int


class WorkerStopped(msgspec.Struct, frozen=True):
    """The worker has ended; ``clean`` unless something could not be written in time."""

    worker_id: str
    clean: bool


Event: TypeAlias = (
    Picked
    | Done
    | Retrying
    | Failed
    | JobCancelled
    | Released
    | Snoozed
    | PutAside
    | NeedsNewerCode
    | Recovered
    | ClaimLost
    | StopRequested
    | LateReturn
    | ThreadsExhausted
    | Unserved
    | WorkerDied
    | Pruned
    | Fired
    | FiringSkipped
    | FiringsMissed
    | ScheduleChanged
    | ScheduleFailed
    | ScheduleOrphaned
    | ScheduleTaken
    | LoopBlocked
    | LoopFailed
    | LoopResumed
    | WorkerStarted
    | WorkerStopping
    | WorkerStopped
)
"""Everything that a worker tells."""

_LOGGER = logging.getLogger("pqrun")


Wants: TypeAlias = Callable[[type[Event]], bool]
"""Whether a subscriber cares for a kind of events at this moment."""


class Events:
    """The stream: whoever subscribes gets every event from then on, in order."""

    def __init__(self) -> None:
        # Replaced, never changed: a subscriber may come or go while others are being told.
        self._subscribers: dict[object, tuple[Callable[[Event], None], Wants | None]] = {}

    def subscribe(self, subscriber: Callable[[Event], None], *, wants: Wants | None = None) -> Callable[[], None]:
        """Add a subscriber and return the function that removes it; with ``wants`` it gets only what that says yes to."""
        key = object()
        self._subscribers = {**self._subscribers, key: (subscriber, wants)}

        def leave() -> None:
            self._subscribers = {k: other for k, other in self._subscribers.items() if k is not key}

        return leave

    def hears(self, kind: type[Event]) -> bool:
        """Whether anybody wants events of this kind now: those of every job are not even made for nobody."""
        for _, wants in self._subscribers.values():  # noqa: SIM110  # asked twice for each job, and a generator takes twice as long
            if wants is None or wants(kind):
                return True
        return False

    def emit(self, event: Event) -> None:
        """Tell all subscribers that want it."""
        for subscriber, wants in self._subscribers.values():
            try:
                if wants is None or wants(type(event)):
                    subscriber(event)
            except Exception:  # the border to user code: a subscriber must not end a worker
                _LOGGER.exception("a subscriber of worker events failed on %s", type(event).__name__)
