"""A Starlette application that enqueues, and answers at once where the result comes soon.

::

    export PQRUN_DSN=embedded:jobs-db           # or a PostgreSQL of your own, after pqrun migrate
    uvicorn examples.starlette_app:app          # opens the database; runs no jobs
    pqrun worker examples.starlette_app:jobs    # runs them

``POST /resize`` takes ``{"path": "a.png"}`` and waits up to ten seconds; ``GET /resize/{id}`` tells what became of a job.
"""

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from pqrun import App, JobContext, JobFailed, ResultTimeout, Status

jobs = App()


class Resize(msgspec.Struct):
    path: str
    width: int = 100


class Resized(msgspec.Struct):
    path: str


@jobs.task(payload=Resize, queue="images", priority=5, max_attempts=1)
async def resize(ctx: JobContext, payload: Resize) -> Resized:
    if payload.width <= 0:
        raise ValueError("a picture needs a width")
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
        return JSONResponse({"id": job.id}, status_code=202)  # it goes on
    except JobFailed as failure:
        return JSONResponse({"id": job.id, "error": str(failure)}, status_code=500)
    return JSONResponse({"id": job.id, "path": resized.path})


async def get_resize(request: Request) -> JSONResponse:
    job_id: int = request.path_params["job_id"]
    job = await resize.find(job_id)
    if job is None:
        raise HTTPException(404)
    if job.status is not Status.DONE:
        return JSONResponse({"status": job.status, "error": job.error_summary})
    resized = await resize.handle(job_id).result(timeout=0)
    return JSONResponse({"status": job.status, "path": resized.path})


app = Starlette(
    routes=[Route("/resize", post_resize, methods=["POST"]), Route("/resize/{job_id:int}", get_resize)],
    lifespan=jobs.lifespan,
)
