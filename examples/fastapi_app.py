"""A FastAPI shop on SQLAlchemy: an order and its job commit together, and GET tells status and typed result.

::

    export DATABASE_URL=postgresql+asyncpg://localhost/shop     # SQLAlchemy and pqrun both read it
    pqrun migrate
    python -m examples.fastapi_app                              # makes the shop's own tables
    uvicorn examples.fastapi_app:app                            # serves, and runs the jobs too

With the jobs in a process of their own::

    WORKER_ENABLED=false uvicorn examples.fastapi_app:app --workers 4
    pqrun worker examples.fastapi_app:jobs --concurrency 10
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from pqrun import App, JobContext, Status

DSN = os.environ["DATABASE_URL"]

engine = create_async_engine(DSN)
sessions = async_sessionmaker(engine)
jobs = App(dsn=DSN)

CREDIT = 1000


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    total: Mapped[int]


class Invoice(BaseModel):
    number: str
    total: int


@jobs.task(max_attempts=3, timeout=30)
async def write_invoice(ctx: JobContext, order_id: int) -> Invoice:
    async with sessions() as session:
        order = await session.get_one(Order, order_id)
    if order.total == 0:
        raise ValueError("nothing to pay")
    return Invoice(number=f"2026-{order.id}", total=order.total)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with jobs.worker(concurrency=10).lifespan():  # WORKER_ENABLED=false: only opens the app
        yield
    await engine.dispose()


app = FastAPI(lifespan=lifespan)


class NewOrder(BaseModel):
    customer: str
    total: int


class Accepted(BaseModel):
    order_id: int
    job_id: int


class Progress(BaseModel):
    status: Status
    invoice: Invoice | None = None
    error: str | None = None


@app.post("/orders", status_code=202)
async def place_order(new: NewOrder) -> Accepted:
    # Not a dependency with yield, whose end FastAPI runs after the answer is sent: this commits before.
    async with sessions.begin() as session:
        order = Order(customer=new.customer, total=new.total)
        session.add(order)
        await session.flush()  # gives order.id
        job = await write_invoice.options(connection=session).defer(order_id=order.id)
        owed = await session.scalar(select(func.sum(Order.total)).where(Order.customer == new.customer))
        if owed is not None and owed > CREDIT:
            raise HTTPException(409, "over the credit limit")  # leaves neither the order nor its job
        return Accepted(order_id=order.id, job_id=job.id)


@app.get("/invoices/{job_id}")
async def show_invoice(job_id: int) -> Progress:
    job = await write_invoice.find(job_id)
    if job is None:
        raise HTTPException(404, "no such invoice")
    invoice = await write_invoice.handle(job_id).result(timeout=0) if job.status is Status.DONE else None
    return Progress(status=job.status, invoice=invoice, error=job.error_summary)


async def create_tables() -> None:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    await engine.dispose()


if __name__ == "__main__":
    asyncio.run(create_tables())
