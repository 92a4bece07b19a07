"""For ``pqrun worker shop.worker:jobs``: sets Django up, which imports the tasks of every application, and gives the app."""

import os

import django

from .jobs import jobs

__all__ = ["jobs"]

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
django.setup()
