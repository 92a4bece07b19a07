"""The web pages: ``app.mount("/pqrun", pqrun.web.create_app(jobs))``, or ``pqrun web``.

See what waits, runs and failed, and retry, cancel, delete, move or make jobs; docs/web.md is the guide. Needs ``pip install 'pqrun[web]'``.
::

    def authorize(request: Request) -> Access | None:
        user = request.session.get("user")
        return None if user is None else Access(user=user, role=Role.OPERATOR)

    app.mount("/pqrun", create_app(jobs, authorize=authorize))
"""

from pqrun.errors import MissingExtraError

try:
    import jinja2 as _jinja2
    import starlette as _starlette
except ImportError:
    raise MissingExtraError("pqrun.web", "web") from None

from pqrun.web.access import ACTIONS, Access, Authorize, BasicAuth, LocalOnly, Role, TrustedHeader
from pqrun.web.application import create_app
from pqrun.web.site import Part, Redact

__all__ = [
    "ACTIONS",
    "Access",
    "Authorize",
    "BasicAuth",
    "LocalOnly",
    "Part",
    "Redact",
    "Role",
    "TrustedHeader",
    "create_app",
]

del _jinja2, _starlette
