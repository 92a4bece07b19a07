"""What keeps other sites and hostile text out: headers of every answer, and the proof that a POST comes from one of these pages.

A POST needs both: the browser says that a page of this origin sent it (``Sec-Fetch-Site``, or ``Origin`` where a browser on plain http
sends no other), and the form holds a token that is bound to the cookie and the user. Referrer-Policy is ``same-origin``: nothing leaves
for other sites, while ``no-referrer`` would make browsers send ``Origin: null`` with forms, and leave nothing to check.
"""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

__all__ = ["COOKIE", "HEADERS", "TOKEN_FIELD", "Tokens", "foreign_reason"]

COOKIE: Final = "pqrun_form"
TOKEN_FIELD: Final = "_token"  # noqa: S105  # the name of the field

HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}


def foreign_reason(request: Request, origins: Collection[str]) -> str | None:
    """Say why a POST was not sent by a page of this origin, or None: it was. ``origins``: further ones that count as this."""
    origin = request.headers.get("origin")
    site = request.headers.get("sec-fetch-site")
    if site is not None and site != "same-origin":
        return "another site sent it (Sec-Fetch-Site)"
    if origin not in (None, "null"):
        is_own = urlsplit(origin).netloc == request.headers.get("host") or origin in origins
        return None if is_own else "another origin sent it (Origin)"
    return (
        None
        if site == "same-origin"
        else "the browser does not say where it comes from (neither Origin nor Sec-Fetch-Site)"
    )


class Tokens:
    """Tokens for forms: an HMAC of the cookie and the user, so neither another user's nor another browser's is taken."""

    def __init__(self, secret: str | None) -> None:
        # Without a given secret each process has its own: then one process must serve a browser's forms and what it sends.
        self._key = secrets.token_bytes(32) if secret is None else hashlib.sha256(secret.encode()).digest()

    def cookie_of(self, request: Request) -> str | None:
        """Return the browser's cookie, if it is one of ours."""
        cookie = request.cookies.get(COOKIE, "")
        return cookie if len(cookie) == COOKIE_LENGTH and cookie.isascii() else None

    def token(self, cookie: str, user: str) -> str:
        """Return what a form holds."""
        digest = hmac.digest(self._key, f"{cookie}\x00{user}".encode(), "sha256")
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")

    def is_valid(self, request: Request, user: str, token: str) -> bool:
        """Whether this user's form, in this browser, holds this token."""
        cookie = self.cookie_of(request)
        return cookie is not None and hmac.compare_digest(self.token(cookie, user).encode(), token.encode())

    def new_cookie(self) -> str:
        """Return a cookie for a browser that has none."""
        return secrets.token_urlsafe(32)

    def set_cookie(self, request: Request, response: Response, cookie: str) -> None:
        """Give the browser its cookie, for these pages alone."""
        response.set_cookie(
            COOKIE,
            cookie,
            path=request.scope.get("root_path") or "/",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )


COOKIE_LENGTH: Final = len(secrets.token_urlsafe(32))
