"""A job that exists only if the order does, and a handler whose effect and completion are one commit."""

import asyncio
import os

import asyncpg

from pqrun import App, JobContext, JobHandle

DSN = os.environ["PQRUN_DSN"]

jobs = App(dsn=DSN)


@jobs.task
async def write_invoice(ctx: JobContext, order_id: int) -> dict[str, int]:
    async with ctx.store.transaction() as connection:
        await connection.execute("INSERT INTO invoices (order_id) VALUES ($1)", order_id)
        # The invoice and the end of the job are committed together: it is written exactly once, whatever crashes when.
        await ctx.complete({"order_id": order_id}, connection=connection)
    return {}  # not stored: complete() has recorded the result


async def place_order(connection: asyncpg.Connection, customer: str) -> JobHandle[dict[str, int]]:
    """Write the order, and the job with it; the job appears, and wakes a worker, with the commit."""
    async with connection.transaction():
        order_id = int(await connection.fetchval("INSERT INTO orders (customer) VALUES ($1) RETURNING id", customer))
        job = await write_invoice.options(connection=connection).defer(order_id)
        if not customer:
            raise ValueError("an order needs a customer")  # then neither the order nor its job was ever there
    return job


async def main() -> None:
    connection = await asyncpg.connect(DSN)
    await connection.execute("CREATE TABLE IF NOT EXISTS orders (id serial PRIMARY KEY, customer text)")
    await connection.execute("CREATE TABLE IF NOT EXISTS invoices (order_id integer PRIMARY KEY)")
    async with jobs.worker().lifespan():
        job = await place_order(connection, "Ada")
        print("invoice:", await job.result(timeout=30))
        try:
            await place_order(connection, "")
        except ValueError as error:
            print("rolled back:", error)
    print("orders:", await connection.fetchval("SELECT count(*) FROM orders"))
    print("jobs:", await connection.fetchval("SELECT count(*) FROM pqrun.jobs"))
    await connection.close()


if __name__ == "__main__":
    asyncio.run(main())
