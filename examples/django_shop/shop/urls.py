"""Where the views are."""

from django.urls import path

from . import views

urlpatterns = [
    path("orders", views.place_order),
    path("orders/<int:order_id>/reminder", views.remind_customer),
    path("invoices/<int:job_id>", views.show_invoice),
]
