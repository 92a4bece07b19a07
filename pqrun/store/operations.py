"""Operations as rows: actions on many jobs that the pages carry out in the background; and the audit log of all actions from there."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec

from pqrun.job.bulk import Refusal, RefusalReason
from pqrun.store.enqueueing import Runs
from pqrun.store.pages import BEFORE_ALL

__all__ = [
    "LOST_SECONDS",
    "AuditRow",
    "Operation",
    "Started",
    "add_audit",
    "add_operation",
    "advance",
    "audit_of",
    "count",
    "end",
    "find",
    "get",
    "page_audit",
    "start",
    "stop",
]

LOST_SECONDS: Final = 30.0
"""Without a sign of life for so long the process that worked on it is taken for ended; somebody may go on with it."""


class AuditRow(NamedTuple):
    """One action."""

    id: int
    at: datetime
    actor: str
    action: str
    target: str
    job_id: int | None
    made_id: int | None
    operation_id: int | None
    jobs: int
    outcome: str


class Operation(NamedTuple):
    """A row of ``operations`` as it was read."""

    id: int
    actor: str
    action: str
    arguments: Mapping[str, Any]
    query: str | None
    state: str
    matched: int
    looked: int
    is_cut: bool
    position: int
    done: int
    requested: int
    reasons: Mapping[str, int]
    refusals: Sequence[Refusal]
    error: str | None
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    stop_asked_at: datetime | None
    beat_seconds: float
    now: datetime

    @property
    def is_over(self) -> bool:
        """Whether nothing more happens."""
        return self.ended_at is not None

    @property
    def is_lost(self) -> bool:
        """Whether the process that worked on it seems to have ended before it."""
        return self.state in ("COUNTING", "RUNNING") and self.beat_seconds > LOST_SECONDS

    @property
    def refused(self) -> int:
        """How many jobs it left as they were."""
        return sum(self.reasons.values())


class Started(NamedTuple):
    """What is to be done, and from where on."""

    id: int
    actor: str
    action: str
    arguments: Mapping[str, Any]
    query: str | None
    ids: Sequence[int]
    position: int


async def add_audit(
    session: Runs,
    actor: str,
    action: str,
    target: str,
    *,
    job_id: int | None = None,
    made_id: int | None = None,
    operation_id: int | None = None,
    jobs: int = 0,
    outcome: str = "done",
) -> None:
    """Note an action; in the transaction that carries it out, where there is one."""
    await session.run("add_audit", actor, action, target, job_id, made_id, operation_id, jobs, outcome)


async def page_audit(session: Runs, before: int, rows: int) -> list[AuditRow]:
    """Return the latest actions."""
    found = await session.run("page_audit", before, rows)
    return [AuditRow(*(row[name] for name in AuditRow._fields)) for row in found]


async def audit_of(session: Runs, job_id: int, rows: int = 50) -> list[AuditRow]:
    """Return the latest actions about one job, the one that made it included."""
    found = await session.run("audit_job", job_id, rows)
    return [AuditRow(*(row[name] for name in AuditRow._fields)) for row in found]


async def add_operation(
    session: Runs,
    actor: str,
    action: str,
    arguments: Mapping[str, Any],
    *,
    query: str | None,
    ids: Sequence[int] | None,
) -> int:
    """Write a new one: of jobs that a query means, which are to be counted, or of ids."""
    rows = await session.run("add_operation", actor, action, json.dumps(arguments), query, ids)
    return int(rows[0]["id"])


async def count(
    session: Runs,
    operation: int,
    *,
    looked: int,
    matched: int,
    ids: Sequence[int] | None,
    query: str,
    is_cut: bool = False,
) -> bool:
    """Note how far the counting has come, with ``ids`` its end; return whether it is still wanted."""
    return bool(await session.run("count_operation", operation, looked, matched, ids, is_cut, query))


async def start(session: Runs, operation: int, matched: int) -> Started | None:
    """Begin, or go on where a process that has ended left it; None: it is not the one that its author saw, or is at work or over."""
    rows = await session.run("start_operation", operation, matched, LOST_SECONDS)
    if not rows:
        return None
    row = rows[0]
    arguments = json.loads(row["arguments"])
    return Started(row["id"], row["actor"], row["action"], arguments, row["query"], row["ids"], row["position"])


async def advance(
    session: Runs,
    operation: int,
    *,
    before: int,
    behind: int,
    done: int,
    requested: int,
    reasons: Mapping[RefusalReason, int],
    refusals: Sequence[Refusal],
) -> bool:
    """Note a piece; return whether to go on."""
    texts = json.dumps(reasons), msgspec.json.encode(refusals).decode()
    rows = await session.run("advance_operation", operation, before, behind, done, requested, *texts)
    return bool(rows) and not rows[0]["is_stopped"]


async def end(session: Runs, operation: int, state: str, outcome: str, error: str | None = None) -> None:
    """Note the end, and the action in the audit log."""
    await session.run("end_operation", operation, state, error, outcome)


async def stop(session: Runs, operation: int, actor: str) -> bool:
    """Ask it to stop; return whether that made sense."""
    return bool(await session.run("stop_operation", operation, LOST_SECONDS, actor))


async def find(session: Runs, *, before: int = BEFORE_ALL, rows: int = 50) -> list[Operation]:
    """Return the latest operations."""
    return [_operation(row) for row in await session.run("find_operations", None, before, rows)]


async def get(session: Runs, operation: int) -> Operation | None:
    """Return one."""
    rows = await session.run("find_operations", operation, BEFORE_ALL, 1)
    return _operation(rows[0]) if rows else None


_READ: Final = {"arguments", "reasons", "refusals"}


def _operation(row: Any) -> Operation:  # noqa: ANN401  # a Row; mypy cannot follow a tuple made of its columns
    values = {name: row[name] for name in Operation._fields if name not in _READ}
    refusals = msgspec.json.decode(row["refusals"], type=list[Refusal])
    return Operation(
        arguments=json.loads(row["arguments"]), reasons=json.loads(row["reasons"]), refusals=refusals, **values
    )
