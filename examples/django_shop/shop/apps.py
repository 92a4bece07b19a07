"""Django's entry point of the application."""

from django.apps import AppConfig


class ShopConfig(AppConfig):
    name = "shop"

    def ready(self) -> None:
        from . import tasks  # noqa: F401  # models are ready now; so every process, the worker too, knows the tasks
