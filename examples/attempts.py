"""What went wrong before a job was done, and the same error in several jobs."""

import asyncio

from pqrun import App, ExponentialBackoff, JobContext, JobFailed

jobs = App()


class NoSuchCard(Exception):
    pass


def charge(card: str, attempt: int) -> str:
    if card == "none":
        raise NoSuchCard("the customer has none")
    if attempt < 3:
        raise ConnectionError("the bank does not answer")
    return card


@jobs.task(max_attempts=3, no_retry_on=NoSuchCard, backoff=ExponentialBackoff(0.05))
async def pay(ctx: JobContext, order_id: int, card: str) -> dict[str, str]:
    return {"charged": charge(card, ctx.job.attempts)}


async def main() -> None:
    async with jobs.worker(concurrency=4).lifespan():
        paid = await pay.defer(order_id=1, card="visa")
        print(await paid.result(timeout=30))
        for attempt in await paid.attempts():
            print(f"attempt {attempt.number}: {attempt.exception_type}: {attempt.message}, then {attempt.status_after}")

        for order_id in (2, 3, 4):
            try:
                await (await pay.defer(order_id=order_id, card="none")).result(timeout=30)
            except JobFailed as failure:
                print(failure)

        for group in await jobs.store.error_groups():
            place = (group.frame or "").rpartition(":")[0]
            print(f"{group.count} times {group.exception_type} of {group.job_type} in {place}")


if __name__ == "__main__":
    asyncio.run(main())
