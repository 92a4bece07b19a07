"""What a check before a deploy reads: the jobs that have not finished, piece by piece, and the shapes that workers have noted.

Everything here is read only and without locks, and each piece is a statement of its own: a check of a million jobs holds no snapshot that
vacuum would have to wait for, and its memory is bounded by one piece.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

from pqrun.store.link import PLANNER_SETTINGS, Link

__all__ = [
    "CHECK_SETTINGS",
    "Counted",
    "Noted",
    "Page",
    "Stored",
    "count_waiting",
    "find_shapes",
    "find_waiting",
    "note_shapes",
    "page_waiting",
]

CHECK_SETTINGS: Final = f"{PLANNER_SETTINGS}; SET default_transaction_read_only = on; SET transaction_read_only = on"
"""The second for the transaction that has begun already, where a pooler lends each its own connection."""

COUNT_ROWS = 20_000
"""Rows counted by one statement: some 20 ms."""

PAGE_ROWS = 5_000
"""Rows of one piece, with payloads."""

PAGE_BYTES = 4_000_000
"""Of payloads in one piece, as PostgreSQL stores them: one that passes this is the last of its piece."""


class Counted(NamedTuple):
    """Jobs of one task, version and queue in one piece, and the ids of some."""

    job_type: str
    version: int
    queue: str
    jobs: int
    ids: list[int]


class Stored(NamedTuple):
    """A job that has not finished, as far as its payload goes."""

    id: int
    job_type: str
    version: int
    payload: str


class Page(NamedTuple):
    """A piece of jobs, how many were looked at for it, and the id to go on after; None at the end."""

    jobs: list[Stored]
    looked: int
    last_id: int | None


class Noted(NamedTuple):
    """A shape as some worker has noted it; JSON."""

    job_type: str
    version: int
    shape: str


async def count_waiting(link: Link, after: int, *, ids: int) -> tuple[list[Counted], int | None]:
    """Count a piece of the jobs behind an id, with up to ``ids`` ids of each kind; return the id to go on after, None at the end."""
    rows = await link.run("count_waiting", after, COUNT_ROWS, ids)
    counted = [Counted(row["job_type"], row["payload_version"], row["queue"], row["jobs"], row["ids"]) for row in rows]
    return counted, max((row["last_id"] for row in rows), default=None)


async def page_waiting(link: Link, after: int, last: int, job_types: Collection[str]) -> Page:
    """Read a piece of the jobs between two ids, the payloads of these tasks only."""
    *rows, end = await link.run("page_waiting", after, last, PAGE_ROWS, PAGE_BYTES, list(job_types))
    return Page([Stored(*row) for row in rows], end["payload_version"], end["id"])


async def find_waiting(link: Link, ids: Sequence[int]) -> list[Stored]:
    """Read these jobs; those that have finished meanwhile are left out."""
    return [Stored(*row) for row in await link.run("find_waiting", ids)]


async def find_shapes(link: Link, job_types: Collection[str]) -> list[Noted]:
    """Return what workers have noted of these tasks."""
    return [Noted(*row) for row in await link.run("find_shapes", list(job_types))]


async def note_shapes(link: Link, shapes: Iterable[Noted]) -> None:
    """Keep the shapes of a worker's tasks; what is kept already is not written again."""
    noted = list(shapes)
    await link.run(
        "note_shapes", [one.job_type for one in noted], [one.version for one in noted], [one.shape for one in noted]
    )
