"""``create_app``: the pages as an ASGI application, mounted or alone."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from http import HTTPStatus
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from pqrun.app import App
from pqrun.errors import ConfigurationError, PqrunError
from pqrun.store import PgJobStore
from pqrun.web.access import Authorize, LocalOnly
from pqrun.web.defence import Tokens
from pqrun.web.drawing import FUNCTIONS
from pqrun.web.export import export_jobs
from pqrun.web.live import Pulse, events_view
from pqrun.web.metrics import metrics_view
from pqrun.web.rendering import environment
from pqrun.web.serving import Data, Endpoint, View, answer, hardened, json_endpoint, page_endpoint
from pqrun.web.site import Redact, Rules, Site, checked_actions
from pqrun.web.views.errors import act_on_errors, errors_data
from pqrun.web.views.job import act_on_job, job_data, job_json
from pqrun.web.views.jobs import act_on_jobs, jobs_data
from pqrun.web.views.operations import act_on_operation, operation_data, operations_data
from pqrun.web.views.overview import overview_data
from pqrun.web.views.queues import act_on_queue, queue_data, queues_data
from pqrun.web.views.schedules import act_on_schedule, schedule_data, schedules_data
from pqrun.web.views.system import act_on_system, help_data, system_data
from pqrun.web.views.tasks import act_on_task, task_data, tasks_data
from pqrun.web.views.workers import act_on_worker, worker_data, workers_data
from pqrun.web.visit import PageError, Visit

__all__ = ["create_app"]


def create_app(
    jobs: App[Any] | PgJobStore,
    *,
    authorize: Authorize | None = None,
    redact: Redact | None = None,
    hide_payloads: bool = False,
    allow_actions: Collection[str] | None = None,
    origins: Collection[str] = (),
    secret: str | None = None,
    title: str = "pqrun",
) -> Starlette:
    """Return the pages as an ASGI application: ``app.mount("/pqrun", pqrun.web.create_app(jobs))``, or served by itself.

    ``jobs``: an App, or a PgJobStore, whose tasks are unknown then. ``authorize(request)`` says who asks: an ``Access`` with a user and a
    role, or None; without it only this machine itself sees the pages, and changes nothing. ``redact(job_type, part, value)`` returns what
    may be shown of a payload, a result or an error. ``hide_payloads``: viewers see neither of them. ``allow_actions``: names of actions
    that roles may do at all (``pqrun.web.ACTIONS``); default: all. ``origins``: further origins that forms may come from, such as
    ``"https://ops.example.org"`` before a proxy that changes the Host header. ``secret``: the same in all processes, if several serve the
    pages. ``title``: what the pages are called. Raises ConfigurationError.
    """
    if not isinstance(jobs, App | PgJobStore):
        raise ConfigurationError(f"create_app: expected an App or a PgJobStore; got {type(jobs).__name__}")
    if secret is not None and len(secret) < SECRET_LEAST:
        raise ConfigurationError(f"secret: expected at least {SECRET_LEAST} characters; got {len(secret)}")
    rules = Rules(
        authorize=LocalOnly() if authorize is None else authorize,
        redact=redact,
        hide_payloads=hide_payloads,
        allow_actions=checked_actions(allow_actions),
        origins=frozenset(origins),
        title=title,
    )
    site = Site(jobs, rules, environment(FUNCTIONS), Tokens(secret))
    pulse = Pulse(site)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await pulse.close()
            await site.close()

    return Starlette(
        routes=_routes(site, pulse),
        lifespan=lifespan,
        middleware=[Middleware(_Hardened)],
        exception_handlers={HTTPException: _refused(site), Exception: _broken},
    )


SECRET_LEAST = 16


class _Hardened:
    """``hardened`` in the form that Starlette takes."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = hardened(app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


class _Static(StaticFiles):
    """Style and scripts: kept by browsers, and asked for anew only as to whether they have changed."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:  # noqa: ANN401  # Starlette's own, handed on
        response = super().file_response(*args, **kwargs)
        response.headers["cache-control"] = "no-cache"
        return response


def _routes(site: Site, pulse: Pulse) -> list[Route | Mount]:
    pages: list[tuple[str, str, Data, View | None]] = [
        ("/", "overview", overview_data, None),
        ("/jobs", "jobs", jobs_data, act_on_jobs),
        ("/jobs/{id:int}", "job", job_data, act_on_job),
        ("/queues", "queues", queues_data, None),
        ("/queues/{name:path}", "queue", queue_data, act_on_queue),
        ("/errors", "errors", errors_data, act_on_errors),
        ("/tasks", "tasks", tasks_data, None),
        ("/tasks/{name:path}", "task", task_data, act_on_task),
        ("/schedules", "schedules", schedules_data, None),
        ("/schedules/{name:path}", "schedule", schedule_data, act_on_schedule),
        ("/workers", "workers", workers_data, None),
        ("/workers/{id:int}", "worker", worker_data, act_on_worker),
        ("/operations", "operations", operations_data, None),
        ("/operations/{id:int}", "operation", operation_data, act_on_operation),
        ("/system", "system", system_data, act_on_system),
        ("/help", "help", help_data, None),
    ]
    routes: list[Route | Mount] = [
        Route("/livez", _live),
        Route("/readyz", _ready(site)),
        Route("/events", _viewed(site, lambda visit: events_view(visit, pulse))),
        Route("/jobs.{kind}", _viewed(site, export_jobs)),
        Mount("/static", _Static(directory=str(files("pqrun.web") / "static"))),
    ]
    if (metrics := metrics_view()) is not None:
        routes.append(Route("/metrics", _viewed(site, metrics)))
    for path, name, data, act in pages:
        methods = ["GET"] if act is None else ["GET", "POST"]
        twin = "/api/overview.json" if path == "/" else f"/api{path}.json"
        routes.append(Route(twin, json_endpoint(site, job_json if name == "job" else data)))
        routes.append(Route(path, page_endpoint(site, f"{name}.html", data, act), methods=methods))
    return routes


def _viewed(site: Site, view: View) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        return await answer(site, request, view)

    return endpoint


async def _live(_request: Request) -> Response:
    return PlainTextResponse("ok\n")


def _ready(site: Site) -> Endpoint:
    """Whether the database answers, and the schema fits; says no more than that, as it asks nobody who he is."""

    async def endpoint(_request: Request) -> Response:
        try:
            await (await site.store()).check_schema()
        except PqrunError as error:
            return PlainTextResponse(f"not ready: {type(error).__name__}\n", 503)
        return PlainTextResponse("ok\n")

    return endpoint


def _refused(site: Site) -> Callable[[Request, Exception], Awaitable[Response]]:
    """What the routing itself refuses: no such page, or a method that a page does not take."""

    async def handler(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else HTTPStatus.INTERNAL_SERVER_ERROR
        phrase = HTTPStatus(status).phrase

        async def show(_visit: Visit) -> Response:
            words = "There is no such page." if status == HTTPStatus.NOT_FOUND else f"{phrase}."
            raise PageError(status, phrase, words)

        if request.method != "GET":
            return PlainTextResponse(f"pqrun: {phrase}\n", status)
        return await answer(site, request, show)

    return handler


async def _broken(_request: Request, _error: Exception) -> Response:
    """A mistake of ours, or of ``authorize``: the log has it; the page says nothing of it."""
    return PlainTextResponse("pqrun: something went wrong here; the log of the server says what\n", 500)
