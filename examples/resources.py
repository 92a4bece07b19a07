"""What handlers share: opened once per worker, typed in their context, closed when the worker ends."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import asyncpg

from pqrun import App, JobContext

DSN = os.environ["PQRUN_DSN"]


@dataclass
class Resources:
    pool: asyncpg.Pool
    rates: dict[str, float]


@asynccontextmanager
async def open_resources() -> AsyncIterator[Resources]:
    async with asyncpg.create_pool(DSN, min_size=1, max_size=5) as pool:
        print("opened")
        yield Resources(pool, rates={"EUR": 1.0, "CZK": 25.0})
    print("closed")


jobs = App(dsn=DSN, resources=open_resources)


@jobs.task
async def convert(ctx: JobContext[Resources], amount: float, currency: str) -> dict[str, float]:
    rate = ctx.state.rates[currency]
    return {"converted": float(await ctx.state.pool.fetchval("SELECT $1::float8 * $2::float8", amount, rate))}


async def main() -> None:
    async with jobs.worker(concurrency=5).lifespan():
        handles = await jobs.defer_many(convert.call(amount, "CZK") for amount in (1.0, 2.0, 3.0))
        for handle in handles:
            print(await handle.result(timeout=30))


if __name__ == "__main__":
    asyncio.run(main())
