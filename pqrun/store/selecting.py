"""Ids of the jobs that a filter means, page by page: each page is a short statement without locks, and no snapshot outlives it.

Where an index leads to them (ids; ``finished_after`` for finished jobs) only those rows are read. Else each part of the table is walked in
the order of ids, so many rows a page, whatever the filter. Jobs that are deferred after the walk began are not looked at.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Final, Literal, NamedTuple, TypeAlias, TypeVar

from asyncpg import Record

from pqrun.errors import StoreError
from pqrun.job.filter import JobFilter
from pqrun.job.state import ACTIVE, FINISHED, Status
from pqrun.store.link import PLANNER_SETTINGS, Link
from pqrun.store.rows import Row

__all__ = [
    "LOCK_NOT_AVAILABLE",
    "LOCK_SECONDS",
    "PIECE_ROWS",
    "SELECT_SETTINGS",
    "Page",
    "like_pattern",
    "look",
    "pages",
    "sliced",
]

T = TypeVar("T")

PAGE_ROWS: Final = 5_000
"""Rows looked at by one statement: some 20 ms."""

PIECE_ROWS: Final = 500
"""Jobs that one transaction changes."""

LOCK_SECONDS: Final = 0.5
"""How long a piece waits for a dedupe key that another transaction is taking."""

LOCK_NOT_AVAILABLE: Final = "55P03"

LOOK_TRIES: Final = 20
"""How often a look that meets a lock on the whole table, such as a migration's, is tried: ten seconds."""

SELECT_SETTINGS: Final = f"{PLANNER_SETTINGS}; SET lock_timeout = {LOCK_SECONDS * 1000:.0f}"

Walk: TypeAlias = Literal[
    "active", "finished", "finished_at", "ids", "newest", "newest active", "newest finished", "latest"
]
"""See page_jobs.sql."""


class Page(NamedTuple):
    """Ids of jobs that match, and how many were looked at for them."""

    ids: list[int]
    looked: int


async def look(link: Link, name: str, *arguments: object) -> list[Record]:
    """Run a statement that only reads: it meets no locks of rows, and waits longer for one of the table than what changes rows may."""
    for _ in range(LOOK_TRIES - 1):
        try:
            return await link.run(name, *arguments)
        except StoreError as error:
            if error.sqlstate != LOCK_NOT_AVAILABLE:
                raise
    return await link.run(name, *arguments)


async def pages(
    link: Link, wanted: JobFilter, statuses: Collection[Status], *, active_first: bool = False
) -> AsyncIterator[Page]:
    """Go through the jobs that match and are in one of these states.

    What is done to jobs of one page may move them to the part of the table that is walked later: ``active_first`` says which that is.
    """
    (begin,) = await look(link, "begin_selection")
    asked = Asked(partial(look, link), wanted, statuses, begin["now"], begin["last_id"])
    if wanted.ids is not None:
        for piece in sliced(list(wanted.ids), PAGE_ROWS):
            page, _ = await asked.page("ids", 0, None, piece)
            yield Page(page.ids, len(piece))
        return
    finished: Walk = "finished" if wanted.finished_after is None else "finished_at"
    parts: list[tuple[Walk, frozenset[Status]]] = [("active", ACTIVE), (finished, FINISHED)]
    if wanted.finished_after is not None or wanted.finished_before is not None:
        del parts[0]
    for walk, part in parts if active_first else reversed(parts):
        if part.isdisjoint(statuses):
            continue
        after: tuple[int, datetime | None] | None = 0, wanted.time("finished_after", begin["now"])
        while after is not None:
            page, after = await asked.page(walk, *after, [])
            yield page


class Asked:
    """The statement with the arguments that are the same for each page; ``run``: ``look`` at a link, or a session's own."""

    def __init__(
        self,
        run: Callable[..., Awaitable[Sequence[Row]]],
        wanted: JobFilter,
        statuses: Collection[Status],
        now: datetime,
        last_id: int,
    ) -> None:
        self._run = run
        self._last_id = last_id
        self._now = now
        self._names = (
            sorted(statuses),
            _listed(wanted.job_types),
            _listed(wanted.queues),
            _listed(wanted.priorities),
            _listed(wanted.dedupe_keys),
            wanted.error_contains,
            wanted.payload_json,
        )
        self._more = (
            _listed(wanted.job_type_patterns and [like_pattern(one) for one in wanted.job_type_patterns]),
            _listed(wanted.workers),
            wanted.attempts_min,
            wanted.attempts_max,
        )
        self._others = wanted.time("created_after", now), wanted.time("created_before", now)
        self._finished = wanted.time("finished_after", now), wanted.time("finished_before", now)
        self._due = wanted.time("due_after", now), wanted.time("due_before", now)

    async def page(
        self, walk: Walk, after: int, after_time: datetime | None, ids: Sequence[int]
    ) -> tuple[Page, tuple[int, datetime | None] | None]:
        """Return a page and where the next one begins, None at the end."""
        rows, last = await self.rows(walk, after, after_time, PAGE_ROWS, ids)
        following = (last["id"], last["finished_at"]) if last["looked"] == PAGE_ROWS else None
        return Page([row["id"] for row in rows], last["looked"]), following

    async def rows(
        self,
        walk: Walk,
        after: int,
        after_time: datetime | None,
        size: int,
        ids: Sequence[int],
        *,
        shown: int | None = None,
    ) -> tuple[list[Row], Row]:
        """Look at so many rows; return those that match (the first ``shown`` of them), and the one that closes the answer."""
        start, end = self._finished
        if walk in ("finished_at", "latest"):  # what ends from now on would lead the walk on and on
            end = self._now if end is None else min(end, self._now)
        place = walk, after, self._last_id, after_time, size, ids
        times = *self._others, start, end, *self._due
        *rows, last = await self._run("page_jobs", *place, *self._names, *times, *self._more, shown)
        return rows, last


def like_pattern(text: str) -> str:
    """Return a name with ``*`` for any text as a pattern of LIKE."""
    return "".join("%" if letter == "*" else f"\\{letter}" if letter in "\\%_" else letter for letter in text)


def _listed(values: Collection[T] | None) -> list[T] | None:
    return None if values is None else list(values)


def sliced(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Cut into pieces of at most so many."""
    for start in range(0, len(items), size):
        yield items[start : start + size]
