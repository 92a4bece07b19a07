"""Why a job is not running: one decision, from facts that the store has read. All that hold are told, what matters most first.

A reason more is one function more in ``REASONS``, and its facts in ``Facts`` and ``store/sql/explain.sql``.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Final

import msgspec

from pqrun.job.moments import brief, time_text
from pqrun.job.state import Status
from pqrun.job.storable import error_summary, one_line

__all__ = ["BEAT_SECONDS", "BEHIND_CAP", "Explanation", "Facts", "Reason", "Why", "explain"]

BEAT_SECONDS: Final = 10.0
"""A worker beats every second; one whose beat is older than this is not counted among the living."""

BEHIND_CAP: Final = 10_000
"""So many jobs before another are counted at most, of higher priority and of the same each."""


class Why(StrEnum):
    """Why a job is not running."""

    FINISHED = "finished"
    """It has ended."""
    RUNNING = "running"
    """It is running."""
    HOLDER_STALE = "holder_stale"
    """It is claimed by a worker that gives no sign of life, and will be recovered."""
    CANCEL_REQUESTED = "cancel_requested"
    """It runs, and its worker is asked to stop it."""
    NO_WORKERS = "no_workers"
    """There is no living worker at all."""
    TASK_NOT_SERVED = "task_not_served"
    """No living worker has its task."""
    QUEUE_NOT_SERVED = "queue_not_served"
    """No living worker serves its queue."""
    PAIR_NOT_SERVED = "pair_not_served"
    """Some have its task, others serve its queue, none both."""
    WORKERS_PAUSED = "workers_paused"
    """All workers that could run it claim nothing now: an operator has paused them, or they stop."""
    PAUSED = "paused"
    """Its queue or its task is paused."""
    NEEDS_NEWER_CODE = "needs_newer_code"
    """Its payload is of a newer version than any worker has had code for."""
    UNDECODABLE = "undecodable"
    """The code that was asked cannot read its payload."""
    RETRYING = "retrying"
    """It has failed, and waits for its next attempt."""
    NOT_DUE = "not_due"
    """It is deferred for later."""
    LOST_BEFORE = "lost_before"
    """Workers died while it ran: it is claimed alone."""
    BEHIND = "behind"
    """Other jobs of its queue come first."""
    NEXT = "next"
    """Nothing is before it."""


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """One reason."""

    why: Why
    text: str
    """A sentence, on one line, without its full stop."""
    advice: str | None = None
    """What could be done about it."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a job is not running; made by ``explain``."""

    job_id: int
    job_type: str
    queue: str
    status: Status
    reasons: tuple[Reason, ...]
    """At least one; what matters most first."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """A job and what is around it at one moment; the columns of ``store/sql/explain.sql``."""

    id: int
    status: Status
    job_type: str
    queue: str
    priority: int
    attempts: int
    max_attempts: int
    lost: int
    last_error: str | None
    payload_version: int
    run_after: datetime
    locked_at: datetime | None
    locked_by: str | None
    finished_at: datetime | None
    cancel_requested_at: datetime | None
    due_in_seconds: float
    running_seconds: float | None
    holder_hostname: str | None
    holder_pid: int | None
    is_holder_known: bool
    is_holder_dead: bool
    holder_beat_age_seconds: float | None
    living: int
    """Living workers; the next ones: of these, those that have the task, serve the queue, both."""
    serving_task: int
    serving_queue: int
    serving: int
    serving_paused: int = 0
    """Those of ``serving`` that claim nothing now."""
    serving_holds: int
    """Jobs that the workers which could run this one hold by now."""
    served_tasks: Sequence[str]
    served_queues: Sequence[str]
    newest_version: int | None
    """Of the task, that any worker has had code for; None where none has told."""
    before: int
    """READY jobs of its queue that come first, counted up to a cap."""
    queue_paused_at: datetime | None = None
    queue_pause_reason: str | None = None
    task_paused_at: datetime | None = None
    task_pause_reason: str | None = None
    decode_error: str | None = None
    """What the code of an app says of its payload; None where it reads it, or was not asked."""


def explain(facts: Facts) -> Explanation:
    """Return why the job is not running."""
    reasons = tuple(reason for rule in REASONS for reason in rule(facts))
    return Explanation(
        job_id=facts.id, job_type=facts.job_type, queue=facts.queue, status=facts.status, reasons=reasons
    )


def _finished(facts: Facts) -> Iterator[Reason]:
    if not facts.status.is_finished or facts.finished_at is None:
        return
    at = time_text(facts.finished_at)
    match facts.status:
        case Status.DONE:
            yield Reason(why=Why.FINISHED, text=f"it is DONE since {at}")
        case Status.CANCELLED:
            yield Reason(why=Why.FINISHED, text=f"it was cancelled at {at}", advice=f"pqrun retry {facts.id}")
        case _:
            yield Reason(
                why=Why.FINISHED,
                text=f"it has FAILED at {at} after attempt {facts.attempts} of {facts.max_attempts}{_error(facts)}",
                advice=f"pqrun retry {facts.id}",
            )


def _running(facts: Facts) -> Iterator[Reason]:
    if facts.status is not Status.RUNNING:
        return
    since = brief(facts.running_seconds or 0)
    where = one_line(facts.locked_by or "somebody")
    if facts.holder_hostname is not None:
        where += f" (host {one_line(facts.holder_hostname)}, pid {facts.holder_pid})"
    age = facts.holder_beat_age_seconds
    if not facts.is_holder_known:
        yield Reason(
            why=Why.HOLDER_STALE,
            text=f"it was claimed {since} ago by {where}, which is no longer registered; a worker's sweep will recover it",
            advice="start a worker (with its reaper on); the stale timeout says when it is recovered",
        )
    elif facts.is_holder_dead or age is None or age > BEAT_SECONDS:
        said = "was taken for dead" if facts.is_holder_dead else f"has given no sign of life for {brief(age or 0)}"
        yield Reason(
            why=Why.HOLDER_STALE,
            text=f"it was claimed {since} ago by {where}, which {said}; another worker will recover it",
            advice=None if facts.living else "no living worker is there to do so: start one",
        )
    elif facts.cancel_requested_at is not None:
        text = f"it is running on {where} since {since}; its worker was asked to stop it at {time_text(facts.cancel_requested_at)}"
        yield Reason(why=Why.CANCEL_REQUESTED, text=text)
    else:
        yield Reason(
            why=Why.RUNNING,
            text=f"it is running on {where} since {since}, attempt {facts.attempts} of {facts.max_attempts}; "
            f"the worker's last sign of life is {brief(age)} old",
        )


def _paused(facts: Facts) -> Iterator[Reason]:
    if not _is_waiting(facts):
        return
    for kind, name, at, why in (
        ("queue", facts.queue, facts.queue_paused_at, facts.queue_pause_reason),
        ("task", facts.job_type, facts.task_paused_at, facts.task_pause_reason),
    ):
        if at is not None:
            said = "" if why is None else f": {one_line(why)}"
            yield Reason(
                why=Why.PAUSED,
                text=f"its {kind} {one_line(name)} is paused since {time_text(at)}{said}",
                advice=f"pqrun resume --{kind} {one_line(name)}",
            )


def _unserved(facts: Facts) -> Iterator[Reason]:
    if not _is_waiting(facts) or facts.serving:
        return
    task, queue = f"task {one_line(facts.job_type)}", f"queue {one_line(facts.queue)}"
    tasks, queues = _named(facts.served_tasks), _named(facts.served_queues)
    if not facts.living:
        yield Reason(why=Why.NO_WORKERS, text="no worker is alive", advice="start one: pqrun worker module:app")
    elif not facts.serving_task:
        yield Reason(
            why=Why.TASK_NOT_SERVED,
            text=f"no living worker has the {task}; they have {tasks}",
            advice="import the module that declares it where the app is made, and deploy",
        )
    elif not facts.serving_queue:
        yield Reason(
            why=Why.QUEUE_NOT_SERVED,
            text=f"no living worker serves the {queue}; they serve {queues}",
            advice=f"start a worker with --queues {one_line(facts.queue)}, or move the job: pqrun move {facts.id} --to QUEUE",
        )
    else:
        yield Reason(
            why=Why.PAIR_NOT_SERVED,
            text=f"the workers that have the {task} do not serve the {queue}, and those that serve it do not have the task",
            advice=f"let a worker with the task serve the queue, or move the job: pqrun move {facts.id} --to QUEUE",
        )


def _unreadable(facts: Facts) -> Iterator[Reason]:
    if not _is_waiting(facts):
        return
    if facts.newest_version is not None and facts.payload_version > facts.newest_version:
        yield Reason(
            why=Why.NEEDS_NEWER_CODE,
            text=f"its payload has version {facts.payload_version}, and the newest code that a worker has had reads {facts.newest_version}",
            advice="deploy workers with the newer code; the job waits for them and is not failed",
        )
    if facts.decode_error is not None:
        yield Reason(
            why=Why.UNDECODABLE,
            text=f"this code cannot read its payload: {one_line(facts.decode_error)}",
            advice="keep reading such payloads (a default, or version= and upgrades=), or cancel it",
        )


def _later(facts: Facts) -> Iterator[Reason]:
    if not _is_waiting(facts) or facts.due_in_seconds <= 0:
        return
    due = f"due in {brief(facts.due_in_seconds)} ({time_text(facts.run_after)})"
    if facts.attempts:
        text = f"attempt {facts.attempts} of {facts.max_attempts} did not succeed, the next is {due}{_error(facts)}"
        yield Reason(why=Why.RETRYING, text=text)
    else:
        yield Reason(why=Why.NOT_DUE, text=f"it is {due}")


def _turn(facts: Facts) -> Iterator[Reason]:
    """What a job that is due and served waits for."""
    if not _is_waiting(facts) or facts.due_in_seconds > 0 or not facts.serving:
        return
    if facts.lost:
        yield Reason(
            why=Why.LOST_BEFORE,
            text=f"{_count(facts.lost, 'worker')} died while it ran: it is claimed alone, by a worker that holds no other unstarted job",
        )
    workers = f"{_count(facts.serving, 'worker')} that could run it"
    if facts.serving_paused == facts.serving:
        yield Reason(
            why=Why.WORKERS_PAUSED,
            text=f"the {workers} {'claims' if facts.serving == 1 else 'claim'} nothing now: paused by an operator, or stopping",
            advice="pqrun workers resume WORKER (pqrun workers lists them), or start another worker",
        )
        return
    holds = f"{workers} {'holds' if facts.serving == 1 else 'hold'} {_count(facts.serving_holds, 'job')}"
    if facts.before:
        more = " or more" if facts.before >= BEHIND_CAP else ""
        count = min(facts.before, BEHIND_CAP)
        text = f"{count:,}{more} {'job comes' if count == 1 else 'jobs come'} first in queue {one_line(facts.queue)}; the {holds}"
        yield Reason(
            why=Why.BEHIND, text=text, advice=f"more workers, or a higher priority: pqrun prioritize {facts.id} --to N"
        )
    elif not facts.lost and facts.queue_paused_at is None and facts.task_paused_at is None:
        yield Reason(
            why=Why.NEXT, text=f"it is due, and nothing is before it in queue {one_line(facts.queue)}; the {holds}"
        )


REASONS: Final[tuple[Callable[[Facts], Iterator[Reason]], ...]] = (
    _finished,
    _running,
    _paused,
    _unreadable,
    _unserved,
    _later,
    _turn,
)
"""In the order in which they are told. For any job at least one holds of all but ``_unreadable``; a paused one counts as such."""


def _is_waiting(facts: Facts) -> bool:
    return facts.status in (Status.SCHEDULED, Status.READY)


def _error(facts: Facts) -> str:
    return "" if facts.last_error is None else f": {one_line(error_summary(facts.last_error))}"


def _named(names: Sequence[str]) -> str:
    return ", ".join(map(one_line, names)) or "none"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
