"""Reports of progress become writes, fenced by claim; how they are read, and what becomes of those whose jobs are gone."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from pqrun.job.progress import Progress, Report
from pqrun.job.record import Claim
from pqrun.job.state import Status
from pqrun.store.enqueueing import Runs
from pqrun.store.rows import Row

__all__ = ["Look", "Swept", "find_progress", "report", "sweep"]

R = TypeVar("R", bound=Report)

SWEEP_ROWS: Final = 1_000
"""Reports looked at by one statement of the sweep: some milliseconds."""

REPORT_SECONDS: Final = 5.0
"""How long a write of reports may take before its connection is given up, as renewing."""


class Look(NamedTuple):
    """A job that exists, and its last report."""

    status: Status
    progress: Progress | None


class Swept(NamedTuple):
    """A piece of the sweep: where the next begins, and how many reports were looked at and deleted."""

    last_id: int | None
    looked: int
    deleted: int


async def report(session: Runs, reports: Mapping[Claim, Report]) -> set[Claim]:
    """Write the reports of claims that hold, in one statement; return those claims whose rows were locked: to be tried again."""
    batch = sorted(reports.items(), key=lambda item: item[0].job_id)
    rows = await session.run(
        "report_progress",
        [claim.job_id for claim, _ in batch],
        [claim.claim_id for claim, _ in batch],
        [one.value for _, one in batch],
        [one.message for _, one in batch],
        timeout=REPORT_SECONDS,
    )
    held: dict[bool, set[Claim]] = {True: set(), False: set()}
    for row in rows:
        held[row["is_written"]].add(Claim(row["id"], row["claim_id"]))
    return held[False] - held[True]


async def find_progress(session: Runs, job_ids: Sequence[int], *, timeout: float | None = None) -> dict[int, Look]:
    """Return state and last report of those of these jobs that exist."""
    rows = await session.run("find_progress", job_ids, timeout=timeout)
    return {row["id"]: Look(Status(row["status"]), _progress(row)) for row in rows}


def _progress(row: Row) -> Progress | None:
    if row["value"] is None:
        return None
    return Progress(row["value"], row["message"], row["attempt"], row["reported_at"])


async def sweep(session: Runs, after: int) -> Swept:
    """Delete those of the next SWEEP_ROWS reports behind this id whose jobs are gone."""
    row = (await session.run("sweep_progress", after, SWEEP_ROWS))[0]
    return Swept(row["last_id"], row["looked"], row["deleted"])
