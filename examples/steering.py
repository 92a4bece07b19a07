"""A running worker, steered: looked into, paused, resumed and drained; by its name, from any process that reaches the database."""

import asyncio

from pqrun import App, JobContext

jobs = App()
is_started, page_is_there = asyncio.Event(), asyncio.Event()


@jobs.task
async def crawl(ctx: JobContext, url: str) -> dict[str, str]:
    is_started.set()
    await fetch()
    return {"crawled": url}


async def fetch() -> None:
    await page_is_there.wait()


async def followed(fetching: bool, alive: int = 1) -> None:
    """Return when the registry says so: within about a second."""
    while True:
        living = [one for one in await jobs.workers.list() if one.is_alive]
        if len(living) == alive and all(one.fetching is fetching for one in living):
            return
        await asyncio.sleep(0.05)


async def main() -> None:
    worker = jobs.worker(concurrency=1, worker_id="crawler")
    async with jobs, worker.lifespan():
        first = await crawl.defer(url="/a")
        await is_started.wait()
        (told,) = await jobs.workers.stacks("crawler")
        print("it waits in fetch:", "await page_is_there.wait()" in (told.text or ""))

        await jobs.workers.set("crawler", fetching=False)
        await followed(fetching=False)
        second = await crawl.defer(url="/b")
        page_is_there.set()
        print("first:", await first.result(timeout=30))
        print("second, paused:", (await second.status()).value)

        await jobs.workers.set("crawler", fetching=True)
        print("second:", await second.result(timeout=30))

        await jobs.workers.drain("crawler")
        await followed(fetching=False, alive=0)
        print("drained: the program goes on")


if __name__ == "__main__":
    asyncio.run(main())
