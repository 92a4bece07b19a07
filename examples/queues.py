"""Queues with slots of their own: one hangs, the other goes on; then paused, resumed, and changed while the worker runs."""

import asyncio

from pqrun import App, JobContext

jobs = App()
provider_is_back = asyncio.Event()


@jobs.task(queue="mail")
async def send_email(ctx: JobContext, user_id: int) -> dict[str, int]:
    await provider_is_back.wait()
    return {"sent_to": user_id}


@jobs.task
async def resize(ctx: JobContext, path: str) -> dict[str, str]:
    return {"resized": path}


async def main() -> None:
    worker = jobs.worker(queues={"default": 3, "mail": 2})
    async with jobs, worker.lifespan():
        mails = [await send_email.defer(user_id=number) for number in range(10)]
        image = await resize.defer(path="a.png")
        print("mail hangs,", await image.result(timeout=30))

        print("paused:", await jobs.pause(queue="mail", reason="provider down"))
        for pause in await jobs.paused():
            print(f"{pause.kind} {pause.name}: {pause.reason}")

        provider_is_back.set()  # those that run go on to their end, the next do not start
        print("first:", await mails[0].result(timeout=30))
        mail = next(queue for queue in await jobs.queues() if queue.name == "mail")
        print("mail, ready:", mail.ready, "slots:", mail.slots)

        worker.set_queues({"default": 3, "mail": 5})
        print("resumed:", await jobs.resume(queue="mail"))
        print("last:", await mails[-1].result(timeout=30))


if __name__ == "__main__":
    asyncio.run(main())
