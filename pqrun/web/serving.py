"""From a request to a view and back: who asks, whether a POST is genuine, and what every answer has in common."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pqrun.errors import (
    DatabaseUnavailableError,
    DeferError,
    JobError,
    JobNotFound,
    PqrunError,
    QueryError,
    ScheduleError,
    ScheduleNotFound,
    SchemaError,
    StoreError,
)
from pqrun.store.pages import STATEMENT_CANCELLED
from pqrun.web.access import Access, judge
from pqrun.web.defence import HEADERS, TOKEN_FIELD, foreign_reason
from pqrun.web.plain import plain
from pqrun.web.site import Site
from pqrun.web.visit import Form, PageError, Visit, read_form

__all__ = ["Data", "Endpoint", "View", "answer", "hardened", "json_endpoint", "page_endpoint"]

_LOGGER = logging.getLogger("pqrun")

View: TypeAlias = Callable[[Visit], Awaitable[Response]]
Data: TypeAlias = Callable[[Visit], Awaitable[Mapping[str, object]]]
"""Reads what a page shows, and its JSON twin too."""
Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]

TOO_LONG: Final = (
    "The database would have needed too long for this. Ask for less: name a state, a task, ids, or a time (since:1h). "
    "Nothing was changed."
)


def hardened(app: ASGIApp) -> ASGIApp:
    """Put the headers of ``defence`` on every answer."""
    headers = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        async def add(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = list(message.get("headers", ()))
                named = {name for name, _ in given}
                message = {**message, "headers": [*given, *(pair for pair in headers if pair[0] not in named)]}
            await send(message)

        await app(scope, receive, add if scope["type"] == "http" else send)

    return serve


def page_endpoint(site: Site, template: str, data: Data, act: View | None = None) -> Endpoint:
    """Serve a page of HTML; a POST to it goes to ``act``."""

    async def show(visit: Visit) -> Response:
        return visit.render(template, await data(visit))

    async def endpoint(request: Request) -> Response:
        if request.method == "POST":
            return await answer(site, request, act or show)
        return await answer(site, request, show)

    return endpoint


def json_endpoint(site: Site, data: Data) -> Endpoint:
    """Serve the same as JSON."""

    async def show(visit: Visit) -> Response:
        return Response(msgspec.json.encode(plain(await data(visit))), media_type="application/json")

    async def endpoint(request: Request) -> Response:
        return await answer(site, request, show, as_json=True)

    return endpoint


async def answer(site: Site, request: Request, view: View, *, as_json: bool = False) -> Response:
    """Let the view answer somebody who may be here, and turn what goes wrong into a page that says so."""
    try:
        access = await judge(site.rules.authorize, request)
    except Exception:  # the border to user code: whatever it raises lets nobody in
        _LOGGER.exception("pages: authorize= failed")
        return PlainTextResponse("pqrun: it cannot be found out who you are; the log of the server says why\n", 500)
    if access is None:
        return _unknown(site, request)
    visit = Visit(request, site, access)
    try:
        if request.method == "POST":
            visit = Visit(request, site, access, await _genuine_form(site, request, access))
        return await view(visit)
    except PageError as error:
        return _said(visit, error, as_json=as_json)
    except PqrunError as error:
        return _said(visit, page_error(error), as_json=as_json)


async def _genuine_form(site: Site, request: Request, access: Access) -> Form:
    """Return the form of a POST that one of these pages sent; raises PageError."""
    reason = foreign_reason(request, site.rules.origins)
    form = Form(()) if reason is not None else await read_form(request)
    if reason is None and not site.tokens.is_valid(request, access.user, form.get(TOKEN_FIELD)):
        reason = "the form has no valid token: it may be old, or cookies are off"
    if reason is not None:
        _LOGGER.warning("pages: refused a POST to %s: %s", request.url.path, reason)
        raise PageError(403, "Refused", f"Nothing was done: {reason}. Open the page again and repeat the action.")
    return form


def _unknown(site: Site, request: Request) -> Response:
    challenge = getattr(site.rules.authorize, "challenge", None)
    if challenge is not None:
        return PlainTextResponse("pqrun: sign in\n", 401, {"WWW-Authenticate": challenge})
    del request
    return PlainTextResponse(
        "pqrun: you may not see these pages.\n\n"
        "Without authorize= they are shown to this machine alone: directly, not through a proxy, and as localhost. "
        "See docs/web.md for authorize=.\n",
        403,
    )


def page_error(error: PqrunError) -> PageError:
    """Say what went wrong in the words of a page."""
    match error:
        case JobNotFound() | ScheduleNotFound():
            return PageError(404, "Not found", f"{str(error)[:1].upper()}{str(error)[1:]}.")
        case StoreError(sqlstate=state) if state == STATEMENT_CANCELLED:
            return PageError(503, "That takes too long", TOO_LONG)
        case SchemaError():
            return PageError(503, "The schema does not fit", str(error))
        case DatabaseUnavailableError():
            return PageError(503, "The database cannot be reached", str(error))
        case StoreError():
            return PageError(500, "The database refused", str(error))
        case QueryError():
            return PageError(400, "The query cannot be read", str(error))
        case JobError() | ScheduleError():
            return PageError(409, "Refused", str(error))
        case DeferError():
            return PageError(422, "That cannot be done", str(error))
        case _:
            return PageError(500, "It does not work", str(error))


def _said(visit: Visit, error: PageError, *, as_json: bool) -> Response:
    if as_json:
        body = msgspec.json.encode({"error": error.title, "detail": error.words})
        return Response(body, error.status, media_type="application/json")
    return visit.render("error.html", {"error": error}, error.status)
