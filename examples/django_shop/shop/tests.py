"""``python manage.py test``: what a view enqueues is part of the transaction that a TestCase rolls back."""

from django.db import connection
from django.test import TestCase, TransactionTestCase

from .models import Order
from .tasks import write_invoice


def waiting() -> list[tuple[str, int]]:
    """Job types and orders, as this very transaction sees them."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT job_type, (payload->>'order_id')::bigint FROM pqrun.jobs ORDER BY id")
        found: list[tuple[str, int]] = cursor.fetchall()
    return found


class OrderTests(TestCase):
    def post(self, total: int) -> int:
        answer = self.client.post("/orders", {"customer": "Ada", "total": total}, content_type="application/json")
        return int(answer.status_code)

    def test_an_order_enqueues_its_invoice(self) -> None:
        self.assertEqual(self.post(700), 202)
        self.assertEqual(waiting(), [("write_invoice", Order.objects.get().id)])

    def test_a_refused_order_enqueues_nothing(self) -> None:
        self.assertEqual(self.post(2000), 409)
        self.assertEqual(waiting(), [])


class InvoiceTests(TransactionTestCase):  # other connections see what is committed
    def test_a_job_is_shown_by_its_id(self) -> None:
        job = write_invoice.defer_sync(order_id=1)
        self.assertEqual(self.client.get(f"/invoices/{job.id}").json(), {"status": "READY", "error": None})
        self.assertEqual(self.client.get(f"/invoices/{job.id + 1}").status_code, 404)
        job.cancel_sync()
