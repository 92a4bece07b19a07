"""A trigger makes a job of each row that is inserted or changed; the worker that runs them knows nothing of it."""

import asyncio
import os

import asyncpg

from pqrun import App, JobContext

DSN = os.environ["PQRUN_DSN"]

jobs = App(dsn=DSN)

SCHEMA = """
create table products (id bigint primary key, name text not null, price numeric not null);

create function product_changed() returns trigger language plpgsql as $$
begin
  perform pqrun.enqueue('index_product', jsonb_build_object('product_id', new.id), dedupe_key => 'product:' || new.id);
  return null;
end $$;

create trigger product_changed after insert or update on products
  for each row execute function product_changed();
"""


@jobs.task
async def index_product(ctx: JobContext, product_id: int) -> dict[str, int]:
    return {"indexed": product_id}  # here the row would be read, as it is by now, and sent to the search engine


async def change_products() -> list[int]:
    """Stand for any program, in any language, that knows the table and nothing of jobs."""
    connection = await asyncpg.connect(DSN)
    try:
        await connection.execute(SCHEMA)
        async with connection.transaction():
            await connection.execute("insert into products values (1, 'chair', 49), (2, 'table', 199)")
            await connection.execute("update products set price = 189 where id = 2")  # its job is waiting already
        return [row["id"] for row in await connection.fetch("select id from pqrun.jobs order by id")]
    finally:
        await connection.close()


async def main() -> None:
    ids = await change_products()
    async with jobs, jobs.worker().lifespan():
        for job_id in ids:
            print(await index_product.handle(job_id).result(timeout=30))


if __name__ == "__main__":
    asyncio.run(main())
