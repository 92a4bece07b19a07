"""What went wrong, in groups of the same error."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from pqrun.job.attempts import COUNT_MAX, ErrorGroup
from pqrun.job.filter import JobFilter
from pqrun.job.query import query_text
from pqrun.job.state import Status
from pqrun.store.attempts import find_error_groups
from pqrun.store.pages import BEFORE_ALL, read_clock
from pqrun.web.shown import show_error
from pqrun.web.visit import Visit

__all__ = ["GroupRow", "errors_data", "group_rows"]

GROUPS_SHOWN = 50


class GroupRow(NamedTuple):
    """A group as this visitor may see it."""

    group: ErrorGroup
    message: str | None
    query: str | None
    """Finds the failed jobs of it; None for who may not search in errors, and for groups without an exception."""
    is_capped: bool


async def errors_data(visit: Visit) -> Mapping[str, object]:
    """``?task=`` of one task only; ``before=`` goes on behind a group."""
    before = visit.number("before", 1, BEFORE_ALL)
    task = visit.query.get("task") or None
    async with visit.reading() as session:
        found = await find_error_groups(session.run, job_type=task, limit=GROUPS_SHOWN + 1, before=before)
        now = await read_clock(session)
    following = found[GROUPS_SHOWN - 1].attempt_id if len(found) > GROUPS_SHOWN else None
    return {
        "groups": group_rows(visit, found[:GROUPS_SHOWN]),
        "next_before": following,
        "before": before,
        "task": task,
        "now": now,
    }


def group_rows(visit: Visit, groups: Iterable[ErrorGroup]) -> list[GroupRow]:
    """Return groups without what the visitor may not see."""
    return [_row(visit, group) for group in groups]


def _row(visit: Visit, group: ErrorGroup) -> GroupRow:
    shown = show_error(visit, group.job_type, group.message)
    query = None
    if group.exception_type is not None and visit.site.searches_payloads(visit.access):
        name = group.exception_type.rpartition(".")[2]
        query = query_text(JobFilter(statuses=[Status.FAILED], job_types=[group.job_type], error_contains=name))
    message = None if shown.is_hidden else shown.text
    return GroupRow(msgspec.structs.replace(group, message=message), message, query, group.count >= COUNT_MAX)
