"""How many jobs ended lately, by the table of jobs itself: there also where no worker counts statistics."""

from typing import Final, NamedTuple

from pqrun.job.state import Status
from pqrun.store.enqueueing import Runs

__all__ = ["Ended", "count_ended"]

COUNT_ROWS: Final = 20_000
"""Looked at by one count."""


class Ended(NamedTuple):
    """Jobs of one queue, task and state that finished lately."""

    queue: str
    job_type: str
    status: Status
    jobs: int
    duration_ms: int | None
    """On average."""


async def count_ended(session: Runs, seconds: float) -> tuple[list[Ended], bool]:
    """Count what finished in the last ``seconds``, and say whether that was cut at 20,000 jobs."""
    rows = await session.run("count_finished", seconds, COUNT_ROWS)
    found = [
        Ended(row["queue"], row["job_type"], Status(row["status"]), row["jobs"], row["duration_ms"])
        for row in rows
        if row["queue"] is not None
    ]
    return found, rows[0]["looked"] == COUNT_ROWS
