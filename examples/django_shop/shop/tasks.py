"""The jobs of the shop."""

from dataclasses import dataclass

from django.db import connection, transaction

from pqrun import JobContext

from .jobs import jobs
from .models import Invoice, Order


@dataclass
class Written:
    number: str
    total: int


@dataclass
class Reminded:
    customer: str


@jobs.task(max_attempts=3, timeout=30)
def write_invoice(ctx: JobContext, order_id: int) -> Written:
    try:
        with transaction.atomic():
            order = Order.objects.get(id=order_id)
            if order.total == 0:
                raise ValueError("nothing to pay")
            invoice = Invoice.objects.create(order=order, number=f"2026-{order_id}")
            written = Written(number=invoice.number, total=order.total)
            ctx.complete_sync(written, connection=connection)  # the invoice and the end of the job are one commit
    finally:
        connection.close()  # a handler has a thread of its own, which ends with it
    return written


@jobs.task(max_attempts=5)
async def remind(ctx: JobContext, customer: str) -> Reminded:
    ctx.logger.info("a reminder is on its way")
    return Reminded(customer=customer)
