"""Handlers that choose what becomes of their job: not now, not at all, or again at a time of their own."""

import asyncio
from datetime import timedelta

from pqrun import Abort, App, ExponentialBackoff, JobContext, JobFailed, RetryAfter, Snooze

jobs = App()

USERS = {7: "seven@example.org"}


@jobs.task(max_attempts=1)
async def fetch_report(ctx: JobContext, day: str) -> dict[str, int]:
    if ctx.job.snoozes < 3:
        raise Snooze(timedelta(milliseconds=100), f"the report of {day} is not ready")
    return {"attempts": ctx.job.attempts, "snoozes": ctx.job.snoozes}


@jobs.task
async def greet(ctx: JobContext, user_id: int) -> dict[str, str]:
    if user_id not in USERS:
        raise Abort(f"there is no user {user_id}")
    return {"to": USERS[user_id]}


@jobs.task
async def call_api(ctx: JobContext, path: str) -> dict[str, int]:
    if ctx.job.attempts == 1:
        raise RetryAfter(timedelta(milliseconds=100), "429, too many requests")
    return {"attempts": ctx.job.attempts}


@jobs.task(retry_on=ConnectionError, backoff=ExponentialBackoff(0.05, factor=2, cap=1, jitter="full"))
async def upload(ctx: JobContext, path: str) -> dict[str, int]:
    if not path:
        raise ValueError("a path is needed")
    if ctx.job.attempts < 3:
        raise ConnectionError("the network is shaky")
    return {"attempts": ctx.job.attempts}


async def main() -> None:
    async with jobs.worker(concurrency=4).lifespan():
        print("fetched:", await (await fetch_report.defer("Monday")).result(timeout=30))
        print("called:", await (await call_api.defer("/orders")).result(timeout=30))
        print("uploaded:", await (await upload.defer("a.png")).result(timeout=30))
        for refused in (await greet.defer(8), await upload.defer("")):
            try:
                await refused.result(timeout=30)
            except JobFailed as failure:
                print(failure, "after attempt", (await refused.job()).attempts)


if __name__ == "__main__":
    asyncio.run(main())
