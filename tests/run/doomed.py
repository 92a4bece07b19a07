"""A worker process that is going to be killed: ``python doomed.py DSN``. Its handler says that it runs, and never ends."""

import asyncio
import sys
from typing import Any

from pqrun import JobContext, PgJobStore, Worker


async def stay(ctx: JobContext[Any]) -> None:
    sys.stdout.write(f"running {ctx.job.id}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


async def main(dsn: str) -> None:
    await Worker(store=PgJobStore(dsn), handlers={"stay": stay}, worker_id="doomed", environ={}).run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
