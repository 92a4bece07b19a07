"""Handlers that block: plain functions, which run in threads, see the context of the worker and can be asked to stop."""

import asyncio
import hashlib
from dataclasses import dataclass

from pqrun import App, JobCancelled, JobContext

jobs = App()


@dataclass
class Password:
    text: str
    rounds: int = 1000


@dataclass
class Digest:
    hexadecimal: str


@jobs.task(payload=Password, timeout=30)
def digest(ctx: JobContext, payload: Password) -> Digest:
    return Digest(hashlib.pbkdf2_hmac("sha256", payload.text.encode(), b"salt", payload.rounds).hex())


@jobs.task
def mine(ctx: JobContext) -> dict[str, int]:
    nonce = 0
    while not ctx.cancelled:  # a thread cannot be stopped from outside: it has to look
        nonce += 1
    return {"nonce": nonce}


async def main() -> None:
    async with jobs.worker(concurrency=2).lifespan():
        endless = await mine.defer()
        job = await digest.defer(text="secret")
        print("digest:", (await job.result(timeout=30)).hexadecimal[:16])
        await endless.cancel()
        try:
            await endless.result(timeout=30)
        except JobCancelled as cancelled:
            print(cancelled)


if __name__ == "__main__":
    asyncio.run(main())
