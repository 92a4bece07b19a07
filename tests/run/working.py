"""Whole workers on a real database, in the test's own loop, and what they tell."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta

import asyncpg
from typing_extensions import Unpack

from pqrun.job.policy import BackoffPolicy
from pqrun.job.record import Job
from pqrun.run.lowlevel import LowLevelHandler
from pqrun.store import PgJobStore
from pqrun.worker import Worker, WorkerOptions
from tests.support.waiting import Recorder


class AtOnce(BackoffPolicy):
    """No pause between attempts."""

    def retry_delay(self, attempts: int) -> timedelta:
        return timedelta(0)


class Crew:
    """One worker at work; stopped when its block ends, by whoever comes first."""

    def __init__(self, store: PgJobStore, handlers: Mapping[str, LowLevelHandler], options: WorkerOptions) -> None:
        quiet: WorkerOptions = {"environ": {}, **options}  # nothing of the machine's environment reaches a test
        self.worker = Worker(store=store, handlers=handlers, **quiet)
        self.heard = Recorder(self.worker.events)
        self.run: asyncio.Task[None] | None = None

    async def stopped(self) -> None:
        """Stop it and wait until ``run`` has returned; a hang fails."""
        self.worker.stop()
        assert self.run is not None
        await asyncio.wait_for(asyncio.shield(self.run), 60)


@asynccontextmanager
async def working(
    store: PgJobStore, handlers: Mapping[str, LowLevelHandler], **options: Unpack[WorkerOptions]
) -> AsyncIterator[Crew]:
    """Run a worker until the block ends."""
    crew = Crew(store, handlers, options)
    crew.run = asyncio.create_task(crew.worker.run())
    try:
        yield crew
    finally:
        await crew.stopped()


async def wait_finished(store: PgJobStore, job_id: int) -> Job:
    """Wait until a job has ended, however; return its row."""
    await store.wait_end(job_id, 30)
    return await stored(store, job_id)


async def stored(store: PgJobStore, job_id: int) -> Job:
    """The row of a job that exists."""
    job = await store.get(job_id)
    assert job is not None
    return job


async def kick_everybody_out(admin: asyncpg.Connection, name: str) -> None:
    """End all connections to a database, as an administrator or a failover does."""
    await admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", name)
