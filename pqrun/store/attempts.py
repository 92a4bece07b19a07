"""The attempts that are kept, read: of one job, and in groups of the same error; and removed where their job is gone."""

from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, TypedDict

from pqrun.job.attempts import COUNT_MAX, ERRORS, ErrorGroup, JobAttempt, check_groups
from pqrun.job.failure import FailureKind
from pqrun.job.filter import checked_time
from pqrun.job.options import check_job_id, check_job_type
from pqrun.store.enqueueing import Runs
from pqrun.store.intervening import Run
from pqrun.store.link import Link
from pqrun.store.rows import Row

__all__ = [
    "GroupJobs",
    "GroupOptions",
    "Hours",
    "PrunedAttempts",
    "count_group_hours",
    "find_attempts",
    "find_error_groups",
    "group_jobs",
    "keep_group_jobs",
    "prune_attempts",
]

GROUPS_LOOKED: Final = 5_000
"""Groups that are looked at: some 0.1 s."""

NEWEST: Final = 2**63 - 1
"""An id above all that there are."""

PRUNE_ROWS: Final = 2_000
"""Attempts that one statement looks at: some milliseconds."""


HOURS_SHOWN: Final = 24

HOUR_ROWS: Final = 200
"""Attempts of each group that are looked at for its hours: some 10 ms for fifty groups."""

GROUP_ROWS: Final = 5_000
"""Attempts of a group that one statement looks at for their jobs: some 30 ms."""


class Hours(NamedTuple):
    """Attempts of a group by hour, the oldest hour first; None: before the attempts that were looked at."""

    attempts: Sequence[int | None]


class GroupJobs(NamedTuple):
    """A piece of the jobs of a group, and how many attempts were looked at for it."""

    ids: list[int]
    looked: int


class GroupOptions(TypedDict, total=False):
    """What ``error_groups`` takes."""

    job_type: str | None
    """Of this task only."""
    kinds: Collection[FailureKind]
    """Of these kinds; errors, timeouts and losses."""
    since: datetime | timedelta | None
    """With an attempt since then: an aware datetime, or a timedelta for so long ago."""
    limit: int
    """So many at most, from 1 to 1,000; 50."""
    before: int | None
    """The page after the group whose ``attempt_id`` this is."""


class PrunedAttempts(NamedTuple):
    """A piece: whether it was this worker's turn, how many rows went, and the job to go on after, None at the end."""

    is_mine: bool
    deleted: int
    last_job_id: int | None


async def find_attempts(run: Run, job_id: int) -> list[JobAttempt]:
    """Return the kept attempts of a job, newest last."""
    return [_attempt(row) for row in await run("find_attempts", check_job_id(job_id))]


def _attempt(row: Row) -> JobAttempt:
    return JobAttempt(**_values(row, JobAttempt.__struct_fields__))


async def find_error_groups(
    run: Run,
    *,
    job_type: str | None = None,
    kinds: Collection[FailureKind] = ERRORS,
    since: datetime | timedelta | None = None,
    limit: int = 50,
    before: int | None = None,
) -> list[ErrorGroup]:
    """Return groups of attempts, the one with the newest attempt first; raises OptionError."""
    names, count = check_groups(kinds, limit)
    task = None if job_type is None else check_job_type(job_type)
    start = checked_time("since", since)
    age = start.total_seconds() if isinstance(start, timedelta) else None
    instant = start if isinstance(start, datetime) else None
    last = None if before is None else check_job_id(before)
    rows = await run("find_error_groups", names, task, instant, last, count, COUNT_MAX, GROUPS_LOOKED, age)
    return [_group(row) for row in rows]


def _group(row: Row) -> ErrorGroup:
    return ErrorGroup(**_values(row, ErrorGroup.__struct_fields__))


async def count_group_hours(run: Run, fingerprints: Sequence[str]) -> dict[str, Hours]:
    """Return how many attempts of each group ended in each hour of the last day, of its newest 200."""
    found: dict[str, list[int | None]] = {one: [0] * HOURS_SHOWN for one in fingerprints}
    for row in await run("count_group_hours", list(fingerprints), HOUR_ROWS):
        place = HOURS_SHOWN - 1 - row["hour"]
        hours = found[row["fingerprint"]]
        hours[place] = row["attempts"]
        if row["is_cut"]:
            hours[:place] = [None] * place
    return {fingerprint: Hours(hours) for fingerprint, hours in found.items()}


async def group_jobs(link: Link, fingerprint: str) -> AsyncIterator[GroupJobs]:
    """Go through the FAILED jobs of a group: those whose newest kept attempt has the fingerprint."""
    before = NEWEST
    while True:
        *rows, last = await link.run("find_group_jobs", fingerprint, before, GROUP_ROWS)
        yield GroupJobs([row["job_id"] for row in rows], last["looked"])
        if last["looked"] < GROUP_ROWS:
            return
        before = last["last_id"]


async def keep_group_jobs(session: Runs, fingerprint: str, ids: Sequence[int]) -> list[int]:
    """Return those of the jobs that are still FAILED and of the group."""
    return [row["job_id"] for row in await session.run("keep_group_jobs", fingerprint, list(ids))]


def _values(row: Row, names: Iterable[str]) -> dict[str, Any]:
    return {**{name: row[name] for name in names}, "kind": FailureKind(row["kind"])}


async def prune_attempts(link: Link, *, after_job_id: int) -> PrunedAttempts:
    """Delete a piece of the attempts whose jobs were deleted by SQL, from the job behind this one on."""
    rows = await link.run("prune_attempts", after_job_id, PRUNE_ROWS)
    return PrunedAttempts(rows[0]["is_mine"], rows[0]["deleted"], rows[0]["last_job_id"])
