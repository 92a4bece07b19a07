"""A schedule in code, looked at, edited, run out of turn, paused; and what an operator adds beside it."""

import asyncio
from datetime import timedelta

from pqrun import App, JobContext

jobs = App()
ticked = asyncio.Event()


@jobs.task
async def report(ctx: JobContext, day: str) -> dict[str, bool]:
    return {"has_planned_time": ctx.scheduled_for is not None}


@jobs.task(every=timedelta(seconds=1), overlap="skip")  # no required payload: it can declare its own schedule
async def tick(ctx: JobContext) -> None:
    ticked.set()


jobs.schedule("nightly", report.call(day="yesterday"), cron="30 2 * * *", tz="Europe/Berlin")


async def main() -> None:
    async with jobs, jobs.worker(concurrency=3).lifespan():
        await asyncio.wait_for(ticked.wait(), 30)  # the worker has stored what the code declares, and fires it
        print("ticked")

        for schedule in await jobs.schedules.list():
            print(f"{schedule.name}: {schedule.words}, {schedule.state}")

        job = report.handle(await jobs.schedules.run("nightly"))
        print("nightly, now:", await job.result(timeout=30))

        edited = await jobs.schedules.edit("nightly", cron="0 4 * * MON-FRI")
        print("nightly:", edited.words, "(edited)" if edited.is_edited else "")

        await jobs.schedules.pause("tick")
        print("tick:", (await jobs.schedules.get("tick")).state)

        await jobs.schedules.add("weekly", report.call(day="Sunday"), cron="0 6 * * SUN", tz="America/New_York")
        preview = await jobs.schedules.preview("weekly", 2)
        print(f"weekly: {preview.words}; {preview.firings[1] - preview.firings[0] >= timedelta(days=6)}")
        await jobs.schedules.remove("weekly")


if __name__ == "__main__":
    asyncio.run(main())
