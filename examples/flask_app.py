"""A Flask shop on SQLAlchemy: an order and its job commit together, in plain views without an event loop.

::

    export DATABASE_URL=postgresql+psycopg://localhost/shop     # SQLAlchemy and pqrun both read it
    pqrun migrate
    flask --app examples.flask_app init-db                      # makes the shop's own tables
    flask --app examples.flask_app run                          # or: gunicorn --workers 4 examples.flask_app:app
    pqrun worker examples.flask_app:jobs --concurrency 10
"""

import os
from dataclasses import dataclass

from flask import Flask, abort, request
from sqlalchemy import create_engine, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, scoped_session, sessionmaker

from pqrun import App, JobContext, Status

DSN = os.environ["DATABASE_URL"]

engine = create_engine(DSN)
session = scoped_session(sessionmaker(engine))  # with Flask-SQLAlchemy: db.session
jobs = App(dsn=DSN)
app = Flask(__name__)

CREDIT = 1000


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    total: Mapped[int]


@dataclass
class Invoice:
    number: str
    total: int


@jobs.task(max_attempts=3, timeout=30)
def write_invoice(ctx: JobContext, order_id: int) -> Invoice:
    with session.session_factory() as own:  # a handler has a thread of its own, and no request that ends
        order = own.get_one(Order, order_id)
    if order.total == 0:
        raise ValueError("nothing to pay")
    return Invoice(number=f"2026-{order.id}", total=order.total)


@app.post("/orders")
def place_order() -> tuple[dict[str, int], int]:
    order = Order(customer=request.json["customer"], total=request.json["total"])
    session.add(order)
    session.flush()  # gives order.id
    job = write_invoice.options(connection=session).defer_sync(order_id=order.id)
    if session.scalars(select(func.sum(Order.total)).filter_by(customer=order.customer)).one() > CREDIT:
        abort(409, "over the credit limit")  # not committed: neither the order nor its job
    session.commit()
    return {"order_id": order.id, "job_id": job.id}, 202


@app.get("/invoices/<int:job_id>")
def show_invoice(job_id: int) -> dict[str, object]:
    job = write_invoice.find_sync(job_id)
    if job is None:
        abort(404)
    if job.status is not Status.DONE:
        return {"status": job.status, "error": job.error_summary}
    return {"status": job.status, "invoice": write_invoice.handle(job_id).result_sync(timeout=0)}


@app.teardown_appcontext
def end_session(error: BaseException | None) -> None:
    session.remove()  # rolls back what was not committed


@app.cli.command("init-db")
def init_db() -> None:
    Base.metadata.create_all(engine)
