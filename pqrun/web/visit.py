"""One request of somebody who may be here: what the views work with, and how an answer is made."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from urllib.parse import parse_qsl, quote, urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from pqrun.store.link import Session
from pqrun.store.pages import reading
from pqrun.web.access import Access
from pqrun.web.defence import TOKEN_FIELD
from pqrun.web.site import Site

__all__ = ["Form", "PageError", "Visit", "read_form"]

FORM_BYTES = 1_000_000
FORM_FIELDS = 5_000

REFRESH_LEAST = 2
REFRESH_DIGITS = 4


class PageError(Exception):
    """What a view answers instead of its page: a status, a heading, and words that say what to do."""

    def __init__(self, status: int, title: str, words: str) -> None:
        super().__init__(title)
        self.status = status
        self.title = title
        self.words = words


class Form:
    """The fields of a form; of several with one name all are kept."""

    def __init__(self, pairs: Sequence[tuple[str, str]]) -> None:
        self.pairs = pairs
        self._last = dict(pairs)

    def get(self, name: str, default: str = "") -> str:
        """Return a field, without white space around it."""
        return self._last.get(name, default).strip()

    def all(self, name: str) -> list[str]:
        """Return every value of a field."""
        return [value for field, value in self.pairs if field == name]

    def __contains__(self, name: object) -> bool:
        return name in self._last


async def read_form(request: Request) -> Form:
    """Read a form as browsers send it by default; raises PageError for another kind of body and one that is too large."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise PageError(415, "Not a form", "Expected the fields of a form (application/x-www-form-urlencoded).")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > FORM_BYTES:
            raise PageError(413, "Too much", f"A form may hold {FORM_BYTES:,} bytes at most.")
    try:
        pairs = parse_qsl(
            body.decode(), keep_blank_values=True, strict_parsing=False, max_num_fields=FORM_FIELDS, errors="strict"
        )
    except ValueError:
        raise PageError(400, "Not a form", f"Expected at most {FORM_FIELDS:,} fields of text in UTF-8.") from None
    return Form(pairs)


class Visit:
    """See the module's docstring."""

    def __init__(self, request: Request, site: Site, access: Access, form: Form | None = None) -> None:
        self.request = request
        self.site = site
        self.access = access
        self.form = form or Form(())
        self.root = str(request.scope.get("root_path") or "").rstrip("/")
        self.cookie = site.tokens.cookie_of(request)
        self.is_new = self.cookie is None
        if self.cookie is None:
            self.cookie = site.tokens.new_cookie()

    @property
    def query(self) -> Mapping[str, str]:
        """The parameters of the URL."""
        return self.request.query_params

    @property
    def path(self) -> str:
        """The path of the page within these pages."""
        path = str(self.request.scope["path"])
        return path[len(self.root) :] if self.root and path.startswith(self.root) else path

    def url(self, path: str, **query: object) -> str:
        """Return the URL of a page, wherever these pages are mounted; None leaves a parameter out, and a list gives it several times."""
        given = {name: value for name, value in query.items() if value is not None and value != "" and value != []}
        return self.root + quote(path) + (f"?{urlencode(given, doseq=True)}" if given else "")

    def with_query(self, **changes: object) -> str:
        """Return the URL of this page with other parameters."""
        given = self.request.query_params
        return self.url(self.path, **{**{name: given.getlist(name) for name in given}, **changes})

    def name_url(self, kind: str, name: str) -> str:
        """Return the URL of the page of something that has a name, whatever that holds."""
        return f"{self.root}/{kind}/{quote(name, safe='')}"

    def number(self, name: str, least: int, most: int) -> int | None:
        """Return a parameter that is a number, None where it is not given; raises PageError."""
        text = self.query.get(name, "")
        if not text:
            return None
        if not (text.isascii() and text.isdigit() and len(text) <= 19) or not least <= int(text) <= most:
            raise PageError(400, "Not a number", f"{name}= takes a whole number from {least} to {most}.")
        return int(text)

    @property
    def refresh(self) -> int | None:
        """After how many seconds the page asks for itself again, without JavaScript; None too where it is no number of seconds."""
        text = self.query.get("refresh", "")
        seconds = int(text) if text.isascii() and text.isdigit() and len(text) <= REFRESH_DIGITS else 0
        return max(seconds, REFRESH_LEAST) if seconds else None

    @property
    def token(self) -> str:
        """What each form of the page holds."""
        return self.site.tokens.token(self.cookie or "", self.access.user)

    @property
    def token_field(self) -> str:
        """The name of the field that holds it."""
        return TOKEN_FIELD

    def may(self, action: str) -> bool:
        """Whether the visitor may do this."""
        return self.site.may(self.access, action)

    def must(self, action: str) -> None:
        """Refuse what the visitor may not do, with PageError."""
        if not self.may(action):
            raise PageError(
                403,
                "Not allowed",
                f"{self.access.user} may not do this here ({action}): the role is {self.access.role.name.lower()}.",
            )

    @property
    def sees_payloads(self) -> bool:
        """Whether the visitor sees payloads, results and the text of errors."""
        return self.site.sees_payloads(self.access)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Session]:
        """Lend the statements of a page."""
        async with reading(await self.site.store()) as session:
            yield session

    def render(self, template: str, context: Mapping[str, object], status: int = 200) -> Response:
        """Return a page."""
        text = self.site.templates.get_template(template).render(visit=self, **context)
        return self.finished(HTMLResponse(text, status))

    def redirect(self, url: str) -> Response:
        """Send the browser to a page, after an action."""
        return self.finished(RedirectResponse(url, 303))

    def finished(self, response: Response) -> Response:
        """Add the cookie that forms need."""
        if self.is_new and self.cookie is not None:
            self.site.tokens.set_cookie(self.request, response, self.cookie)
        return response
