"""The views: plain ones that join Django's transaction, and an async one."""

import json
from dataclasses import asdict

from django.db import connection, transaction
from django.db.models import Sum
from django.http import Http404, HttpRequest, JsonResponse

from pqrun import Status

from .models import Order
from .tasks import remind, write_invoice

CREDIT = 1000


class OverTheLimit(Exception):
    pass


def place_order(request: HttpRequest) -> JsonResponse:
    new = json.loads(request.body)
    try:
        with transaction.atomic():
            order = Order.objects.create(customer=new["customer"], total=new["total"])
            job = write_invoice.options(connection=connection).defer_sync(order_id=order.id)
            if Order.objects.filter(customer=order.customer).aggregate(owed=Sum("total"))["owed"] > CREDIT:
                raise OverTheLimit  # leaves neither the order nor its job
    except OverTheLimit:
        return JsonResponse({"error": "over the credit limit"}, status=409)
    return JsonResponse({"order_id": order.id, "job_id": job.id}, status=202)


def show_invoice(request: HttpRequest, job_id: int) -> JsonResponse:
    job = write_invoice.find_sync(job_id)
    if job is None:
        raise Http404
    if job.status is not Status.DONE:
        return JsonResponse({"status": job.status, "error": job.error_summary})
    return JsonResponse({"status": job.status, "invoice": asdict(write_invoice.handle(job_id).result_sync(timeout=0))})


async def remind_customer(request: HttpRequest, order_id: int) -> JsonResponse:
    """Defer, and wait without holding a thread; for ASGI, where asgi.py has opened the app."""
    try:
        order = await Order.objects.aget(id=order_id)
    except Order.DoesNotExist as error:
        raise Http404 from error
    job = await remind.defer(customer=order.customer)
    return JsonResponse(asdict(await job.result(timeout=10)))
