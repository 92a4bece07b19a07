"""A shop whose jobs a real worker runs, and the hour before it: what the pictures of the documentation show."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from types import FunctionType
from typing import TypeVar

import asyncpg
from pydantic import BaseModel, Field

from pqrun import App, JobContext

F = TypeVar("F", bound=Callable[..., object])

HOUR_SQL = """
INSERT INTO pqrun.statistics (minute, worker, queue, job_type, started, arrived, done, failed, retrying, snoozed, cancelled, lost,
                              released, run_ms, wait_ms, run_counts, wait_counts)
SELECT date_trunc('minute', clock_timestamp()) - m * interval '1 minute', 1, k.queue, k.job_type,
       n, n, n - f - r, f, r, 0, 0, 0, 0, n * k.run, n * k.wait,
       array_fill(0, ARRAY[k.bucket - 1]) || ARRAY[n * 6 / 10, n * 3 / 10, n - n * 6 / 10 - n * 3 / 10],
       array_fill(0, ARRAY[k.bucket - 2]) || ARRAY[n * 7 / 10, n - n * 7 / 10]
  FROM (VALUES ('mail', 'send_email', 120, 34, 8, 6, 0.02), ('default', 'charge_card', 60, 120, 12, 8, 0.05),
               ('default', 'sync_account', 40, 900, 40, 11, 0.0)) AS k(queue, job_type, rate, run, wait, bucket, bad)
 CROSS JOIN generate_series(1, 60) AS m
 CROSS JOIN LATERAL (SELECT (k.rate * (1.2 + sin(m / 9.0) / 2 + (m * 7 % 5) / 10.0))::integer AS n) AS rate
 CROSS JOIN LATERAL (SELECT (n * k.bad * (m % 3))::integer AS r, (n * k.bad / 4)::integer AS f) AS failures
"""
"""Rates that rise and fall over an hour, some of them failing."""


SOURCE = "/srv/shop/jobs.py"
"""Where the code of a shop would be, in the tracebacks that are shown."""


def deployed(function: F) -> F:
    """Let a handler be from there."""
    assert isinstance(function, FunctionType)
    function.__code__ = function.__code__.replace(co_filename=SOURCE)
    return function


class Welcome(BaseModel):
    """A mail to a new customer."""

    user_id: int = Field(ge=1, description="Whom to write to")
    template: str = "welcome"
    urgent: bool = False


def make_shop(dsn: str) -> App[None]:
    """Five tasks of a shop, some of which fail."""
    jobs = App(dsn=dsn, name="shop")

    @jobs.task(payload=Welcome, queue="mail", max_attempts=3, timeout=30, dedupe_key="welcome:{user_id}")
    @deployed
    async def send_email(ctx: JobContext, payload: Welcome) -> dict[str, str]:
        if payload.user_id % 7 == 0:
            raise ConnectionError("smtp.example.org: connection refused")
        return {"message_id": f"m-{payload.user_id}"}

    @jobs.task(max_attempts=1)
    @deployed
    async def charge_card(ctx: JobContext, order: int, amount: float = 9.5) -> dict[str, float]:
        if order % 9 == 0:
            raise ValueError(f"order {order} has no card")
        return {"charged": amount}

    @jobs.task
    async def sync_account(ctx: JobContext, account: int) -> None: ...

    @jobs.task(queue="video")
    async def encode(ctx: JobContext, path: str) -> None:
        await ctx.progress(0.42, "frame 2,520 of 6,000")
        await asyncio.Event().wait()

    @jobs.task(cron="30 2 * * *", tz="Europe/Berlin")
    async def nightly_report(ctx: JobContext, day: str = "yesterday") -> None: ...

    jobs.schedule("poll_rates", sync_account.call(account=1), every=timedelta(minutes=15))
    return jobs


async def open_for_business(jobs: App[None], connection: asyncpg.Connection) -> None:
    """Defer the jobs of a morning, and write down the hour before."""
    await connection.execute(HOUR_SQL)
    tasks = jobs.tasks
    await jobs.defer_many([tasks["send_email"].call(user_id=n) for n in range(1, 60)])
    await jobs.defer_many([tasks["charge_card"].call(order=n) for n in range(1, 40)])
    await jobs.defer_many([tasks["encode"].call(path=f"/films/{n}.mp4") for n in range(1, 5)])
    later = tasks["send_email"].options(run_after=timedelta(hours=3))
    await jobs.defer_many([later.call(user_id=n) for n in range(100, 110)])
