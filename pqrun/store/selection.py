"""``Selection``: jobs chosen by ids or by a filter, and what can be done to all of them."""

from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from typing import TypeAlias, TypedDict

from typing_extensions import Unpack

from pqrun.errors import ArgumentsError, OptionError, StoreError
from pqrun.job.bulk import (
    Action,
    BulkProgress,
    BulkReport,
    cancelling,
    deleting,
    moving,
    prioritizing,
    retrying,
)
from pqrun.job.filter import JobFilter
from pqrun.job.options import check_job_id
from pqrun.job.record import Job
from pqrun.job.state import ACTIVE, FINISHED, Status
from pqrun.store.bulk import BulkRun
from pqrun.store.link import Link
from pqrun.store.rows import stored_job
from pqrun.store.selecting import PIECE_ROWS, Page, look, pages, sliced

__all__ = ["FIND_LIMIT", "BulkOptions", "Selection"]

FIND_LIMIT = 1_000
"""Jobs that ``find`` returns at most, unless it is told else."""

ALL = ACTIVE | FINISHED

Tell: TypeAlias = Callable[[BulkProgress], None]


class BulkOptions(TypedDict, total=False):
    """What all actions on a selection take."""

    dry_run: bool
    """Change nothing, and report what would be done by what is seen now; False."""
    on_progress: Callable[[BulkProgress], None]
    """Is told after each piece, in the event loop that does the work."""


class Selection:
    """Jobs chosen by ids, or by a ``JobFilter``; made by ``jobs.select(...)`` and ``store.select(...)``. Nothing is read before a call.

    An action works in pieces of 500 jobs, each a short transaction of its own: what was done stays done, whatever comes after it. It
    returns a ``BulkReport``, which counts the jobs to which nothing was done, and says why. Of ids each is reported, unknown ones too. A
    filter that names no ``statuses`` means, for each action, those that it can be about: to cancel and to move, SCHEDULED, READY and
    RUNNING; to retry, FAILED and CANCELLED; to delete, finished ones. Jobs that another transaction holds are tried again at the end,
    for five seconds, and then reported as busy. All raise OptionError, NotOpenError, SchemaError and StoreError.
    """

    def __init__(self, open_link: Callable[[], Link], which: JobFilter | Iterable[int], limit: int | None) -> None:
        self._open_link = open_link
        self._which: JobFilter | tuple[int, ...] = which if isinstance(which, JobFilter) else _checked_ids(which)
        self._limit = _checked_limit(limit)

    async def count(self) -> int:
        """Return how many jobs there are that match, in whatever state."""
        count = 0
        async with self._linked() as link:
            async for page in self._pages(link, ALL):
                count += len(page.ids)
        return count

    async def find(self, limit: int = FIND_LIMIT) -> list[Job]:
        """Return the jobs themselves, at most ``limit``; ids that there are no jobs of are left out.

        By a filter the finished ones come first; each part in the order of ids, or of their end where ``finished_after`` is given.
        """
        _checked_limit(limit)
        jobs: list[Job] = []
        async with self._linked() as link:
            async for page in self._pages(link, ALL):
                for piece in sliced(page.ids[: limit - len(jobs)], PIECE_ROWS):
                    found = {row["id"]: stored_job(row) for row in await look(link, "get_many", piece)}
                    jobs += [found[job_id] for job_id in piece if job_id in found]
                if len(jobs) >= limit:
                    break
        return jobs

    async def cancel(self, **options: Unpack[BulkOptions]) -> BulkReport:
        """Cancel them: at once those that have not started; the workers of running ones are asked to stop them (``requested``)."""
        return await self._act(cancelling(), **options)

    async def retry(self, *, force: bool = False, **options: Unpack[BulkOptions]) -> BulkReport:
        """Make FAILED and CANCELLED ones READY again, no attempt counted; with ``force`` DONE ones too, where the filter names them.

        Refused where another active job has the dedupe key, which the refusal names; of several with one key the first is retried.
        """
        return await self._act(retrying(force=force), **options)

    async def delete(self, *, waiting: bool = False, **options: Unpack[BulkOptions]) -> BulkReport:
        """Delete finished ones for good; with ``waiting`` those too that have not started. Running ones never."""
        return await self._act(deleting(waiting=waiting), **options)

    async def move(self, queue: str, **options: Unpack[BulkOptions]) -> BulkReport:
        """Move those that have not started to another queue, behind the jobs that wait there with the same priority."""
        return await self._act(moving(queue), **options)

    async def prioritize(self, priority: int, **options: Unpack[BulkOptions]) -> BulkReport:
        """Give those that have not started another priority, a smallint, higher first; behind those that wait with the same."""
        return await self._act(prioritizing(priority), **options)

    async def _act(self, action: Action, *, dry_run: bool = False, on_progress: Tell = lambda _: None) -> BulkReport:
        chosen = self._chosen(action.among)
        async with self._linked() as link:
            run = BulkRun(link, action, chosen, dry_run=dry_run, on_progress=on_progress)
            try:
                looked = 0
                async for page in self._pages(link, chosen, active_first=action.name == "retry"):
                    looked += page.looked
                    await run.take(page.ids, looked=looked, total=self._total)
                return await run.finish()
            except StoreError as error:
                error.add_note(
                    f"{action.name}: it had been done to {run.done:,} jobs, which stays; the rest is as it was"
                )
                raise

    def _chosen(self, among: Collection[Status]) -> Collection[Status]:
        if not isinstance(self._which, JobFilter):
            return ALL
        return among if self._which.statuses is None else self._which.statuses

    @property
    def _total(self) -> int | None:
        ids = self._which.ids if isinstance(self._which, JobFilter) else self._which
        return None if ids is None else len(ids)

    async def _pages(
        self, link: Link, chosen: Collection[Status], *, active_first: bool = False
    ) -> AsyncIterator[Page]:
        """Up to the limit."""
        left = self._limit
        if not isinstance(self._which, JobFilter):
            for piece in sliced(self._which[:left], PIECE_ROWS):
                yield Page(list(piece), len(piece))
            return
        statuses = chosen if self._which.statuses is None else self._which.statuses
        async for page in pages(link, self._which, statuses, active_first=active_first):
            if left is None:
                yield page
                continue
            yield Page(page.ids[:left], page.looked)
            left -= min(left, len(page.ids))
            if not left:
                return

    @asynccontextmanager
    async def _linked(self) -> AsyncIterator[Link]:
        link = self._open_link()
        try:
            yield link
        finally:
            await link.close()


def _checked_ids(which: object) -> tuple[int, ...]:
    if isinstance(which, str | bytes) or not isinstance(which, Iterable):
        raise ArgumentsError(f"select: expected a JobFilter or ids of jobs; got {type(which).__name__}")
    return tuple(sorted({check_job_id(job_id) for job_id in which}))


def _checked_limit(limit: object) -> int | None:
    if limit is None or (isinstance(limit, int) and not isinstance(limit, bool) and limit >= 1):
        return limit
    raise OptionError(f"limit: expected a whole number from 1, or None for all; got {limit!r}")
