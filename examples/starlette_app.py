"""A Starlette application that enqueues: ``PQRUN_DSN=embedded:jobs-db uvicorn examples.starlette_app:app``.

It opens the app and runs no jobs; ``pqrun worker examples.starlette_app:jobs`` does. ``POST /resize`` takes ``{"path": "a.png"}``
and waits for the result.
"""

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from pqrun import App, JobContext, ResultTimeout

jobs = App()


class Resize(msgspec.Struct):
    path: str
    width: int = 100


class Resized(msgspec.Struct):
    path: str


@jobs.task(payload=Resize, queue="images", priority=5)
async def resize(ctx: JobContext, payload: Resize) -> Resized:
    return Resized(path=f"{payload.width}/{payload.path}")


async def post_resize(request: Request) -> JSONResponse:
    try:
        payload = msgspec.json.decode(await request.body(), type=Resize)
    except msgspec.MsgspecError as error:
        return JSONResponse({"error": str(error)}, status_code=422)
    job = await resize.defer(payload)
    try:
        resized = await job.result(timeout=10)
    except ResultTimeout:
        return JSONResponse({"id": job.id}, status_code=202)
    return JSONResponse({"id": job.id, "path": resized.path})


app = Starlette(routes=[Route("/resize", post_resize, methods=["POST"])], lifespan=jobs.lifespan)
