"""``pqrun web``: the pages, served by uvicorn; with an app's tasks, or of a database alone.

Without further words it serves this machine only, and nobody changes anything. What makes it more is named: ``--role`` for this machine,
``--user`` or ``--auth-header`` for others; a public address without either is refused.
"""

import enum
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from pqrun.cli.database import DsnOption, dsn_or_refuse
from pqrun.cli.target import load_app
from pqrun.errors import ConfigurationError, MissingExtraError
from pqrun.store import PgJobStore

__all__ = ["web"]

SECRET_VARIABLE = "PQRUN_WEB_SECRET"  # noqa: S105  # its name


class RoleName(enum.StrEnum):
    """Values of ``--role``."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


Target = Annotated[
    str | None,
    typer.Argument(
        metavar="MODULE:APP", show_default=False, help="The App, such as shop.jobs:jobs; else --dsn counts."
    ),
]
SchemaOption = Annotated[str | None, typer.Option("--schema", metavar="NAME", help="The schema that holds the tables.")]
Host = Annotated[str, typer.Option(metavar="ADDRESS", help="Where to listen.")]
Port = Annotated[int, typer.Option(min=0, max=65535, metavar="PORT", help="0: one that is free.")]
RoleOption = Annotated[
    RoleName, typer.Option("--role", case_sensitive=False, help="Of users that --operator and --admin do not name.")
]
User = Annotated[str | None, typer.Option(metavar="NAME", help="Ask for this name and a password (HTTP basic).")]
PasswordFile = Annotated[
    Path | None,
    typer.Option(metavar="PATH", help="The password of --user; or, without --user, lines NAME:PASSWORD."),
]
AuthHeader = Annotated[
    str | None, typer.Option(metavar="HEADER", help="A proxy names the user in it, such as X-Remote-User.")
]
TrustedProxy = Annotated[
    list[str] | None, typer.Option(metavar="ADDRESS", help="Whom --auth-header is believed; an address or a network.")
]
Operator = Annotated[list[str] | None, typer.Option(metavar="NAME", help="This user is an operator.")]
Admin = Annotated[list[str] | None, typer.Option(metavar="NAME", help="This user is an admin.")]
HidePayloads = Annotated[
    bool, typer.Option("--hide-payloads", help="Viewers see no payloads, results and texts of errors.")
]
OriginOption = Annotated[
    list[str] | None,
    typer.Option("--origin", metavar="URL", help="The pages' own, before a proxy that changes the Host header."),
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Serve a public address, and everybody, without asking who it is.")
]


class _Who(NamedTuple):
    """How it is found out who asks."""

    host: str
    role: RoleName
    user: str | None
    password_file: Path | None
    header: str | None
    proxies: list[str]
    operators: list[str]
    admins: list[str]
    is_insecure: bool


def web(
    target: Target = None,
    dsn: DsnOption = None,
    schema: SchemaOption = None,
    host: Host = "127.0.0.1",
    port: Port = 8100,
    role: RoleOption = RoleName.VIEWER,
    user: User = None,
    password_file: PasswordFile = None,
    auth_header: AuthHeader = None,
    trusted_proxy: TrustedProxy = None,
    operator: Operator = None,
    admin: Admin = None,
    hide_payloads: HidePayloads = False,
    origin: OriginOption = None,
    insecure: Insecure = False,
) -> None:
    """Serve the web pages until SIGTERM or SIGINT; docs/web.md says who sees what.

    PQRUN_WEB_SECRET, at least 16 characters, keeps open forms valid across restarts and several processes.
    """
    try:
        import uvicorn

        from pqrun import web as pages
    except ImportError:
        raise MissingExtraError("pqrun web", "web") from None
    who = _Who(
        *(host, role, user, password_file, auth_header),
        *(trusted_proxy or [], operator or [], admin or [], insecure),
    )
    authorize = _authorize(who)
    app = pages.create_app(
        _source(target, dsn, schema),
        authorize=authorize,
        hide_payloads=hide_payloads,
        origins=origin or (),
        secret=os.environ.get(SECRET_VARIABLE),
    )
    # Not uvicorn's own belief in X-Forwarded-For: who asks is found out by the connection itself. Open streams end with the server.
    uvicorn.run(
        app,
        host=host,
        port=port,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=3,
        log_level="info",
    )


def _source(target: str | None, dsn: str | None, schema: str | None) -> Any:  # noqa: ANN401  # an App or a PgJobStore, as create_app takes
    if target is None:
        return PgJobStore(dsn_or_refuse(dsn, os.environ), schema=schema or "pqrun")
    if dsn is not None or schema is not None:
        raise ConfigurationError("MODULE:APP names its own database and schema; give it, or --dsn and --schema")
    return load_app(target)


def _authorize(who: _Who) -> Any:  # noqa: ANN401  # pqrun.web.Authorize, which an install without the extra does not have
    from pqrun.web import Access, BasicAuth, LocalOnly, Role, TrustedHeader
    from pqrun.web.access import is_loopback

    default = Role[who.role.name]
    roles = {**dict.fromkeys(who.operators, Role.OPERATOR), **dict.fromkeys(who.admins, Role.ADMIN)}
    has_password = who.user is not None or who.password_file is not None
    if has_password and who.header is not None:
        raise ConfigurationError("--auth-header excludes --user and --password-file: one of the two says who asks")
    if who.proxies and who.header is None:
        raise ConfigurationError(
            "--trusted-proxy goes with --auth-header, which says in what header the proxy names the user"
        )
    if who.header is not None:
        return TrustedHeader(who.header, who.proxies, roles, default)
    if has_password:
        return BasicAuth(_passwords(who), roles, default)
    if roles:
        raise ConfigurationError(
            "--operator and --admin name users: give --user or --auth-header too; --role is for this machine"
        )
    if who.is_insecure:
        return lambda _request: Access(user="anybody", role=default)
    if not is_loopback(who.host):
        raise ConfigurationError(
            f"--host {who.host} is not this machine alone, and nobody would be asked who he is: give --user NAME --password-file PATH, "
            "or --auth-header HEADER --trusted-proxy ADDRESS; or --insecure, which lets everybody in"
        )
    return LocalOnly(default)


def _passwords(who: _Who) -> dict[str, str]:
    if who.password_file is None:
        raise ConfigurationError(
            "--user needs --password-file PATH: a password on the command line is seen by all who see processes"
        )
    try:
        text = who.password_file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--password-file: it cannot be read ({type(error).__name__})") from None
    if who.user is not None:
        return {who.user: text.rstrip("\r\n")}
    return dict(_pairs(text.splitlines()))


def _pairs(lines: Iterable[str]) -> Iterable[tuple[str, str]]:
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        user, colon, password = line.partition(":")
        if not (user and colon and password):
            raise ConfigurationError(f"--password-file: line {number}: expected NAME:PASSWORD")
        yield user, password
