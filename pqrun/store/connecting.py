"""Connections from a DSN: opened within a limit, and with errors that never show the password."""

from urllib.parse import unquote, urlsplit

import asyncpg
from pqrun.errors import ConfigurationError, DatabaseUnavailableError

__all__ = ["COMMAND_SECONDS", "CONNECT_SECONDS", "check_dsn", "describe_dsn", "open_connection", "open_pool"]

CONNECT_SECONDS = 10.0
"""How long opening one connection may take."""

COMMAND_SECONDS = 30.0
"""How long any statement of ours may take, unless a call states less."""

POOL_MAX_SIZE = 10
"""Connections of a store's own pool: for defers, results and handlers."""

_EXPECTED = "expected postgresql://USER:PASSWORD@HOST:PORT/DATABASE (special characters percent-encoded)"


def check_dsn(dsn: str) -> str:
    """Return the DSN in the form that the driver takes, or raise ConfigurationError, which never shows it."""
    dsn = dsn.replace("postgresql+asyncpg://", "postgresql://", 1) if dsn.startswith("postgresql+asyncpg://") else dsn
    scheme = dsn.partition("://")[0]
    if scheme not in ("postgresql", "postgres"):
        raise ConfigurationError(f"the DSN is not a PostgreSQL URL: {_EXPECTED}")
    if urlsplit(dsn).fragment or "#" in dsn:
        raise ConfigurationError(f"the DSN has an unescaped '#' (write %23): {_EXPECTED}")
    return dsn


def describe_dsn(dsn: str) -> str:
    """Return host and database of a DSN, for logs and errors; user, password and query are left out."""
    try:
        parts = urlsplit(dsn)
        host = parts.netloc.rpartition("@")[2]
        if not host:
            host = next((v for k, _, v in (q.partition("=") for q in parts.query.split("&")) if k == "host"), "")
        return f"{unquote(host) or 'the default host'}{parts.path}"
    except ValueError:
        return "a malformed DSN"


async def open_connection(dsn: str, *, application_name: str = "pqrun") -> asyncpg.Connection:
    """Open one connection; raise ConfigurationError for a malformed DSN, DatabaseUnavailableError where nobody answers."""
    try:
        return await asyncpg.connect(
            check_dsn(dsn),
            timeout=CONNECT_SECONDS,
            command_timeout=COMMAND_SECONDS,
            server_settings={"application_name": application_name},
        )
    except (TimeoutError, ValueError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        failure = _explain(error, dsn)
    # Raised outside of the except block: the driver's own error can print a malformed DSN, and must not be in the chain.
    raise failure


async def open_pool(dsn: str) -> asyncpg.Pool:
    """Open a store's own pool; connections are made when they are needed. Errors as with ``open_connection``."""
    try:
        return await asyncpg.create_pool(
            check_dsn(dsn),
            min_size=0,
            max_size=POOL_MAX_SIZE,
            timeout=CONNECT_SECONDS,
            command_timeout=COMMAND_SECONDS,
            server_settings={"application_name": "pqrun"},
        )
    except (TimeoutError, ValueError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        failure = _explain(error, dsn)
    raise failure


def _explain(error: BaseException, dsn: str) -> ConfigurationError | DatabaseUnavailableError:
    where = describe_dsn(dsn)
    if isinstance(error, asyncpg.PostgresError):
        return DatabaseUnavailableError(
            f"cannot connect to {where}: {error.message or type(error).__name__} (SQLSTATE {error.sqlstate})"
        )
    if isinstance(error, TimeoutError):
        return DatabaseUnavailableError(f"cannot connect to {where}: no answer within {CONNECT_SECONDS:g} s")
    if isinstance(error, OSError):
        return DatabaseUnavailableError(f"cannot connect to {where}: {error.strerror or type(error).__name__}")
    if isinstance(error, asyncpg.InterfaceError) and not isinstance(error, ValueError):
        return DatabaseUnavailableError(f"cannot connect to {where}: the driver gave up ({type(error).__name__})")
    return ConfigurationError(f"the DSN cannot be read: {_EXPECTED}")
