"""The app that these tests are about."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from pydantic import BaseModel

from pqrun import App, BackoffPolicy, JobContext


class AtOnce(BackoffPolicy):
    def retry_delay(self, attempts: int) -> timedelta:
        return timedelta(0)


class Welcome(BaseModel):
    user_id: int
    template: str = "welcome"


class Sent(BaseModel):
    message_id: str


class Shop:
    """An app, its tasks, and what they did."""

    def __init__(self, dsn: str, **options: Any) -> None:
        self.jobs = jobs = App(dsn=dsn, **options)
        self.did: list[str] = []
        did = self.did

        @jobs.task(payload=Welcome, dedupe_key="welcome:{user_id}")
        async def send_email(ctx: JobContext, payload: Welcome) -> Sent:
            did.append(f"email {payload.user_id}")
            return Sent(message_id=f"{payload.template}-{payload.user_id}")

        @jobs.task
        async def sign_up(ctx: JobContext, user_id: int) -> None:
            did.append(f"sign up {user_id}")
            await send_email.defer(user_id=user_id)
            await send_email.options(run_after=timedelta(days=1)).defer(user_id=user_id + 1000, template="reminder")

        @jobs.task(max_attempts=3)
        async def pay(ctx: JobContext, order: int) -> dict[str, int]:
            did.append(f"pay {order} attempt {ctx.job.attempts}")
            if order < 0:
                raise ValueError(f"no such order: {order}")
            return {"order": order}

        @jobs.task(max_attempts=3, backoff=AtOnce())
        def resize(ctx: JobContext, path: str, width: int = 100) -> dict[str, int]:
            did.append(f"resize {path} attempt {ctx.job.attempts}")
            return {"width": width}

        @jobs.task
        async def echo(ctx: JobContext) -> None:
            await echo.defer()

        self.send_email = send_email
        self.sign_up = sign_up
        self.pay = pay
        self.resize = resize
        self.echo = echo


@asynccontextmanager
async def till() -> AsyncIterator[str]:
    """What a worker of a shop with resources opens."""
    yield "the till"
