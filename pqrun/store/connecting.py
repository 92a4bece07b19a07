"""Connections from a DSN: opened within a limit, and with errors that never show the password."""

import re
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import asyncpg

from pqrun.errors import ConfigurationError, DatabaseUnavailableError
from pqrun.store.hosts import connect
from pqrun.store.pooler import learn_types

__all__ = [
    "COMMAND_SECONDS",
    "CONNECT_ERRORS",
    "CONNECT_SECONDS",
    "STATEMENT_CACHE_SIZE",
    "check_dsn",
    "describe_dsn",
    "explain",
    "normalised_dsn",
    "open_connection",
    "open_pool",
    "taught",
]

CONNECT_ERRORS = (
    *(TimeoutError, ValueError, OverflowError, OSError),
    *(asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError),
)
"""What opening a connection raises; ValueError is a DSN that the driver cannot read, and may show it."""

CONNECT_SECONDS = 10.0
"""How long opening one connection may take."""

COMMAND_SECONDS = 30.0
"""How long any statement of ours may take, unless a call states less."""

STATEMENT_CACHE_SIZE = 100
"""Prepared statements that a direct connection keeps; none behind a pooler."""

POOL_MAX_SIZE = 10
"""Connections of a store's own pool: for defers, results and handlers."""

_EXPECTED = "expected postgresql://USER:PASSWORD@HOST:PORT/DATABASE (special characters percent-encoded)"


_POSTGRESQL = re.compile(r"postgres(?:ql)?(?:\+\w+)?://(?P<rest>.*)", re.IGNORECASE | re.DOTALL)

_HOST = re.compile(r"(\[[\w.:%]+\]|[^:\[\]]*)(:\d+)?", re.ASCII)


def normalised_dsn(dsn: str) -> str | None:
    """Return a URL of PostgreSQL with the scheme ``postgresql://``, without a driver (``+asyncpg``); None if it is none."""
    found = _POSTGRESQL.match(dsn.strip())
    return None if found is None else "postgresql://" + found["rest"]


def check_dsn(dsn: str) -> str:
    """Return the DSN in the form that the driver takes, or raise ConfigurationError, which never shows it."""
    dsn = normalised_dsn(dsn) or dsn
    problem = _problem_of(dsn)
    if problem is not None:
        raise ConfigurationError(f"the DSN {problem}: {_EXPECTED}")
    return dsn


def _problem_of(dsn: str) -> str | None:
    """Say what is wrong with a DSN, without quoting it: what looks like a host or a path may be part of a password."""
    if not dsn.startswith("postgresql://"):
        return "is not a PostgreSQL URL"
    if "#" in dsn:
        return "has an unescaped '#' (write %23)"
    try:
        parts = urlsplit(dsn)
    except ValueError:
        return "cannot be read"
    hosts = parts.netloc.rpartition("@")[2].split(",")
    if not all(map(_is_host, hosts)) or (len(hosts) > 1 and "" in hosts):
        return "has no readable host and port; is a character of the password not percent-encoded?"
    if "@" in parts.path:
        return "has an unescaped '/' before its host (write %2F)"
    if not all("=" in option for option in parts.query.split("&") if option):
        return "has an unescaped '?' (write %3F)"
    if any("" in hosts.split(",") for hosts in parse_qs(parts.query).get("host", [])):
        return "names a host without a name"
    return None


def _is_host(text: str) -> bool:
    found = _HOST.fullmatch(text)
    return found is not None and int((found[2] or ":0")[1:]) < 65536


def describe_dsn(dsn: str) -> str:
    """Return host and database of a checked DSN, for logs and errors; user, password and query are left out."""
    try:
        parts = urlsplit(dsn)
        host = parts.netloc.rpartition("@")[2]
        if not host:
            host = next((v for k, _, v in (q.partition("=") for q in parts.query.split("&")) if k == "host"), "")
        return f"{unquote(host) or 'the default host'}{parts.path}"
    except ValueError:
        return "a malformed DSN"


async def open_connection(
    dsn: str, *, application_name: str = "pqrun", statement_cache_size: int = STATEMENT_CACHE_SIZE
) -> asyncpg.Connection:
    """Open one connection; raise ConfigurationError for a malformed DSN, DatabaseUnavailableError where nobody answers."""
    try:
        return await connect(
            check_dsn(dsn),
            timeout=CONNECT_SECONDS,
            command_timeout=COMMAND_SECONDS,
            statement_cache_size=statement_cache_size,
            server_settings={"application_name": application_name},  # no others: poolers refuse most of them
        )
    except CONNECT_ERRORS as error:
        failure = explain(error, dsn)
    # Raised outside of the except block: the driver's own error can print a malformed DSN, and must not be in the chain.
    raise failure


async def taught(connection: asyncpg.Connection) -> asyncpg.Connection:
    """Return a new connection behind a pooler once its driver knows our types; one on which that fails is closed."""
    try:
        await learn_types(connection)
    except BaseException:
        connection.terminate()
        raise
    return connection


async def open_pool(dsn: str, find_pooler: Callable[[], Awaitable[bool]]) -> asyncpg.Pool:
    """Open a store's own pool; connections are made when they are needed, and the first asks ``find_pooler`` whether there is one.

    Errors as with ``open_connection``.
    """
    is_pooled = False

    async def open_one(dsn: str, **options: Any) -> asyncpg.Connection:  # noqa: ANN401  # the driver's, passed on
        nonlocal is_pooled
        is_pooled = await find_pooler()
        if not is_pooled:
            return await connect(dsn, statement_cache_size=STATEMENT_CACHE_SIZE, **options)
        return await taught(await connect(dsn, statement_cache_size=0, **options))

    async def reset(connection: asyncpg.Connection) -> None:
        # Behind a pooler this would reset whatever server connection is free: there is no session of ours to be reset.
        query = "" if is_pooled else connection.get_reset_query()
        if query:
            await connection.execute(query)

    try:
        return await asyncpg.create_pool(
            check_dsn(dsn),
            min_size=0,
            max_size=POOL_MAX_SIZE,
            connect=open_one,
            reset=reset,
            timeout=CONNECT_SECONDS,
            command_timeout=COMMAND_SECONDS,
            server_settings={"application_name": "pqrun"},
        )
    except CONNECT_ERRORS as error:
        failure = explain(error, dsn)
    raise failure


def explain(error: BaseException, dsn: str | None) -> ConfigurationError | DatabaseUnavailableError:
    """Say why no connection could be had, without what the driver says of the DSN (None: a handed-in pool has it)."""
    where = "the database of the pool" if dsn is None else describe_dsn(dsn)
    if isinstance(error, asyncpg.PostgresError):
        return DatabaseUnavailableError(
            f"cannot connect to {where}: {error.message or type(error).__name__} (SQLSTATE {error.sqlstate})"
        )
    if isinstance(error, TimeoutError):
        return DatabaseUnavailableError(f"cannot connect to {where}: no connection within {CONNECT_SECONDS:g} s")
    if isinstance(error, OSError):
        return DatabaseUnavailableError(f"cannot connect to {where}: {error.strerror or type(error).__name__}")
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return DatabaseUnavailableError(
            f"cannot connect to {where}: no server there is what target_session_attrs says (read-write: none takes writes)"
        )
    if isinstance(error, (asyncpg.InterfaceError, asyncpg.InternalClientError)) and not isinstance(error, ValueError):
        return DatabaseUnavailableError(f"cannot connect to {where}: the driver gave up ({type(error).__name__})")
    return ConfigurationError(f"the DSN cannot be read: {_EXPECTED}")
