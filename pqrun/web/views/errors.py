"""What went wrong, in groups of the same error."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
from starlette.responses import Response

from pqrun.job.attempts import COUNT_MAX, ErrorGroup
from pqrun.job.filter import JobFilter
from pqrun.job.options import check_job_type
from pqrun.job.query import query_text
from pqrun.job.state import Status
from pqrun.store.attempts import Hours, count_group_hours, find_error_groups
from pqrun.store.pages import BEFORE_ALL, read_clock
from pqrun.web.operating import FINGERPRINT, Wish, prepare
from pqrun.web.shown import show_error
from pqrun.web.visit import PageError, Visit

__all__ = ["GroupRow", "act_on_errors", "errors_data", "group_rows"]

GROUPS_SHOWN: Final = 50

ACTS: Final = ("retry", "delete")

FINGERPRINT_MAX: Final = 100


class GroupRow(NamedTuple):
    """A group as this visitor may see it."""

    group: ErrorGroup
    message: str | None
    query: str | None
    """Finds the failed jobs of it; None for who may not search in errors, and for groups without an exception."""
    is_capped: bool
    hours: Sequence[int | None] | None
    """Attempts in each hour of the last day, the present one last; None: not looked at."""


async def errors_data(visit: Visit) -> Mapping[str, object]:
    """``?task=`` of one task only; ``before=`` goes on behind a group."""
    before = visit.number("before", 1, BEFORE_ALL)
    task = visit.query.get("task") or None
    async with visit.reading() as session:
        found = await find_error_groups(session.run, job_type=task, limit=GROUPS_SHOWN + 1, before=before)
        shown = found[:GROUPS_SHOWN]
        hours = await count_group_hours(session.run, [group.fingerprint for group in shown])
        now = await read_clock(session)
    following = found[GROUPS_SHOWN - 1].attempt_id if len(found) > GROUPS_SHOWN else None
    return {
        "groups": group_rows(visit, shown, hours),
        "acts": [action for action in ACTS if visit.may(action)],
        "next_before": following,
        "before": before,
        "task": task,
        "now": now,
    }


def group_rows(visit: Visit, groups: Iterable[ErrorGroup], hours: Mapping[str, Hours] | None = None) -> list[GroupRow]:
    """Return groups without what the visitor may not see."""
    return [_row(visit, group, None if hours is None else hours[group.fingerprint]) for group in groups]


def _row(visit: Visit, group: ErrorGroup, hours: Hours | None) -> GroupRow:
    shown = show_error(visit, group.job_type, group.message)
    query = None
    if group.exception_type is not None and visit.site.searches_payloads(visit.access):
        name = group.exception_type.rpartition(".")[2]
        query = query_text(JobFilter(statuses=[Status.FAILED], job_types=[group.job_type], error_contains=name))
    message = None if shown.is_hidden else shown.text
    counts = None if hours is None else hours.attempts
    return GroupRow(msgspec.structs.replace(group, message=message), message, query, group.count >= COUNT_MAX, counts)


async def act_on_errors(visit: Visit) -> Response:
    """Prepare to retry or delete the failed jobs of a group; what shows their count, and asks, is the operation's page."""
    action = visit.form.get("do")
    if action not in ACTS:
        raise PageError(400, "No such action", f"Expected one of {', '.join(ACTS)}.")
    visit.must(action)
    fingerprint, task = visit.form.get(FINGERPRINT), visit.form.get("task")
    if not fingerprint or len(fingerprint) > FINGERPRINT_MAX:
        raise PageError(
            400, "No such group", f"Expected the fingerprint of a group, of 1 to {FINGERPRINT_MAX} characters."
        )
    query = query_text(JobFilter(statuses=[Status.FAILED], job_types=[check_job_type(task)]))
    wish = Wish(visit.access.user, action, {FINGERPRINT: fingerprint})
    return visit.redirect(visit.url(f"/operations/{await prepare(visit.site, wish, query=query)}"))
