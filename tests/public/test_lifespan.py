"""The lifespans of an app and of a worker in the web frameworks that people use."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import asyncpg
import httpx
import litestar
import litestar.testing
import pytest
from fastapi import FastAPI
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from pqrun import App, JobContext, NotOpenError, Status
from tests.public.at_work import at_work

Lifespan = Callable[[Any], AbstractAsyncContextManager[None]]


class Sent(BaseModel):
    message_id: str


def lifespan_of(jobs: App[None], kind: str) -> Lifespan:
    """With a worker, or for an API process that runs none."""
    return jobs.worker(environ={}).lifespan if kind == "worker" else jobs.lifespan


@asynccontextmanager
async def client_of(app: Starlette, *, opened: bool = True) -> AsyncIterator[httpx.AsyncClient]:
    """Speak to an application whose lifespan has begun."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as client:
        if not opened:
            yield client
            return
        async with app.router.lifespan_context(app):
            yield client


@pytest.fixture(params=["worker", "api"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def ended(connection: asyncpg.Connection) -> list[tuple[str, int]]:
    rows = await connection.fetch("SELECT status, attempts FROM pqrun.jobs")
    return [(row["status"], row["attempts"]) for row in rows]


EXPECTED = {"worker": [("DONE", 1)], "api": [("READY", 0)]}


async def test_fastapi_defers_and_gives_typed_results(
    jobs: App[None], kind: str, connection: asyncpg.Connection
) -> None:
    @jobs.task
    async def send_email(ctx: JobContext, user_id: int) -> Sent:
        return Sent(message_id=f"m-{user_id}")

    app = FastAPI(lifespan=lifespan_of(jobs, kind))

    @app.post("/emails")
    async def enqueue(user_id: int) -> dict[str, int]:
        return {"id": (await send_email.defer(user_id)).id}

    @app.get("/emails/{job_id}")
    async def wait_for(job_id: int) -> Sent:
        return await send_email.handle(job_id).result(timeout=30)

    async with client_of(app) as client:
        job_id = (await client.post("/emails", params={"user_id": 7})).json()["id"]
        if kind == "worker":
            assert (await client.get(f"/emails/{job_id}")).json() == {"message_id": "m-7"}
    assert not jobs.store.is_open
    assert await ended(connection) == EXPECTED[kind]


async def test_starlette_defers(jobs: App[None], kind: str, connection: asyncpg.Connection) -> None:
    @jobs.task
    async def send_email(ctx: JobContext, user_id: int) -> Sent:
        return Sent(message_id=f"m-{user_id}")

    async def enqueue(request: Request) -> JSONResponse:
        job = await send_email.defer(int(request.query_params["user_id"]))
        return JSONResponse((await job.result(timeout=30)).model_dump() if kind == "worker" else {"id": job.id})

    app = Starlette(routes=[Route("/", enqueue, methods=["POST"])], lifespan=lifespan_of(jobs, kind))
    async with client_of(app) as client:
        answer = (await client.post("/", params={"user_id": 7})).json()
    assert answer == ({"message_id": "m-7"} if kind == "worker" else {"id": 1})
    assert await ended(connection) == EXPECTED[kind]


async def test_litestar_defers(jobs: App[None], kind: str, connection: asyncpg.Connection) -> None:
    @jobs.task
    async def send_email(ctx: JobContext, user_id: int) -> Sent:
        return Sent(message_id=f"m-{user_id}")

    @litestar.post("/")
    async def enqueue(request: litestar.Request[Any, Any, Any]) -> dict[str, Any]:
        job = await send_email.defer(int(request.query_params["user_id"]))
        return (await job.result(timeout=30)).model_dump() if kind == "worker" else {"id": job.id}

    app = litestar.Litestar([enqueue], lifespan=[lifespan_of(jobs, kind)], logging_config=None)
    with litestar.testing.TestClient(app) as client:
        answer = client.post("/", params={"user_id": 7}).json()
    assert answer == ({"message_id": "m-7"} if kind == "worker" else {"id": 1})
    assert await ended(connection) == EXPECTED[kind]


async def test_an_application_on_the_workers_own_loop_shares_its_store(jobs: App[None]) -> None:
    @jobs.task
    async def send_email(ctx: JobContext, user_id: int) -> Sent:
        return Sent(message_id=f"m-{user_id}")

    app = FastAPI(lifespan=jobs.lifespan)

    @app.post("/emails")
    async def enqueue(user_id: int) -> Sent:
        job = await send_email.defer(user_id)
        return await job.result(timeout=30)

    async with at_work(jobs), client_of(app) as client:
        answer = await client.post("/emails", params={"user_id": 7})
    assert answer.json() == {"message_id": "m-7"}
    assert not jobs.store.is_open


async def test_a_request_without_the_lifespan_is_told_how_to_open_the_app(jobs: App[None]) -> None:
    @jobs.task
    async def sweep(ctx: JobContext) -> None: ...

    app = FastAPI()

    @app.post("/")
    async def enqueue() -> None:
        await sweep.defer()

    async with client_of(app, opened=False) as client:
        with pytest.raises(NotOpenError, match=r"lifespan=jobs\.lifespan"):
            await client.post("/")


async def test_a_lifespan_can_be_entered_again(jobs: App[None]) -> None:
    @jobs.task
    async def sweep(ctx: JobContext) -> None: ...

    app = FastAPI(lifespan=jobs.worker(environ={}).lifespan)

    @app.post("/")
    async def enqueue() -> Status:
        job = await sweep.defer()
        await job.result(timeout=30)
        return await job.status()

    for _ in range(2):
        async with client_of(app) as client:
            assert (await client.post("/")).json() == "DONE"
