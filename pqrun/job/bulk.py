"""What is done to many jobs at once, which of them it can be done to, and the report of it. Decided here alone, by state and key."""

from collections.abc import Collection
from enum import StrEnum
from typing import Final, Literal, TypeAlias

import msgspec

from pqrun.job.options import check_priority, check_queue
from pqrun.job.state import ACTIVE, FINISHED, Status

__all__ = [
    "IDS_KEPT",
    "Action",
    "ActionName",
    "BulkProgress",
    "BulkReport",
    "Refusal",
    "RefusalReason",
    "Seen",
    "Tally",
    "cancelling",
    "deleting",
    "moving",
    "prioritizing",
    "refusal_reason",
    "retrying",
]

IDS_KEPT: Final = 1_000
"""Ids, and refusals, that a report names; it counts all."""

ActionName: TypeAlias = Literal["cancel", "retry", "delete", "move", "prioritize"]

_WAITING: Final = frozenset({Status.SCHEDULED, Status.READY})


class RefusalReason(StrEnum):
    """Why nothing was done to a job."""

    NOT_FOUND = "not_found"
    """There is no such job: never there, deleted, or removed by retention."""
    ALREADY_FINISHED = "already_finished"
    """It is DONE, FAILED or CANCELLED."""
    IS_DONE = "is_done"
    """It is DONE, and runs again only with ``force``."""
    RUNNING = "running"
    """A worker has it."""
    WAITING = "waiting"
    """It is SCHEDULED or READY: it will run anyway, or is deleted only with ``waiting``."""
    KEY_TAKEN = "key_taken"
    """Another active job, which the refusal names, has its dedupe key."""
    CHANGED = "changed"
    """It has left the states that the filter names before its turn came."""
    BUSY = "busy"
    """Another transaction held it, or its dedupe key, all the time."""


class Refusal(msgspec.Struct, frozen=True):
    """A job to which nothing was done, and why."""

    id: int
    reason: RefusalReason
    holder: int | None = None
    """The active job that has its dedupe key, for ``KEY_TAKEN``."""


class BulkProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far it has come."""

    looked: int
    """Jobs looked at: where no index leads to those that match, more than match."""
    total: int | None
    """Jobs that there are to look at; None where that is not known."""
    done: int
    refused: int


class BulkReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the jobs that were chosen."""

    action: ActionName
    dry_run: bool
    """Nothing was done: ``done`` are those to which it would have been."""
    matched: int
    """``done`` and ``refused``."""
    done: int
    requested: int
    """Of ``done``, the running jobs whose workers were asked to stop them."""
    refused: int
    done_ids: tuple[int, ...]
    """The first 1,000."""
    reasons: dict[RefusalReason, int]
    """How many were refused for each reason."""
    refusals: tuple[Refusal, ...]
    """The first 1,000."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing was refused."""
        return self.refused == 0


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done. Make it with ``cancelling``, ``retrying``, ``deleting``, ``moving`` or ``prioritizing``."""

    name: ActionName
    takes: frozenset[Status]
    """The states in which it can be done."""
    among: frozenset[Status]
    """The states that a filter means which names none: whoever cancels a queue does not ask for its history."""
    queue: str | None = None
    priority: int | None = None


class Seen(msgspec.Struct, frozen=True):
    """A job as it was looked at, and the active job that has its dedupe key, where it is finished."""

    status: Status
    holder: int | None


def cancelling() -> Action:
    """At once before the start; by request while it runs."""
    return Action(name="cancel", takes=ACTIVE, among=ACTIVE)


def retrying(*, force: bool) -> Action:
    """FAILED or CANCELLED to READY; DONE too with ``force``, where a filter names it."""
    ended = frozenset({Status.FAILED, Status.CANCELLED})
    return Action(name="retry", takes=FINISHED if force else ended, among=ended)


def deleting(*, waiting: bool) -> Action:
    """Of finished jobs; with ``waiting`` of those too that have not started."""
    return Action(
        name="delete",
        takes=FINISHED | _WAITING if waiting else FINISHED,
        among=FINISHED | ACTIVE if waiting else FINISHED,
    )


def moving(queue: object) -> Action:
    """To another queue; raises OptionError."""
    return Action(name="move", takes=_WAITING, among=ACTIVE, queue=check_queue(queue))


def prioritizing(priority: object) -> Action:
    """To another priority; raises OptionError."""
    return Action(name="prioritize", takes=_WAITING, among=ACTIVE, priority=check_priority(priority))


def refusal_reason(action: Action, chosen: Collection[Status], seen: Seen | None) -> RefusalReason | None:
    """Say why it cannot be done to a job that was seen so, or None: it can. ``chosen``: the states that were asked for."""
    if seen is None:
        return RefusalReason.NOT_FOUND
    if seen.status not in action.takes:
        if seen.status is Status.RUNNING:
            return RefusalReason.RUNNING
        if seen.status in _WAITING:
            return RefusalReason.WAITING
        return RefusalReason.IS_DONE if action.name == "retry" else RefusalReason.ALREADY_FINISHED
    if seen.status not in chosen:
        return RefusalReason.CHANGED
    return RefusalReason.KEY_TAKEN if action.name == "retry" and seen.holder is not None else None


class Tally:
    """Counts what becomes of each job, and keeps the ids of the first."""

    def __init__(self) -> None:
        self.done = 0
        self.requested = 0
        self.refused = 0
        self._done_ids: list[int] = []
        self._reasons: dict[RefusalReason, int] = {}
        self._refusals: list[Refusal] = []

    def did(self, ids: Collection[int], *, requested: int) -> None:
        """Count jobs to which it was done."""
        self.done += len(ids)
        self.requested += requested
        self._done_ids += sorted(ids)[: IDS_KEPT - len(self._done_ids)]

    def refuse(self, refusal: Refusal) -> None:
        """Count one to which it was not."""
        self.refused += 1
        self._reasons[refusal.reason] = self._reasons.get(refusal.reason, 0) + 1
        if len(self._refusals) < IDS_KEPT:
            self._refusals.append(refusal)

    def report(self, action: Action, *, dry_run: bool) -> BulkReport:
        """Return it as a report."""
        return BulkReport(
            action=action.name,
            dry_run=dry_run,
            matched=self.done + self.refused,
            done=self.done,
            requested=self.requested,
            refused=self.refused,
            done_ids=tuple(self._done_ids),
            reasons=dict(sorted(self._reasons.items())),
            refusals=tuple(self._refusals),
        )
