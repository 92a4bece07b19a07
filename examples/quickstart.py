"""One task, one job, its typed result: ``PQRUN_DSN=embedded:jobs-db python examples/quickstart.py``.

Any PostgreSQL will do; one that is not embedded needs ``pqrun migrate`` once.
"""

import asyncio

from pydantic import BaseModel

from pqrun import App, JobContext

jobs = App()  # reads PQRUN_DSN


class Sum(BaseModel):
    total: int


@jobs.task
async def add(ctx: JobContext, a: int, b: int = 2) -> Sum:
    return Sum(total=a + b)


async def main() -> None:
    async with jobs.worker().lifespan():
        job = await add.defer(1, b=3)
        print(await job.result(timeout=30))


if __name__ == "__main__":
    asyncio.run(main())
