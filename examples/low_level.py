"""Without decorators: a store, handlers in a dict, payloads and results as JSON objects; and a job enqueued by plain SQL."""

import asyncio
import os
from datetime import timedelta

from pqrun import JobContext, PgJobStore, Status, Worker


async def send_email(ctx: JobContext) -> dict[str, object]:
    payload = ctx.job.payload
    return {"message_id": f"m-{payload['user_id']}", "by": ctx.worker_id}


async def main() -> None:
    async with PgJobStore(os.environ["PQRUN_DSN"]) as store:
        worker = Worker(
            store=store,
            handlers={"send_email": send_email},
            concurrency=5,
            shutdown_grace=timedelta(seconds=10),
            worker_id="mailer",
        )
        running = asyncio.create_task(worker.run())
        job_id = await store.enqueue("send_email", {"user_id": 1}, dedupe_key="email:1", max_attempts=3)
        end = await store.wait_end(job_id, timeout=30)
        print(end.status is Status.DONE, end.result)

        async with store.connection() as connection:  # as a trigger, pg_cron or another language would
            await connection.execute("""SELECT * FROM pqrun.enqueue('send_email', '{"user_id": 2}', priority => 10)""")
        worker.stop()
        await running


if __name__ == "__main__":
    asyncio.run(main())
