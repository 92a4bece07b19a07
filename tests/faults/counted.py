"""Handlers that count how often each job was started: what the database says of attempts is checked against it."""

import asyncio
from collections import Counter
from typing import Any

from pqrun.run.context import JobContext
from tests.support.waiting import wait_until

__all__ = ["Counted"]


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
