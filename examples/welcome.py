"""A small shop that welcomes its customers; ``examples/test_welcome.py`` tests it.

``PQRUN_DSN=embedded:jobs-db uvicorn examples.welcome:app``, and ``pqrun worker examples.welcome:jobs`` beside it.
"""

from datetime import timedelta

from fastapi import FastAPI
from pydantic import BaseModel

from pqrun import App, JobContext

jobs = App()  # PQRUN_DSN in production; the tests bind it to databases of their own
app = FastAPI(lifespan=jobs.lifespan)


class Welcome(BaseModel):
    user_id: int
    template: str = "welcome"


class Sent(BaseModel):
    message_id: str


@jobs.task(payload=Welcome, max_attempts=3)
async def send_email(ctx: JobContext, payload: Welcome) -> Sent:
    return Sent(message_id=f"{payload.template}-{payload.user_id}")


@jobs.task
async def sign_up(ctx: JobContext, user_id: int) -> None:
    await send_email.defer(user_id=user_id)
    await send_email.options(run_after=timedelta(days=7)).defer(user_id=user_id, template="how-is-it")


@app.post("/users/{user_id}", status_code=202)
async def create(user_id: int) -> dict[str, int]:
    job = await sign_up.defer(user_id=user_id)
    return {"job": job.id}
