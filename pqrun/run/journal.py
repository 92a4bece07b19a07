"""The log: one line per event on the logger ``pqrun``, ids and types, never payloads; control characters in names are escaped."""

import logging

from pqrun.job.outcome import SNOOZES_MAX
from pqrun.job.record import Job
from pqrun.job.storable import one_line
from pqrun.run import events

__all__ = ["Journal"]

_LOGGER = logging.getLogger("pqrun")


def _name(job: Job) -> str:
    return f"{one_line(job.job_type)} id={job.id} attempt={job.attempts}/{job.max_attempts}"


TOLD_ERRORS = 5
"""Different errors of one duty in a row that are lines of their own at INFO; all others are DEBUG."""


class Journal:
    """A subscriber that writes the log; costs nothing where the level is off.

    Each record carries its event as ``pqrun_event``, for formatters that write fields.

    A duty that meets errors in a row, because the database is away say, warns once, of the first; each retry is DEBUG, or INFO where it
    says something new; and one line tells that it goes on.
    """

    def __init__(self, logger: logging.Logger = _LOGGER) -> None:
        self._logger = logger
        self._told: dict[str, set[str]] = {}  # duty → its errors in a row that were told

    def wants(self, kind: type[events.Event]) -> bool:
        """Whether such an event could become a line now."""
        return kind is events.LoopFailed or self._logger.isEnabledFor(_LEVELS.get(kind, logging.INFO))

    def __call__(self, event: events.Event) -> None:
        """Write the line of one event."""
        level = (
            self._level_of(event) if isinstance(event, events.LoopFailed) else _LEVELS.get(type(event), logging.INFO)
        )
        if self._logger.isEnabledFor(level):
            self._logger.log(level, "%s", _line(event), extra={"pqrun_event": event})

    def _level_of(self, failed: events.LoopFailed) -> int:
        if failed.consecutive == 1:
            self._told[failed.duty] = {failed.error}
            return logging.WARNING
        told = self._told.setdefault(failed.duty, set())
        if failed.error in told or len(told) >= TOLD_ERRORS:
            return logging.DEBUG
        told.add(failed.error)
        return logging.INFO


_LEVELS: dict[type, int] = {
    events.Retrying: logging.WARNING,
    events.Failed: logging.ERROR,
    events.Recovered: logging.WARNING,
    events.ClaimLost: logging.WARNING,
    events.LateReturn: logging.WARNING,
    events.ThreadsExhausted: logging.WARNING,
    events.Unserved: logging.WARNING,
    events.NeedsNewerCode: logging.WARNING,
    events.PutAside: logging.DEBUG,
    events.WorkerDied: logging.WARNING,
    events.LoopBlocked: logging.WARNING,
    events.FiringsMissed: logging.WARNING,
    events.ScheduleFailed: logging.WARNING,
    events.ScheduleOrphaned: logging.WARNING,
    events.ScheduleTaken: logging.WARNING,
}


def _line(event: events.Event) -> str:
    match event:
        case events.Picked(job=job):
            return f"picked {_name(job)}"
        case events.Done(job=job):
            return f"done {_name(job)} in {event.duration_ms} ms"
        case events.Retrying(job=job):
            return f"failed {_name(job)}, next try in {event.delay_seconds:.3g} s: {event.error}"
        case events.Failed(job=job):
            return f"failed {_name(job)} for good: {event.error}"
        case events.JobCancelled(job=job):
            return f"cancelled {_name(job)}"
        case events.Released(job=job):
            return f"released {_name(job)} " + ("after its start" if event.started else "before its start")
        case events.Snoozed(job=job):
            why = "" if event.reason is None else f": {event.reason}"
            return f"snoozed {_name(job)}, snooze {event.snoozes} of {SNOOZES_MAX}, again in {event.delay_seconds:.3g} s{why}"
        case events.PutAside(job=job):
            return f"put aside {_name(job)}: it needs newer code; again in {event.delay_seconds:.3g} s"
        case events.ClaimLost(job=job):
            return f"claim lost {_name(job)}: it was recovered, finished or removed elsewhere; nothing is written"
        case events.StopRequested(job=job):
            return f"stopping {_name(job)}: {event.reason}"
        case events.LateReturn(job=job):
            return f"late return {_name(job)}: the handler had been given up; nothing is written"
        case _:
            return _worker_line(event)


def _worker_line(event: events.Event) -> str:
    match event:
        case events.Recovered():
            job = f"{one_line(event.job_type)} id={event.job_id}"
            return f"recovered {job} from {one_line(event.worker_id)}, now {event.status}: {event.error}"
        case events.ThreadsExhausted():
            return f"{event.threads} given-up threads still run: no plain-function tasks are claimed until one ends"
        case events.Unserved() | events.NeedsNewerCode():
            return _left_line(event)
        case events.WorkerDied():
            return f"worker {one_line(event.worker_id)} is dead, recovering its jobs"
        case events.Pruned():
            return f"retention removed {event.deleted} finished jobs"
        case events.LoopBlocked():
            by = "a handler" if event.job is None else _name(event.job)
            return f"the event loop was blocked for {event.seconds:.1f} s by {by}, and runs again"
        case events.LoopFailed():
            return f"{event.duty} met an error ({event.consecutive} in a row), again in {event.sleep_seconds:.2g} s: {event.error}"
        case events.LoopResumed():
            return f"{event.duty} goes on, after {event.errors} errors in a row in {event.seconds:.1f} s"
        case events.WorkerStarted():
            return f"worker {one_line(event.worker_id)} started: {event.concurrency} slots, {len(event.job_types)} job types"
        case events.WorkerStopping():
            return f"worker {one_line(event.worker_id)} stopping: {event.step}, {event.jobs} jobs in hand"
        case events.WorkerStopped():
            return f"worker {one_line(event.worker_id)} stopped" + (
                "" if event.clean else "; something was not written in time"
            )
        case _:
            return _schedule_line(event)


def _schedule_line(event: events.Event) -> str:
    match event:
        case events.Fired():
            many = f", {event.jobs} jobs" if event.jobs > 1 else ""
            return (
                f"schedule {one_line(event.schedule)} fired for {event.planned.isoformat()}: job {event.job_id}{many}"
            )
        case events.FiringSkipped():
            why = "its last job is still active" if event.reason == "overlap" else "an active job has its dedupe key"
            return f"schedule {one_line(event.schedule)} skipped {event.planned.isoformat()}: {why}"
        case events.FiringsMissed():
            return (
                f"schedule {one_line(event.schedule)} missed firings from {event.since.isoformat()} on; "
                f"catch_up={event.catch_up!r} made {event.jobs} jobs"
            )
        case events.ScheduleChanged():
            return f"schedule {one_line(event.schedule)} declared: {event.change}"
        case events.ScheduleFailed():
            return f"schedule {one_line(event.schedule)} could not be fired, and is tried again: {event.error}"
        case events.ScheduleOrphaned():
            return f"schedule {one_line(event.schedule)} is orphaned: no code declares it any more, so it does not fire"
        case events.ScheduleTaken():
            name = one_line(event.schedule)
            return f"schedule {name} is not stored: an operator's or another app's has the name; rename one, or give each App a name="
        case _:
            return type(event).__name__


def _left_line(event: events.Unserved | events.NeedsNewerCode) -> str:
    if isinstance(event, events.Unserved):
        return f"unserved: jobs of type {one_line(event.job_type)} wait in queue {one_line(event.queue)}, and no worker serves them"
    return (
        f"{one_line(event.job_type)} id={event.job_id} needs newer code: its payload has version {event.version}, "
        f"this worker knows version {event.known}; all such jobs are left to newer workers"
    )
