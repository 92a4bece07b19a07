"""Pages of a list of jobs, newest first: each statement looks at a bounded number of rows, and the whole at a bounded time.

A walk goes down the ids of the part of the table that can have such jobs, or of both; where the filter gives times of the end, down the
index of ends. The next page begins after the last job of this one, by its id alone: no page costs what lies before it.
"""

import asyncio
from collections.abc import AsyncIterator, Collection
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from pqrun.errors import OptionError
from pqrun.job.filter import JobFilter
from pqrun.job.listing import JobCount, JobLine, Listing
from pqrun.job.options import check_job_id
from pqrun.job.state import ACTIVE, FINISHED, Status
from pqrun.store.link import Link
from pqrun.store.selecting import PAGE_ROWS, Asked, Walk, look, sliced

__all__ = ["LISTED_MOST", "LIST_SECONDS", "count_jobs", "list_jobs"]

LIST_SECONDS: Final = 10.0
"""After so long a page is given as far as it has come."""

LISTED_MOST: Final = 1_000
"""Jobs of one page."""

FIRST_ROWS: Final = 200
"""Looked at by the first statement of a walk, four times as many by each further one, up to PAGE_ROWS: most lists are short."""

NEWEST: Final = 2**63 - 1

MADE_SPREAD: Final = timedelta(minutes=1)
"""So far ids and times of making may be out of step: both are taken when the row is inserted."""


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
    found: list[int] = []
    looked = 0
    async for step in _steps(link, wanted, after if after is None else check_job_id(after)):
        looked += step.looked
        found += step.ids
        if len(found) > limit:
            return Listing(
                jobs=await _lines(link, found[:limit]), looked=looked, following=found[limit - 1], is_cut=False
            )
        if step.last is not None and asyncio.get_running_loop().time() > deadline:
            return Listing(jobs=await _lines(link, found), looked=looked, following=step.last, is_cut=True)
    return Listing(jobs=await _lines(link, found), looked=looked, following=None, is_cut=False)


async def count_jobs(link: Link, wanted: JobFilter, *, most: int, seconds: float) -> JobCount:
    """Count up to ``most`` jobs, for so long at most."""
    deadline = asyncio.get_running_loop().time() + seconds
    count = 0
    async for step in _steps(link, wanted, None):
        count += len(step.ids)
        if count > most or (step.last is not None and asyncio.get_running_loop().time() > deadline):
            return JobCount(count=min(count, most), is_exact=False)
    return JobCount(count=count, is_exact=True)


async def _lines(link: Link, ids: list[int]) -> tuple[JobLine, ...]:
    """Return the jobs in this order; one that was deleted meanwhile is left out."""
    if not ids:
        return ()
    rows = {row["id"]: row for row in await look(link, "get_lines", ids)}
    return tuple(
        JobLine(**{**rows[job_id], "status": Status(rows[job_id]["status"])}) for job_id in ids if job_id in rows
    )


async def _steps(link: Link, wanted: JobFilter, after: int | None) -> AsyncIterator[_Step]:
    (begin,) = await look(link, "begin_selection")
    statuses = ACTIVE | FINISHED if wanted.statuses is None else frozenset(wanted.statuses)
    by_end = wanted.finished_after is not None or wanted.finished_before is not None
    if by_end:
        statuses &= FINISHED
    asked = Asked(link, wanted, statuses, begin["now"], begin["last_id"])
    if wanted.ids is not None:
        chosen = [job_id for job_id in reversed(list(wanted.ids)) if after is None or job_id < after]
        for piece in sliced(chosen, PAGE_ROWS):
            rows, _ = await asked.rows("ids", 0, None, PAGE_ROWS, piece)
            yield _Step(sorted((row["id"] for row in rows), reverse=True), len(piece), piece[-1])
        return
    if not statuses:
        return
    walk: Walk = "latest" if by_end else _part(statuses)
    place: tuple[int, datetime | None] = NEWEST if after is None else after, None
    if by_end:
        place = place[0], await _end_of(link, after, begin["now"])
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


async def _end_of(link: Link, after: int | None, now: datetime) -> datetime:
    """Return when the job ended behind which the walk down the index of ends goes on."""
    if after is None:
        return now
    rows = await look(link, "get_lines", [after])
    if not rows or rows[0]["finished_at"] is None:
        raise OptionError(
            f"after: expected a job that has ended; {after} is gone (deleted, or removed by retention) or has not: begin anew"
        )
    ended: datetime = rows[0]["finished_at"]
    return ended
