"""What tools and pages ask of the tables: lists, counts, reasons. All of it only reads, and each call has a limit of time."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

import asyncpg

from pqrun.errors import JobNotFound
from pqrun.job.explaining import BEAT_SECONDS, BEHIND_CAP, Explanation, Facts, explain
from pqrun.job.filter import JobFilter
from pqrun.job.listing import JobCount, Listing
from pqrun.job.options import check_job_id
from pqrun.job.registered import RegisteredWorker
from pqrun.job.state import Status
from pqrun.job.statistics import StatisticsRow
from pqrun.store.link import Link
from pqrun.store.listing import LIST_SECONDS, count_jobs, list_jobs
from pqrun.store.statistics import StatisticsBy, read_statistics
from pqrun.store.workers import list_workers

__all__ = ["Reading"]

NAMES_SHOWN: Final = 20
"""Of tasks and queues that workers serve."""


class Reading(ABC):
    """The part of ``PgJobStore`` that only reads; raises NotOpenError, SchemaError and StoreError."""

    @abstractmethod
    async def run(self, name: str, *arguments: object, timeout: float | None = None) -> list[asyncpg.Record]:
        """Run one of pqrun's own statements."""

    @abstractmethod
    def open_selection(self) -> Link:
        """Return a way to run the statements of a list."""

    async def list_jobs(
        self,
        wanted: JobFilter | None = None,
        *,
        limit: int = 50,
        after: int | None = None,
        seconds: float = LIST_SECONDS,
    ) -> Listing:
        """Return a page of jobs, the newest first, without their payloads and results.

        ``limit``: 1 to 1,000. ``after``: the ``following`` of the page before. ``seconds``: after so long the page is given as far as it
        has come (``is_cut``). Newest is the highest id; where the filter has times of the end, the latest end. Raises OptionError.
        """
        link = self.open_selection()
        try:
            return await list_jobs(link, wanted or JobFilter(), limit=limit, after=after, seconds=seconds)
        finally:
            await link.close()

    async def count_jobs(
        self, wanted: JobFilter | None = None, *, most: int = 100_000, seconds: float = LIST_SECONDS
    ) -> JobCount:
        """Return how many jobs match: ``most`` at most, and counted for so many seconds at most (``is_exact`` tells)."""
        link = self.open_selection()
        try:
            return await count_jobs(link, wanted or JobFilter(), most=most, seconds=seconds)
        finally:
            await link.close()

    async def explain(
        self, job_id: int, *, decode_error: Callable[[str, int, str], str | None] | None = None
    ) -> Explanation:
        """Return why a job is not running; raises JobNotFound.

        ``decode_error``: asked with its task, the version and the JSON text of its payload, says why code cannot read it, or None.
        """
        rows = await self.run("explain", check_job_id(job_id), BEAT_SECONDS, BEHIND_CAP, NAMES_SHOWN)
        if not rows:
            raise JobNotFound(f"there is no job {job_id} (deleted, or removed by retention)", job_id)
        found = {**rows[0], "status": Status(rows[0]["status"])}
        if decode_error is not None:
            stored = await self.run("get", job_id)
            if stored:
                row = stored[0]
                found["decode_error"] = decode_error(row["job_type"], row["payload_version"], row["payload"])
        return explain(Facts(**found))

    async def list_workers(self) -> list[RegisteredWorker]:
        """Return the registered workers, living ones first, at most 1,000."""
        return await list_workers(self)

    async def statistics(
        self,
        since: datetime,
        until: datetime,
        *,
        step: timedelta = timedelta(minutes=1),
        by: StatisticsBy = "queue",
        queue: str | None = None,
        job_type: str | None = None,
    ) -> list[StatisticsRow]:
        """Return what all workers counted from ``since`` on and before ``until``, a row per step of time and queue, task, or all together.

        The first step begins at ``since``, which is best a full minute; a step in which nothing happened has no row. ``queue`` and
        ``job_type``: only of these. A worker adds its minute up to some seconds after its end. Raises OptionError.
        """
        return await read_statistics(self, since, until, step=step, by=by, queue=queue, job_type=job_type)
