"""A FastAPI application that enqueues, tells status and typed result, and runs the worker too.

``PQRUN_DSN=embedded:jobs-db uvicorn examples.fastapi_app:app``, then ``POST /emails`` and ``GET /emails/{id}``. With workers in processes
of their own (``pqrun worker examples.fastapi_app:jobs``) the application takes ``lifespan=jobs.lifespan`` instead.
"""

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from pqrun import App, JobContext, JobNotFound, Status

jobs = App()


class Welcome(BaseModel):
    user_id: int
    template: str = "welcome"


class Sent(BaseModel):
    message_id: str


@jobs.task(payload=Welcome, timeout=30, dedupe_key="welcome:{user_id}")
async def send_email(ctx: JobContext, payload: Welcome) -> Sent:
    ctx.logger.info("sending %s", payload.template)
    return Sent(message_id=f"{payload.template}-{payload.user_id}")


app = FastAPI(lifespan=jobs.worker(concurrency=10).lifespan)


class Accepted(BaseModel):
    id: int
    created: bool


class Progress(BaseModel):
    status: Status
    result: Sent | None = None


@app.post("/emails", status_code=202)
async def enqueue(welcome: Welcome) -> Accepted:
    job = await send_email.defer(welcome)
    return Accepted(id=job.id, created=job.created)


@app.get("/emails/{job_id}")
async def look(job_id: int) -> Progress:
    handle = send_email.handle(job_id)
    try:
        job = await handle.job()
    except JobNotFound as error:
        raise HTTPException(404, "no such e-mail") from error
    if job.job_type != send_email.name:  # an id of another task's
        raise HTTPException(404, "no such e-mail")
    return Progress(status=job.status, result=await handle.result(timeout=0) if job.status is Status.DONE else None)
