"""What the pages do to one job or schedule: the act and its row in the audit log in one transaction."""

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import NamedTuple

from pqrun.errors import ArgumentsError, JobBusy, JobNotFound, PqrunError, StoreError
from pqrun.job.bulk import deleting, moving
from pqrun.job.moments import duration_text
from pqrun.job.outcome import CancelOutcome
from pqrun.job.pause import PauseKind
from pqrun.job.record import NewJob
from pqrun.job.state import ACTIVE, FINISHED, Status
from pqrun.store import intervening, operations, workers
from pqrun.store.enqueueing import insert_or_find
from pqrun.store.link import Session, repeated
from pqrun.store.pages import ACT_SETTINGS, writing
from pqrun.store.pg import PgJobStore
from pqrun.store.queues import PAUSE_SETTINGS, patiently
from pqrun.store.workers import Told

__all__ = [
    "Act",
    "Did",
    "act",
    "cancel",
    "delete",
    "enqueue",
    "pause",
    "relane",
    "reschedule",
    "resume",
    "retry",
    "tell_worker",
]

OUTCOME_MAX = 500
"""Characters of a reason that the log keeps."""


class Act(NamedTuple):
    """Who does what, as the audit log has it."""

    actor: str
    action: str
    target: str
    job_id: int | None = None


class Did(NamedTuple):
    """What came of it: in words, for how many jobs, and the job that was made."""

    words: str
    jobs: int = 1
    made_id: int | None = None


async def act(
    store: PgJobStore, note: Act, do: Callable[[Session], Awaitable[Did]], *, settings: str = ACT_SETTINGS
) -> Did:
    """Do it, and note it by the same commit. A refusal is noted too, and raised again; raises what ``do`` does, and StoreError."""

    async def run() -> Did:
        async with writing(store, settings) as session:
            did = await do(session)
            outcome = did.words[:OUTCOME_MAX]
            await operations.add_audit(
                session, *note[:3], job_id=note.job_id, made_id=did.made_id, jobs=did.jobs, outcome=outcome
            )
            return did

    try:
        return await repeated(run)
    except StoreError:
        raise
    except PqrunError as error:
        async with writing(store) as session:
            outcome = f"refused: {error}"[:OUTCOME_MAX]
            await operations.add_audit(session, *note[:3], job_id=note.job_id, outcome=outcome)
        raise


async def cancel(session: Session, job_id: int) -> Did:
    """Cancel a job; raises JobNotFound, ArgumentsError for one that has ended, and JobBusy."""
    outcome = await intervening.cancel(session.run, job_id)
    if outcome is CancelOutcome.NOT_FOUND:
        raise JobNotFound(f"there is no job {job_id} (deleted, or removed by retention)", job_id)
    if outcome is CancelOutcome.ALREADY_FINISHED:
        raise ArgumentsError(f"job {job_id} has ended already")
    return Did("cancelled" if outcome is CancelOutcome.CANCELLED else "its worker is asked to stop it")


async def retry(session: Session, job_id: int, *, force: bool) -> Did:
    """Make an ended job READY again; raises RetryRefused and JobNotFound."""
    await intervening.retry(session.run, job_id, force=force)
    return Did("ready again")


async def delete(session: Session, job_id: int) -> Did:
    """Delete a job that no worker has; raises as ``relane``."""
    statuses = ACTIVE | FINISHED
    if not await session.run("delete_many", [job_id], sorted(statuses - {Status.RUNNING})):
        raise await _refusal(session, job_id, deleting(waiting=True).takes)
    return Did("deleted")


async def relane(session: Session, job_id: int, *, queue: str | None = None, priority: int | None = None) -> Did:
    """Give a job that has not started another queue or priority; raises JobNotFound, ArgumentsError and JobBusy."""
    if not await session.run("relane_many", [job_id], [Status.SCHEDULED, Status.READY], queue, priority):
        raise await _refusal(session, job_id, moving("default").takes)
    return Did(f"moved to queue {queue}" if priority is None else f"given priority {priority}")


async def reschedule(session: Session, job_id: int, when: datetime | timedelta) -> Did:
    """Say when a job that has not started is due: an instant, or so long from now by the database's clock; raises as ``relane``."""
    due, delay = (None, when.total_seconds()) if isinstance(when, timedelta) else (when, 0.0)
    if not await session.run("reschedule", job_id, due, delay):
        raise await _refusal(session, job_id, moving("default").takes)
    if due is not None:
        return Did(f"due at {due.isoformat(timespec='seconds')}")
    return Did(f"due in {duration_text(timedelta(seconds=delay))}" if delay else "due now")


async def _refusal(session: Session, job_id: int, takes: frozenset[Status]) -> JobNotFound | ArgumentsError | JobBusy:
    rows = await session.run("inspect_many", [job_id])
    if not rows:
        return JobNotFound(f"there is no job {job_id} (deleted, or removed by retention)", job_id)
    status = Status(rows[0]["status"])
    if status in takes:
        return JobBusy(f"job {job_id} is held by another transaction; try again when that has ended", job_id)
    return ArgumentsError(f"job {job_id} is {status.value}: that cannot be done to it now")


async def enqueue(session: Session, job: NewJob) -> Did:
    """Insert a job; raises ArgumentsError where an active one has its dedupe key."""
    (enqueued,) = await insert_or_find(session, [job])
    if not enqueued.created:
        raise ArgumentsError(f"the active job {enqueued.id} has its dedupe key: nothing was written")
    return Did(f"made job {enqueued.id}", made_id=enqueued.id)


async def pause(store: PgJobStore, actor: str, kind: PauseKind, name: str, reason: str | None) -> Did:
    """Pause a queue or a task for all workers, and note it; raises DatabaseUnavailableError when a claim under way does not end."""

    async def do(session: Session) -> Did:
        is_new = bool(await session.run("pause", kind, name, reason))
        return Did(f"paused: {reason}" if is_new and reason else "paused" if is_new else "was paused already", jobs=0)

    note = Act(actor, "pause", f"{kind} {name}")
    return await patiently(lambda: act(store, note, do, settings=PAUSE_SETTINGS), kind)


async def resume(session: Session, kind: PauseKind, name: str) -> Did:
    """End the pause of a queue or a task."""
    return Did("resumed" if await session.run("resume", kind, name) else "was not paused", jobs=0)


async def tell_worker(store: PgJobStore, note: Act, worker: int, wanted: str, words: str) -> Told:
    """Write what is wanted of a worker, and note it in these words; raises ArgumentsError for one that has ended or was taken for dead."""
    told: list[Told] = []

    async def do(session: Session) -> Did:
        told[:] = await workers.want(session, [worker], wanted)
        if not told:
            raise ArgumentsError(f"worker {worker} has ended, or was taken for dead: nobody would follow")
        return Did(words, jobs=0)

    await act(store, note, do)
    return told[0]
