"""Operations on many jobs, and the audit log of everything that was done from the pages."""

from collections.abc import Mapping

from starlette.responses import Response

from pqrun.store import operations
from pqrun.store.pages import BEFORE_ALL, writing
from pqrun.web import operating
from pqrun.web.views.job import path_id
from pqrun.web.views.jobs import whole_number
from pqrun.web.visit import PageError, Visit

__all__ = ["act_on_operation", "operation_data", "operations_data"]

AUDIT_SHOWN = 50
OPERATIONS_SHOWN = 20


async def operations_data(visit: Visit) -> Mapping[str, object]:
    """The latest operations, and the latest actions; ``before=`` goes back in the log."""
    before = visit.number("before", 1, BEFORE_ALL) or BEFORE_ALL
    async with visit.reading() as session:
        found = await operations.find(session, rows=OPERATIONS_SHOWN)
        audit = await operations.page_audit(session, before, AUDIT_SHOWN + 1)
    following = audit[AUDIT_SHOWN - 1].id if len(audit) > AUDIT_SHOWN else None
    return {
        "operations": found,
        "audit": audit[:AUDIT_SHOWN],
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
    return {"operation": found, "may_act": visit.may(found.action), "ids_max": operating.IDS_MAX}


async def act_on_operation(visit: Visit) -> Response:
    """Start it, which needs the number of jobs that was shown, or stop it."""
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
        case "stop":
            async with writing(await visit.site.store()) as session:
                await operations.stop(session, number, visit.access.user)
        case _:
            raise PageError(400, "No such action", "Expected start or stop.")
    return visit.redirect(visit.url(f"/operations/{number}"))
