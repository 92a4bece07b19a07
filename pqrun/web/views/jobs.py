"""The list of jobs: a query, what it finds, and actions on what was chosen or on all that match."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import msgspec
from starlette.responses import Response

from pqrun.errors import OptionError, QueryError
from pqrun.job.filter import TIMES, JobFilter
from pqrun.job.listing import JobLine
from pqrun.job.query import parse_query, query_text
from pqrun.store import operations
from pqrun.store.listing import JobPage, Order, browse, orders
from pqrun.store.pages import BEFORE_ALL
from pqrun.web.operating import Wish, prepare, start
from pqrun.web.rendering import JOB_COLUMNS
from pqrun.web.shown import show_error
from pqrun.web.visit import PageError, Visit

__all__ = ["Chip", "act_on_jobs", "asked", "jobs_data", "listed"]

SHOWN_DEFAULT: Final = 50
SHOWN_MOST: Final = 200
CHOSEN_MOST: Final = 1_000


class Named(NamedTuple):
    """A query with a name."""

    name: str
    query: str
    sort: Order = "newest"


QUICK: Final = (
    Named("All", ""),
    Named("Failed", "state:failed"),
    Named("Failed last hour", "state:failed since:1h"),
    Named("Retrying", "state:scheduled,ready attempts:>0"),
    Named("Running", "state:running"),
    Named("Running longest", "state:running", "oldest"),
    Named("Ready", "state:ready"),
    Named("Waiting longest", "state:ready", "oldest"),
    Named("Scheduled", "state:scheduled"),
    Named("Done", "state:done"),
    Named("Cancelled", "state:cancelled"),
)
"""Named queries that stand above every list."""

SORTS: Final[Mapping[Order, str]] = {
    "newest": "newest first",
    "ended": "latest end first",
    "oldest": "oldest first",
}

SHOWN_COLUMNS: Final = ("state", "task", "queue", "attempts", "age", "took", "what")

BULK: Final = ("retry", "cancel", "move", "prioritize", "delete")

SECRET_REFUSED: Final = "payload, error and dedupe: you may not search in what you may not see"  # noqa: S105  # no password


class Chip(NamedTuple):
    """One condition of the query, and the query without it."""

    text: str
    without: str


def asked(visit: Visit, text: str) -> JobFilter:
    """Return what a query means; raises QueryError, and for what the visitor may not search, OptionError."""
    wanted = parse_query(text)
    is_secret = wanted.payload is not None or wanted.error_contains is not None or wanted.dedupe_keys is not None
    if is_secret and not visit.site.searches_payloads(visit.access):
        raise OptionError(SECRET_REFUSED)
    return wanted


async def jobs_data(visit: Visit) -> Mapping[str, object]:
    """``?q=`` the query, ``sort=`` its order, ``before=`` behind which job the page begins, ``show=`` rows, ``col=`` a column (repeated).

    ``did=``: an operation to tell of.
    """
    text = visit.query.get("q", "").strip()
    shown = visit.number("show", 1, SHOWN_MOST) or SHOWN_DEFAULT
    before = visit.number("before", 1, BEFORE_ALL)
    did = visit.number("did", 1, BEFORE_ALL)
    page: JobPage | None = None
    problem: str | None = None
    wanted = JobFilter()
    async with visit.reading() as session:
        try:
            wanted = asked(visit, text)
            page = listed(visit, await browse(session, wanted, after=before, shown=shown, order=_wish(visit)))
        except OptionError as error:
            problem = str(error)
        done = None if did is None else await operations.get(session, did)
    given = orders(wanted)
    return {
        "q": text,
        "problem": problem,
        "page": page,
        "chips": [] if problem else list(_chips(wanted)),
        "before": before,
        "did": done,
        "quick": QUICK,
        "sort": _wish(visit) if _wish(visit) in given else given[0],
        "sorts": [(name, SORTS[name]) for name in given],
        "is_unsorted": _wish(visit) not in given and bool(visit.query.get("sort")),
        "columns": chosen_columns(visit),
        "is_column_chosen": "col" in visit.query,
        "bulk": [action for action in BULK if visit.may(action)],
    }


def _wish(visit: Visit) -> Order:
    match visit.query.get("sort"):
        case "ended":
            return "ended"
        case "oldest":
            return "oldest"
        case _:
            return "newest"


def chosen_columns(visit: Visit) -> list[str]:
    """Return the columns that the URL names, in the order of the table; those of every day where it names none that there is."""
    given = visit.request.query_params.getlist("col")
    return [name for name in JOB_COLUMNS if name in given] or list(SHOWN_COLUMNS)


def listed(visit: Visit, page: JobPage) -> JobPage:
    """Leave out of a page what the visitor may not see."""
    return page._replace(jobs=shown_lines(visit, page.jobs))


def shown_lines(visit: Visit, jobs: Sequence[JobLine]) -> list[JobLine]:
    """Leave out of rows what the visitor may not see; of an error its one line stays."""
    return [
        msgspec.structs.replace(
            job,
            last_error=show_error(visit, job.job_type, job.error_summary).text,
            dedupe_key=job.dedupe_key if visit.sees_payloads else None,
        )
        for job in jobs
    ]


_GROUPS: Final = (
    ("statuses",),
    ("job_types", "job_type_patterns"),
    ("queues",),
    ("ids",),
    ("priorities",),
    ("dedupe_keys",),
    ("workers",),
    ("attempts_min", "attempts_max"),
    ("error_contains",),
    ("payload",),
    *((name,) for name in TIMES),
)


def _chips(wanted: JobFilter) -> Iterator[Chip]:
    for group in _GROUPS:
        given = {name: getattr(wanted, name) for name in group}
        if any(value is not None for value in given.values()):
            yield Chip(query_text(JobFilter(**given)), query_text(replace(wanted, **dict.fromkeys(group))))


async def act_on_jobs(visit: Visit) -> Response:
    """Do it to the chosen jobs at once, or prepare it for all that match: what shows the count, and asks, is the operation's page."""
    form = visit.form
    action = form.get("do")
    if action not in BULK:
        raise PageError(400, "No such action", f"Expected one of {', '.join(BULK)}.")
    visit.must(action)
    wish = Wish(visit.access.user, action, _arguments(visit, action))
    text = form.get("q")
    if form.get("scope") == "all":
        try:
            asked(visit, text)
        except QueryError as error:
            raise PageError(400, "The query cannot be read", str(error)) from None
        number = await prepare(visit.site, wish, query=text)
        return visit.redirect(visit.url(f"/operations/{number}"))
    ids = _chosen(visit)
    number = await prepare(visit.site, wish, ids=ids)
    if action == "delete":  # asks first
        return visit.redirect(visit.url(f"/operations/{number}"))
    await start(visit.site, number, len(ids))
    back = visit.url("/jobs", q=text, before=form.get("before"), sort=form.get("sort"), col=form.all("col"), did=number)
    return visit.redirect(back)


def _chosen(visit: Visit) -> list[int]:
    texts = visit.form.all("id")
    if not texts:
        raise PageError(400, "No jobs were chosen", "Tick the jobs first, or use the buttons for all that match.")
    if len(texts) > CHOSEN_MOST or not all(text.isascii() and text.isdigit() and len(text) < 19 for text in texts):
        raise PageError(400, "Not ids", f"Expected ids of jobs, {CHOSEN_MOST:,} at most.")
    return sorted({int(text) for text in texts})


def _arguments(visit: Visit, action: str) -> dict[str, object]:
    match action:
        case "move":
            return {"queue": visit.form.get("queue")}
        case "prioritize":
            return {"priority": whole_number(visit.form.get("priority"), "priority")}
        case _:
            return {}


def whole_number(text: str, name: str) -> int:
    """Read a number of a form; raises PageError."""
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text)
    if not (digits.isascii() and digits.isdigit() and len(digits) < 19):
        raise PageError(422, "Not a number", f"{name}: expected a whole number.")
    return sign * int(digits)
