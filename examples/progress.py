"""A handler that tells how far it has come, and a program that shows it."""

import asyncio

from pqrun import App, JobContext

jobs = App()


@jobs.task
async def render(ctx: JobContext, pages: int) -> dict[str, int]:
    for page in range(1, pages + 1):
        await asyncio.sleep(0.02)  # the work
        await ctx.progress(page / pages, f"page {page} of {pages}")
    return {"pages": pages}


@jobs.task
def count_words(ctx: JobContext, texts: list[str]) -> dict[str, int]:
    words = 0
    for number, text in enumerate(texts, 1):
        words += len(text.split())
        ctx.progress_sync(number / len(texts))
    return {"words": words}


async def main() -> None:
    async with jobs.worker().lifespan():
        job = await render.defer(pages=20)
        seen = [progress.value async for progress in job.watch(timeout=30)]
        print("it only grew:", seen == sorted(seen))
        last = await job.progress()
        print("last:", last.message if last else None)
        print("result:", await job.result())

        counting = await count_words.defer(texts=["one two", "three"])
        print("result:", await counting.result(timeout=30))
        counted = await counting.progress()
        print("a thread reported:", counted.value if counted else None)


if __name__ == "__main__":
    asyncio.run(main())
