"""Many jobs at once: after a bad deploy what failed is retried, what nobody wants any more is cancelled, the rest goes to its own queue."""

import asyncio

from pqrun import App, JobContext, JobFailed, JobFilter, Status

jobs = App()
templates = {"welcome"}


@jobs.task(max_attempts=1)
async def send_email(ctx: JobContext, user_id: int, template: str = "welcome") -> dict[str, str]:
    if template not in templates:
        raise LookupError(f"no such template: {template}")
    return {"sent": template}


async def main() -> None:
    async with jobs, jobs.worker(queues=["default"], concurrency=5).lifespan():
        failing = await jobs.defer_many([send_email.call(user_id, "invoice") for user_id in range(20)])
        for job in failing:
            try:
                await job.result(timeout=30)
            except JobFailed:
                continue
        templates.add("invoice")  # the good deploy

        failed = jobs.select(JobFilter(statuses=[Status.FAILED], error_contains="no such template"))
        print("would be retried:", (await failed.retry(dry_run=True)).done)
        print("retried:", (await failed.retry()).done)
        for job in failing:
            await job.result(timeout=30)

        waiting = await jobs.defer_many(
            [send_email.options(queue="held").call(user_id, "welcome") for user_id in range(10)]
        )
        gone = await jobs.select(JobFilter(queues=["held"], payload={"user_id": 7})).cancel()
        print("cancelled:", gone.done)
        report = await jobs.select([job.id for job in waiting]).move("default")
        print("moved:", report.done, "refused:", {reason.value: count for reason, count in report.reasons.items()})
        print("last:", await waiting[-1].result(timeout=30))


if __name__ == "__main__":
    asyncio.run(main())
