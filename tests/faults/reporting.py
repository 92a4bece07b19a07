"""A worker that is there to be killed while it reports: ``python -m tests.faults.reporting DSN``."""

import asyncio
import sys
from typing import Any

from pqrun.run.context import JobContext
from pqrun.store import PgJobStore
from pqrun.worker import Worker

__all__ = ["render"]


async def render(ctx: JobContext[Any]) -> None:
    """Report twice; the second is the last, which the end waits for."""
    await ctx.progress(0.5, "half")
    await ctx.progress(1.0, f"all, by attempt {ctx.job.attempts}")


async def main(dsn: str) -> None:
    """Work until killed; nobody else's jobs are recovered."""
    await Worker(store=PgJobStore(dsn), handlers={"render": render}, enable_reaper=False, environ={}).run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
