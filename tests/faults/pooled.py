"""A worker process behind a pooler: ``python pooled.py DSN NAME STALE_SECONDS``. SIGTERM stops it; what it logs goes to stderr."""

import asyncio
import logging
import signal
import sys
from typing import Any

from pqrun import JobContext, PgJobStore, Worker


async def quick(ctx: JobContext[Any]) -> dict[str, object]:
    return {"attempt": ctx.job.attempts}


async def complete(ctx: JobContext[Any]) -> None:
    async with ctx.store.transaction() as connection:
        await ctx.store.enqueue("quick", {"after": ctx.job.id}, connection=connection)
        await ctx.complete(connection=connection)


async def stay(ctx: JobContext[Any]) -> None:
    sys.stdout.write(f"running {ctx.job.id}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


async def main(dsn: str, name: str, stale_seconds: float) -> None:
    worker = Worker(
        store=PgJobStore(dsn),
        handlers={"quick": quick, "complete": complete, "stay": stay},
        worker_id=name,
        concurrency=5,
        default_stale_after=stale_seconds,
        shutdown_grace=0,
        environ={},
    )
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    await worker.run()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
