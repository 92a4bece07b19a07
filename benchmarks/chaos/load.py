"""The jobs of the load: quick, slow, failing, timing out, snoozing, in threads, completing in a transaction. All called the same way."""

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any, Never, TypeAlias

from benchmarks.chaos.log import Ended, Log, Started
from pqrun import App, BackoffPolicy, JobContext, Snooze
from pqrun.task import Task

__all__ = ["BLAMELESS", "COMPLETING", "EFFECTS", "QUEUES", "Load", "LoadTask"]

LoadTask: TypeAlias = Task[..., Never, None, Log]

QUEUES = ("default", "mail")

COMPLETING = "complete"
"""The task whose handler writes an effect and its own end in one transaction."""

BLAMELESS = frozenset({"quick", "slow", "plain", "patient"})
"""Tasks whose handlers never fail by themselves: they may end FAILED only because of lost workers."""

EFFECTS = "CREATE TABLE effects (job_id bigint NOT NULL, claim_id bigint NOT NULL)"

_SLICE_SECONDS = 0.05


class Soon(BackoffPolicy):
    """Pauses that fit into a short run."""

    def retry_delay(self, attempts: int) -> timedelta:
        """Half a second more each time."""
        return timedelta(seconds=0.5 * attempts)


class Load:
    """The app and its tasks; ``tasks`` by name, each called with ``token=``."""

    def __init__(self, dsn: str, log: Log) -> None:
        @asynccontextmanager
        async def state() -> AsyncIterator[Log]:
            yield log

        self.app: App[Log] = App(dsn=dsn, resources=state)
        found = [
            self.app.task(name="quick", backoff=Soon(), queue="mail")(quick),
            self.app.task(name="slow", backoff=Soon())(slow),
            self.app.task(name="plain", backoff=Soon(), priority=-1)(plain),
            self.app.task(name="shaky", backoff=Soon(), max_attempts=4)(shaky),
            self.app.task(name="patient", backoff=Soon())(patient),
            self.app.task(name="overdue", backoff=Soon(), max_attempts=3, timeout=0.5)(overdue),
            self.app.task(name=COMPLETING, backoff=Soon(), max_attempts=8, priority=1)(complete),
        ]
        self.tasks: dict[str, LoadTask] = {task.name: task for task in found}


@contextmanager
def _noted(ctx: JobContext[Log], token: str) -> Iterator[None]:
    claim_id = ctx.job.claim_id or 0
    ctx.state.write(Started(token, ctx.job.id, claim_id, os.getpid()))
    how = "returned"
    try:
        yield
    except Snooze:
        how = "snoozed"
        raise
    except BaseException:
        how = ctx.cancel_reason or "raised"
        raise
    finally:
        ctx.state.write(Ended(token, ctx.job.id, claim_id, how))


def _chance(ctx: JobContext[Any], token: str) -> float:
    """The same number for the same attempt, in whatever process."""
    return random.Random(f"{token} {ctx.job.attempts}").random()


async def quick(ctx: JobContext[Log], token: str) -> None:
    """Return at once."""
    with _noted(ctx, token):
        pass


async def slow(ctx: JobContext[Log], token: str) -> None:
    """Take up to four seconds: longer than the grace of a worker."""
    with _noted(ctx, token):
        await asyncio.sleep(4 * _chance(ctx, token) ** 2)


def plain(ctx: JobContext[Log], token: str) -> None:
    """Take up to a second in a thread, and heed the wish to stop."""
    with _noted(ctx, token):
        until = time.monotonic() + _chance(ctx, token)
        while time.monotonic() < until and not ctx.cancelled:
            time.sleep(_SLICE_SECONDS)


async def shaky(ctx: JobContext[Log], token: str) -> None:
    """Fail four times of ten."""
    with _noted(ctx, token):
        if _chance(ctx, token) < 0.4:
            raise ValueError("as told")


async def patient(ctx: JobContext[Log], token: str) -> None:
    """Snooze up to three times, then return."""
    with _noted(ctx, token):
        if ctx.job.snoozes < random.Random(token).randint(0, 3):
            raise Snooze(timedelta(seconds=0.3))


async def overdue(ctx: JobContext[Log], token: str) -> None:
    """Exceed the timeout every second time."""
    with _noted(ctx, token):
        await asyncio.sleep(0 if _chance(ctx, token) < 0.5 else 60)


async def complete(ctx: JobContext[Log], token: str) -> None:
    """Write an effect, and the end of the job, in one transaction."""
    with _noted(ctx, token):
        async with ctx.store.transaction() as connection:
            await connection.execute("INSERT INTO effects VALUES ($1, $2)", ctx.job.id, ctx.job.claim_id)
            await ctx.complete(connection=connection)
