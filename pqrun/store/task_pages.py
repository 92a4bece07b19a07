"""What the page of one task reads of the history: its slowest jobs of late, and those that failed last. See ``pqrun.store.pages``."""

from datetime import datetime
from typing import Final, NamedTuple

from pqrun.job.listing import JobLine
from pqrun.store.enqueueing import Runs
from pqrun.store.listing import get_lines

__all__ = ["ENDED_LOOKED", "Notable", "find_notable"]

ENDED_LOOKED: Final = 20_000
"""Jobs of all tasks that ended last, which are looked at: some 20 ms."""


class Notable(NamedTuple):
    """What stands out of a task among the jobs that ended last."""

    slowest: list[JobLine]
    """By how long the last attempt ran, the longest first; without those that never ran."""
    failed: list[JobLine]
    """The last that failed first."""
    looked: int
    """Jobs of all tasks."""
    since: datetime | None
    """When the first of those looked at ended; None: no job has."""
    is_cut: bool
    """Whether jobs that ended earlier may have been left out."""


async def find_notable(session: Runs, job_type: str, *, slowest: int, failed: int) -> Notable:
    """Return so many of each kind at most, of the 20,000 jobs that ended last."""
    rows = await session.run("find_notable", job_type, ENDED_LOOKED, slowest, failed)
    ids = {kind: [row["id"] for row in rows if row["kind"] == kind] for kind in ("slowest", "failed")}
    lines = {line.id: line for line in await get_lines(session, sorted({*ids["slowest"], *ids["failed"]}))}
    found = {kind: [lines[job_id] for job_id in of_kind if job_id in lines] for kind, of_kind in ids.items()}
    looked = rows[-1]["looked"]
    return Notable(found["slowest"], found["failed"], looked, rows[-1]["since"], looked == ENDED_LOOKED)
