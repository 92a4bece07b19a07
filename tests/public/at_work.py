"""A real worker in the test's own loop, and what it tells."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
from typing_extensions import Unpack

from pqrun import App, BackoffPolicy, PgJobStore, Worker
from pqrun.run.lowlevel import LowLevelHandler
from pqrun.worker import WorkerOptions
from tests.support.waiting import Recorder


class AtOnce(BackoffPolicy):
    """No pause between attempts."""

    def retry_delay(self, attempts: int) -> timedelta:
        return timedelta(0)


class InAnHour(BackoffPolicy):
    """So long that no test sees the next attempt."""

    def retry_delay(self, attempts: int) -> timedelta:
        return timedelta(hours=1)


async def count_jobs(connection: asyncpg.Connection) -> int:
    """Count the jobs in whatever state, as others see them."""
    return int(await connection.fetchval("SELECT count(*) FROM pqrun.jobs"))


@asynccontextmanager
async def at_work(jobs: App[Any], **options: Unpack[WorkerOptions]) -> AsyncIterator[Recorder]:
    """Open the app and run a worker of its tasks until the block ends; gives what the worker tells."""
    async with jobs, running(jobs.worker(**_quiet(options))) as told:
        yield told


@asynccontextmanager
async def low_level(
    store: PgJobStore, handlers: Mapping[str, LowLevelHandler], **options: Unpack[WorkerOptions]
) -> AsyncIterator[Recorder]:
    """Run a worker without an app."""
    async with running(Worker(store=store, handlers=handlers, **_quiet(options))) as told:
        yield told


@asynccontextmanager
async def running(worker: Worker) -> AsyncIterator[Recorder]:
    """Run this worker until the block ends."""
    told = Recorder(worker.events)
    async with worker.lifespan():
        yield told


def _quiet(options: WorkerOptions) -> WorkerOptions:
    """Nothing of the machine's environment reaches a test."""
    return {"environ": {}, **options}
