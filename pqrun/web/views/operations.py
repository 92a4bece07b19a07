"""Operations on many jobs, and the audit log of everything that was done from the pages."""

import re
from collections.abc import Mapping
from typing import Final

from starlette.responses import Response

from pqrun.errors import OptionError
from pqrun.store import operations
from pqrun.store.operations import Operation
from pqrun.store.pages import BEFORE_ALL, writing
from pqrun.web import operating
from pqrun.web.views.job import path_id
from pqrun.web.views.jobs import asked, whole_number
from pqrun.web.visit import PageError, Visit

__all__ = ["act_on_operation", "operation_data", "operations_data"]

AUDIT_SHOWN = 50
HIDDEN = "a query that you may not see"

NO_QUERY: Final = re.compile(r"[\d,]+ chosen jobs|operation \d+|all jobs")
"""What the log says instead, where there was none."""
OPERATIONS_SHOWN = 20


async def operations_data(visit: Visit) -> Mapping[str, object]:
    """The latest operations, and the latest actions; ``before=`` goes back in the log."""
    before = visit.number("before", 1, BEFORE_ALL) or BEFORE_ALL
    async with visit.reading() as session:
        found = await operations.find(session, rows=OPERATIONS_SHOWN)
        audit = await operations.page_audit(session, before, AUDIT_SHOWN + 1)
    following = audit[AUDIT_SHOWN - 1].id if len(audit) > AUDIT_SHOWN else None
    log = [row._replace(target=shown_query(visit, row.target)) if row.operation_id else row for row in audit]
    return {
        "operations": [_shown(visit, one) for one in found],
        "audit": log[:AUDIT_SHOWN],
        "next_before": following,
        "is_first": before == BEFORE_ALL,
    }


async def operation_data(visit: Visit) -> Mapping[str, object]:
    """One operation: its count, its progress, and what it left alone."""
    number = path_id(visit)
    async with visit.reading() as session:
        found = await operations.get(session, number)
    if found is None:
        raise PageError(404, "Not found", f"There is no operation {number}.")
    found = _shown(visit, found)
    may_repeat = visit.may(found.action) and found.is_over and found.query not in (None, HIDDEN)
    return {
        "operation": found,
        "may_act": visit.may(found.action),
        "may_repeat": may_repeat,
        "ids_max": operating.IDS_MAX,
    }


def _shown(visit: Visit, found: Operation) -> Operation:
    return found if found.query is None else found._replace(query=shown_query(visit, found.query))


def shown_query(visit: Visit, text: str) -> str:
    """Return a query as this visitor may see it: one about payloads quotes them."""
    if NO_QUERY.fullmatch(text):
        return text
    try:
        asked(visit, text)
    except OptionError:
        return HIDDEN
    return text


def _repeated(visit: Visit, found: Operation) -> operating.Wish:
    """Return what an operation that is over would do again; raises PageError for one that has no query, or none that he may ask."""
    if found.query is None or not found.is_over:
        raise PageError(409, "Not repeated", "Only an operation with a query, and that is over, can be repeated.")
    try:
        asked(visit, found.query)
    except OptionError as error:
        raise PageError(403, "Not allowed", str(error)) from None
    return operating.Wish(visit.access.user, found.action, found.arguments)


async def act_on_operation(visit: Visit) -> Response:
    """Start it, which needs the number of jobs that was shown; stop it; or make another of the same query, which counts and asks anew."""
    number = path_id(visit)
    async with visit.reading() as session:
        found = await operations.get(session, number)
    if found is None:
        raise PageError(404, "Not found", f"There is no operation {number}.")
    visit.must(found.action)
    match visit.form.get("do"):
        case "start":
            matched = whole_number(visit.form.get("matched"), "matched")
            if not await operating.start(visit.site, number, matched):
                raise PageError(
                    409, "Not started", "It is at work or over already, or not the one that you saw. Look at it again."
                )
        case "repeat":
            again = await operating.prepare(visit.site, _repeated(visit, found), query=found.query)
            return visit.redirect(visit.url(f"/operations/{again}"))
        case "stop":
            async with writing(await visit.site.store()) as session:
                await operations.stop(session, number, visit.access.user)
        case _:
            raise PageError(400, "No such action", "Expected start, stop or repeat.")
    return visit.redirect(visit.url(f"/operations/{number}"))
