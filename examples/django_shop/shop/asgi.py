"""For uvicorn and other ASGI servers: Django has no lifespan, so a Starlette around it opens the app for async views."""

import os

from django.core.asgi import get_asgi_application
from starlette.applications import Starlette
from starlette.routing import Mount

from .jobs import jobs

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")

application = Starlette(routes=[Mount("/", get_asgi_application())], lifespan=jobs.lifespan)
