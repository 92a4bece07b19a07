"""Jobs for later, failures that are tried again, and what can be done by hand when none is left."""

import asyncio
from datetime import date, timedelta

from pqrun import App, BackoffPolicy, JobContext, JobFailed

jobs = App()


class Quickly(BackoffPolicy):
    """A tenth of a second, then two tenths, and so on."""

    def retry_delay(self, attempts: int) -> timedelta:
        return timedelta(seconds=attempts / 10)


@jobs.task(max_attempts=3, timeout=5, backoff=Quickly())
async def fetch(ctx: JobContext, url: str) -> dict[str, int]:
    if ctx.job.attempts < 3:
        raise ConnectionError("the network is shaky")
    return {"attempts": ctx.job.attempts}


@jobs.task(max_attempts=1)
async def charge(ctx: JobContext, card: str) -> dict[str, str]:
    if ctx.job.last_error is None:  # kept when a job is tried again by hand
        raise PermissionError("the card was declined")
    return {"charged": card}


@jobs.task
async def report(ctx: JobContext, day: date) -> dict[str, str]:
    return {"day": f"{day:%A}"}


async def main() -> None:
    async with jobs.worker(concurrency=3).lifespan():
        tomorrow = await report.options(run_after=timedelta(days=1)).defer(date(2026, 1, 2))
        soon = await report.options(run_after=timedelta(milliseconds=200), priority=10).defer(date(2026, 1, 1))
        print("soon:", await soon.result(timeout=30))
        print("tomorrow:", (await tomorrow.status()).value, "->", (await tomorrow.cancel()).value)

        page = await fetch.defer("https://example.org")
        print("fetched:", await page.result(timeout=30))

        payment = await charge.defer("visa")
        try:
            await payment.result(timeout=30)
        except JobFailed as failure:
            print("failed:", failure)
        await payment.retry()  # an operator has spoken with the customer
        print("paid:", await payment.result(timeout=30))


if __name__ == "__main__":
    asyncio.run(main())
