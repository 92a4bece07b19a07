"""Workers that book: ``python -m tests.faults.till``. For each line of its input, ``DSN TILL_DSN QUEUE``, a process is forked, whose id is
printed, and which serves that queue until it is killed. (Forked, since the imports take longer than all else that such a worker does.)

Its handlers write an effect, defer a follow-up and complete, all on one connection of their own, which leads to TILL_DSN: there somebody
counts the statements. Everything else of the worker goes to DSN.
"""

import asyncio
import contextlib
import os
import signal
import sys
from datetime import timedelta
from typing import Any

import asyncpg
import psycopg
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from pqrun import App, BackoffPolicy, JobContext, Task
from tests.support.doors import sqlalchemy_url

TABLES = "CREATE TABLE effects (job_id bigint); CREATE TABLE follow_ups (job_id bigint)"


class AtOnce(BackoffPolicy):
    """No pause between attempts."""

    def retry_delay(self, attempts: int) -> timedelta:
        return timedelta(0)


def make_till(dsn: str, till_dsn: str) -> tuple[App[None], dict[str, Task[..., Any, dict[str, int], None]]]:
    """Return an app, and its tasks by the kind of connection that they book on."""
    jobs = App(dsn=dsn)

    @jobs.task(queue="follow")
    async def follow(ctx: JobContext, of: int) -> None:
        async with ctx.store.transaction() as connection:
            assert isinstance(connection, asyncpg.pool.PoolConnectionProxy)
            await connection.execute("INSERT INTO follow_ups VALUES ($1)", of)
            await ctx.complete(connection=connection)

    async def book_on_asyncpg(ctx: JobContext[Any], completes: bool) -> None:
        connection = await asyncpg.connect(till_dsn)
        async with connection.transaction():
            await connection.execute("INSERT INTO effects VALUES ($1)", ctx.job.id)
            await follow.options(connection=connection).defer(ctx.job.id)
            if completes:
                await ctx.complete({"booked": ctx.job.id}, connection=connection)
        await connection.close()

    @jobs.task(name="asyncpg", backoff=AtOnce())
    async def by_asyncpg(ctx: JobContext) -> dict[str, int]:
        await book_on_asyncpg(ctx, completes=True)
        return {}

    @jobs.task(name="asyncpg, not completing", backoff=AtOnce())
    async def without_completing(ctx: JobContext) -> dict[str, int]:
        await book_on_asyncpg(ctx, completes=False)
        return {}

    @jobs.task(name="SQLAlchemy AsyncSession", backoff=AtOnce())
    async def by_sqlalchemy(ctx: JobContext) -> dict[str, int]:
        engine = create_async_engine(sqlalchemy_url(till_dsn, "asyncpg"), connect_args={"ssl": False})
        async with AsyncSession(engine) as session, session.begin():
            await follow.options(connection=session).defer(ctx.job.id)  # before the session's first own statement
            await session.execute(text("INSERT INTO effects VALUES (:id)"), {"id": ctx.job.id})
            await ctx.complete({"booked": ctx.job.id}, connection=session)
        await engine.dispose()
        return {}

    @jobs.task(name="psycopg Connection", backoff=AtOnce())
    def by_psycopg(ctx: JobContext) -> dict[str, int]:
        with psycopg.connect(till_dsn, gssencmode="disable") as connection:
            connection.execute("INSERT INTO effects VALUES (%s)", (ctx.job.id,))
            ctx.store.enqueue_jobs_sync([follow.call(ctx.job.id).job], connection)
            ctx.complete_sync({"booked": ctx.job.id}, connection=connection)
        return {}

    tasks: list[Any] = [by_asyncpg, without_completing, by_sqlalchemy, by_psycopg]
    return jobs, {task.name: task for task in tasks}


async def main(dsn: str, till_dsn: str, queue: str) -> None:
    """Work in this queue until killed; nobody else's jobs are recovered."""
    jobs, _ = make_till(dsn, till_dsn)
    queue = queue.strip()
    await jobs.worker(queues=[queue], enable_reaper=False, worker_id=queue, environ={}).run()


def serve() -> None:
    """Fork a worker per line; the workers end with this process."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how they ended
    pids = []
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            asyncio.run(main(*line.split("\t")))
            return
        pids.append(pid)
        print(pid, flush=True)  # noqa: T201
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    serve()
