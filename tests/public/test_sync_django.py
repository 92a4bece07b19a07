"""Views of the real Django, plain and async, under both of its handlers."""

import pytest

from tests.support.scripts import output

PROJECT = """
    import asyncio, threading
    from asgiref.sync import sync_to_async
    from django.conf import settings
    settings.configure(ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, SECRET_KEY="x")
    import django
    from django.http import HttpRequest, JsonResponse
    from django.test import AsyncClient, Client
    from django.urls import path
    from pqrun import WrongLoopError
    django.setup()

    def plain(request):
        job = t.defer_sync(1)
        return JsonResponse({"created": job.created, "status": job.status_sync().value})

    async def wrapped(request):
        return await sync_to_async(plain)(request)

    async def wrong(request):
        try:
            t.defer_sync(1)
        except WrongLoopError as error:
            return JsonResponse({"refused": str(error).rpartition("; ")[2]})

    urlpatterns = [path("plain", plain), path("wrapped", wrapped), path("wrong", wrong)]

    async def ask(path):
        return await AsyncClient().get(path)

    def get(path):
        return WAY
"""

WAYS = {"wsgi": "Client().get(path)", "asgi": "asyncio.run(ask(path))"}


@pytest.mark.parametrize("way", WAYS)
def test_a_plain_view_defers_and_an_async_one_does_in_a_thread(dsn: str, way: str) -> None:
    text = (
        PROJECT.replace("WAY", WAYS[way])
        + """
    for name in ("plain", "wrapped", "wrong"):
        print(get(f"/{name}").json())
    print([thread.name for thread in threading.enumerate()].count("pqrun sync"))
    """
    )
    right = "{'created': True, 'status': 'READY'}"
    assert output(text, dsn) == [right, right, "{'refused': 'use: await t.defer(...)'}", "1"]
