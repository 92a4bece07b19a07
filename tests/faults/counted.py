"""Handlers that count how often each job was started: what the database says of attempts is checked against it."""

import asyncio
import contextlib
from collections import Counter
from typing import Any

from pqrun.errors import PqrunError
from pqrun.job.record import Job
from pqrun.job.state import Status
from pqrun.run.context import JobContext
from pqrun.store import PgJobStore
from tests.support.waiting import wait_until

__all__ = ["Counted", "assert_done_once", "enqueued"]


class Counted:
    """``quick`` returns at once, ``hang`` when ``go`` is set."""

    def __init__(self) -> None:
        self.starts: Counter[int] = Counter()
        self.go = asyncio.Event()

    async def quick(self, ctx: JobContext[Any]) -> dict[str, object]:
        """Return how often this job was started."""
        self.starts[ctx.job.id] += 1
        return {"starts": self.starts[ctx.job.id]}

    async def hang(self, ctx: JobContext[Any]) -> dict[str, object]:
        """The same, later."""
        self.starts[ctx.job.id] += 1
        await self.go.wait()
        return {"starts": self.starts[ctx.job.id]}

    async def wait_started(self, job_id: int) -> None:
        """Wait until the job has started here."""
        await wait_until(lambda: self.starts[job_id])


async def enqueued(store: PgJobStore, job_type: str = "t") -> int:
    """Enqueue, again where the pool still hands out what was cut."""
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(PqrunError):
                return await store.enqueue(job_type, {})
            await asyncio.sleep(0.02)


def assert_done_once(jobs: list[Job], counted: Counted) -> None:
    """Each has ended DONE in its first attempt, and its handler was started once."""
    assert {(job.status, job.attempts) for job in jobs} == {(Status.DONE, 1)}
    assert {counted.starts[job.id] for job in jobs} == {1}
