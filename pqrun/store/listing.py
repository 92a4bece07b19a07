"""Pages of a list of jobs, newest first: each statement looks at a bounded number of rows, and the whole at a bounded time.

A walk goes down the ids of the part of the table that can have such jobs, or of both; where the filter gives times of the end, down the
index of ends. The next page begins after the last job of this one, by its id alone: no page costs what lies before it.

``list_jobs`` walks on until its page is full or its time is up, on a connection of its own. ``browse`` is one look of a web page, in the
transaction of that page: so many rows at most, of which it counts those that match. Both are ``page_jobs.sql``.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Final, Literal, NamedTuple, TypeAlias

from pqrun.errors import OptionError
from pqrun.job.filter import JobFilter
from pqrun.job.listing import JobCount, JobLine, Listing
from pqrun.job.options import check_job_id
from pqrun.job.state import ACTIVE, FINISHED, Status
from pqrun.store.enqueueing import Runs
from pqrun.store.link import Link
from pqrun.store.rows import Row
from pqrun.store.selecting import PAGE_ROWS, Asked, Walk, look, sliced

__all__ = [
    "LISTED_MOST",
    "LIST_SECONDS",
    "JobPage",
    "Order",
    "browse",
    "count_jobs",
    "get_lines",
    "list_jobs",
    "orders",
]

LIST_SECONDS: Final = 10.0
"""After so long a page is given as far as it has come."""

LISTED_MOST: Final = 1_000
"""Jobs of one page."""

FIRST_ROWS: Final = 200
"""Looked at by the first statement of a walk, four times as many by each further one, up to PAGE_ROWS: most lists are short."""

LOOK_ROWS: Final = 20_000
"""Jobs that one web page looks at: some 30 ms."""

NEWEST: Final = 2**63 - 1
"""An id above all that there are."""

MADE_SPREAD: Final = timedelta(minutes=1)
"""So far ids and times of making may be out of step: both are taken when the row is inserted."""


_Run: TypeAlias = Callable[..., Awaitable[Sequence[Row]]]

Order: TypeAlias = Literal["newest", "ended", "oldest"]
"""By id downwards; by the time of the end downwards; by id upwards. There is an index for each, and none for any other."""


class JobPage(NamedTuple):
    """Some jobs that match, and how far the search has come."""

    jobs: list[JobLine]
    looked: int
    matched: int
    """Of those looked at, the ones shown and those that did not fit on the page."""
    following: int | None
    """Behind which the next page begins; None: all jobs have been looked at."""
    is_cut: bool
    """Whether the search ended before it had looked at all jobs: ``matched`` is not all there are."""
    now: datetime


class _Step(NamedTuple):
    """What one statement found."""

    ids: list[int]
    looked: int
    last: int | None
    """The id that was looked at last; None where the walk has ended."""


async def list_jobs(link: Link, wanted: JobFilter, *, limit: int, after: int | None, seconds: float) -> Listing:
    """Return a page; raises OptionError for an ``after`` from which the walk cannot go on."""
    if not 1 <= limit <= LISTED_MOST:
        raise OptionError(f"limit: expected a whole number from 1 to {LISTED_MOST}; got {limit}")
    deadline = asyncio.get_running_loop().time() + seconds
    run = partial(look, link)
    found: list[int] = []
    looked = 0
    async for step in _steps(run, wanted, after if after is None else check_job_id(after)):
        looked += step.looked
        found += step.ids
        if len(found) > limit:
            return Listing(
                jobs=tuple(await _lines(run, found[:limit])), looked=looked, following=found[limit - 1], is_cut=False
            )
        if step.last is not None and asyncio.get_running_loop().time() > deadline:
            return Listing(jobs=tuple(await _lines(run, found)), looked=looked, following=step.last, is_cut=True)
    return Listing(jobs=tuple(await _lines(run, found)), looked=looked, following=None, is_cut=False)


async def count_jobs(link: Link, wanted: JobFilter, *, most: int, seconds: float) -> JobCount:
    """Count up to ``most`` jobs, for so long at most."""
    deadline = asyncio.get_running_loop().time() + seconds
    count = 0
    async for step in _steps(partial(look, link), wanted, None):
        count += len(step.ids)
        if count > most or (step.last is not None and asyncio.get_running_loop().time() > deadline):
            return JobCount(count=min(count, most), is_exact=False)
    return JobCount(count=count, is_exact=True)


def orders(wanted: JobFilter) -> tuple[Order, ...]:
    """Return the orders in which all jobs of a filter can be gone through, the one without a wish first."""
    if wanted.ids is not None:
        return ("newest",)
    if _has_ends(wanted):
        return ("ended",)
    statuses = frozenset(Status) if wanted.statuses is None else frozenset(wanted.statuses)
    if statuses <= FINISHED:
        return "newest", "ended"
    return ("newest", "oldest") if statuses <= ACTIVE else ("newest",)


async def browse(
    session: Runs,
    wanted: JobFilter,
    *,
    after: int | None = None,
    shown: int = 50,
    rows: int = LOOK_ROWS,
    order: Order = "newest",
    now: datetime | None = None,
) -> JobPage:
    """Return the first jobs that match, of the next ``rows`` ones behind ``after``; an order that the filter has not is its own.

    ``now``: the database's clock, where the page has it already. Raises OptionError for an ``after`` from which the walk cannot go on.
    """
    clock: datetime = (await session.run("begin_selection"))[0]["now"] if now is None else now
    wish = order if order in orders(wanted) else orders(wanted)[0]
    statuses = _statuses(wanted, by_end=wish == "ended")
    asked = Asked(session.run, wanted, statuses, clock, NEWEST)
    if wanted.ids is not None or not statuses:
        chosen = _below(wanted.ids or (), after)[:rows]
        found, last = await asked.rows("ids", 0, None, rows, chosen)
        ids = sorted((row["id"] for row in found), reverse=True)[:shown]
        end = chosen[-1] if len(chosen) == rows else None
    else:
        walk: Walk = "latest" if wish == "ended" else "active" if wish == "oldest" else _part(statuses)
        place = after if after is not None else 0 if wish == "oldest" else NEWEST
        start = await _end_of(session.run, after, clock) if wish == "ended" else None
        found, last = await asked.rows(walk, place, start, rows, [], shown=shown)
        ids = [row["id"] for row in found]
        end = last["id"] if last["looked"] == rows else None
    following = ids[-1] if last["matched"] > len(ids) else end
    lines = await _lines(session.run, ids)
    return JobPage(lines, last["looked"], last["matched"], following, end is not None, clock)


async def get_lines(session: Runs, ids: Sequence[int]) -> list[JobLine]:
    """Return jobs by id, in this order; one that is gone is left out."""
    return await _lines(session.run, ids)


async def _lines(run: _Run, ids: Sequence[int]) -> list[JobLine]:
    if not ids:
        return []
    lines = {row["id"]: row for row in await run("get_lines", list(ids))}
    return [_line(lines[job_id]) for job_id in ids if job_id in lines]


_PLAIN: Final = tuple(field for field in JobLine.__struct_fields__ if field != "status")


def _line(row: Row) -> JobLine:
    return JobLine(status=Status(row["status"]), **{field: row[field] for field in _PLAIN})


def _has_ends(wanted: JobFilter) -> bool:
    return wanted.finished_after is not None or wanted.finished_before is not None


def _statuses(wanted: JobFilter, *, by_end: bool) -> frozenset[Status]:
    """Return the states that can match: only what has ended has a time of its end."""
    statuses = ACTIVE | FINISHED if wanted.statuses is None else frozenset(wanted.statuses)
    return statuses & FINISHED if by_end else statuses


def _below(ids: Iterable[int], after: int | None) -> list[int]:
    return [job_id for job_id in reversed(list(ids)) if after is None or job_id < after]


async def _steps(run: _Run, wanted: JobFilter, after: int | None) -> AsyncIterator[_Step]:
    (begin,) = await run("begin_selection")
    by_end = _has_ends(wanted)
    statuses = _statuses(wanted, by_end=by_end)
    asked = Asked(run, wanted, statuses, begin["now"], begin["last_id"])
    if wanted.ids is not None:
        for piece in sliced(_below(wanted.ids, after), PAGE_ROWS):
            rows, _ = await asked.rows("ids", 0, None, PAGE_ROWS, piece)
            yield _Step(sorted((row["id"] for row in rows), reverse=True), len(piece), piece[-1])
        return
    if not statuses:
        return
    walk: Walk = "latest" if by_end else _part(statuses)
    place: tuple[int, datetime | None] = NEWEST if after is None else after, None
    if by_end:
        place = place[0], await _end_of(run, after, begin["now"])
    size = FIRST_ROWS
    made_after = wanted.time("created_after", begin["now"])
    while True:
        rows, last = await asked.rows(walk, *place, size, [])
        is_over = last["looked"] < size or (
            made_after is not None and not by_end and last["newest"] < made_after - MADE_SPREAD
        )
        yield _Step([row["id"] for row in rows], last["looked"], None if is_over else last["id"])
        if is_over:
            return
        place = last["id"], last["finished_at"]
        size = min(4 * size, PAGE_ROWS)


def _part(statuses: Collection[Status]) -> Walk:
    if FINISHED.isdisjoint(statuses):
        return "newest active"
    return "newest finished" if ACTIVE.isdisjoint(statuses) else "newest"


async def _end_of(run: _Run, after: int | None, now: datetime) -> datetime:
    """Return when the job ended behind which the walk down the index of ends goes on."""
    if after is None:
        return now
    rows = await run("get_lines", [after])
    if not rows or rows[0]["finished_at"] is None:
        raise OptionError(
            f"after: expected a job that has ended; {after} is gone (deleted, or removed by retention) or has not: begin anew"
        )
    ended: datetime = rows[0]["finished_at"]
    return ended
