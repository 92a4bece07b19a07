"""What the driver raises, translated into pqrun's own errors, and judged: conflict, lost connection, or a plain no.

The driver's messages are kept (they name tables and SQLSTATEs), its DETAIL is not: that may quote a row with its payload.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, NoReturn

import asyncpg

from pqrun.errors import ConflictError, DatabaseUnavailableError, PqrunError, SchemaError, StoreError

__all__ = [
    "DRIVER_ERRORS",
    "is_conflict",
    "is_disconnect",
    "is_spoilt",
    "is_standing",
    "migrate_hint",
    "raise_by_itself",
    "terminate",
    "translate",
    "translate_foreign",
    "translating",
]

DRIVER_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, EOFError)
"""What the driver raises (a timeout is an OSError)."""

_CONFLICTS = frozenset({"40001", "40P01"})
"""Serialization failure and deadlock: the transaction did nothing and may be repeated."""

_UNAVAILABLE_STATES = frozenset(
    {"57P01", "57P02", "57P03", "57P05", "53300", "25006", "55P03", "57014", "3D000", "28P01", "28000"}
)
"""Shutdown, crash, starting up, too many connections, read-only, lock or statement timeout, and refused logins."""

_MISSING = frozenset({"42P01", "3F000", "42883", "42703"})
"""Undefined table, schema, function or column: the schema is not ours, or older."""


def is_conflict(error: BaseException) -> bool:
    """Whether the transaction was rolled back by PostgreSQL only because of concurrency, and may be repeated."""
    # A plan that a migration made invalid is the same: inside a transaction the driver can only report it, and plans anew next time.
    return isinstance(error, asyncpg.InvalidCachedStatementError) or (
        isinstance(error, asyncpg.PostgresError) and error.sqlstate in _CONFLICTS
    )


def is_disconnect(error: BaseException) -> bool:
    """Whether the connection, or the database behind it, is gone: the outcome of a write under way is unknown."""
    if isinstance(error, asyncpg.PostgresError):
        state = error.sqlstate or ""
        return state.startswith("08") or state in {"57P01", "57P02", "57P03", "57P05"}
    # InternalClientError: a backend that was terminated while it was idle, whose last words the driver did not expect.
    return isinstance(error, (OSError, EOFError, asyncpg.InterfaceError, asyncpg.InternalClientError))


def is_spoilt(error: BaseException) -> bool:
    """Whether the connection must not be used again: gone, or refusing to write, which may be a setting that it took at its login."""
    return is_disconnect(error) or (isinstance(error, asyncpg.PostgresError) and error.sqlstate == "25006")


def is_standing(connection: asyncpg.Connection) -> bool:
    """Whether the connection is open, as far as the socket tells; one that a pool has taken back, because it was lost, is not."""
    try:
        return not connection.is_closed()
    except asyncpg.InterfaceError:
        return False


def terminate(connection: asyncpg.Connection) -> None:
    """End the connection without a word; one that a pool has taken back is ended by it."""
    with suppress(asyncpg.InterfaceError):
        connection.terminate()


def migrate_hint(schema: str) -> str:
    """Name the command that makes or renews this schema."""
    if schema == "pqrun":
        return "run: pqrun migrate"
    import shlex  # for a message

    return f"run: pqrun migrate --schema {shlex.quote(schema)}"


def translate(error: BaseException, schema: str = "pqrun") -> PqrunError:
    """Return the error of pqrun that says the same; ``schema`` is where the statement's tables should be."""
    if isinstance(error, PqrunError):
        return error
    if isinstance(error, asyncpg.PostgresError):
        return _judge(error.sqlstate, error.message or type(error).__name__, is_conflict(error), schema)
    if isinstance(error, TimeoutError):
        return DatabaseUnavailableError("the database did not answer in time")
    if is_disconnect(error):
        return DatabaseUnavailableError(f"the connection to the database is gone ({type(error).__name__}: {error})")
    return StoreError(f"the database driver failed ({type(error).__name__})")


def translate_foreign(error: BaseException, schema: str) -> PqrunError:
    """Return the same for an error of another library, which may wrap its driver's, and whose own text may quote what was sent."""
    for one in _layers(error):
        if isinstance(one, asyncpg.PostgresError | OSError | PqrunError):
            return translate(one, schema)
        state = getattr(one, "sqlstate", None) or getattr(one, "pgcode", None)
        if isinstance(state, str) and one.__cause__ is None:  # else the one below says it better
            said = getattr(getattr(one, "diag", None), "message_primary", None)
            return _judge(state, said or type(one).__name__, state in _CONFLICTS, schema)
    names = {cls.__name__ for one in _layers(error) for cls in type(one).__mro__}
    if names & _CONNECTION_ERRORS:
        return DatabaseUnavailableError(f"the connection to the database is gone ({type(error).__name__})")
    return StoreError(f"the statement could not be run ({type(error).__name__})")


_CONNECTION_ERRORS: Final = frozenset({"OperationalError", "InterfaceError", "InternalClientError"})
"""What PEP 249, and asyncpg, call them when PostgreSQL itself has said nothing."""


def _layers(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        inner = getattr(error, "orig", None)  # SQLAlchemy's name for what it wraps
        error = inner if isinstance(inner, BaseException) else error.__cause__


def _judge(sqlstate: str | None, message: str, is_conflict: bool, schema: str) -> StoreError:
    state = sqlstate or "?????"
    said = f"{message} (SQLSTATE {state})"
    translated = StoreError(f"the database refused: {said}")
    if is_conflict:
        translated = ConflictError(f"conflict with a concurrent transaction, repeat yours: {said}")
    elif state in _MISSING:
        translated = SchemaError(f"the pqrun schema is missing or older than this code: {said}; {migrate_hint(schema)}")
    elif state in _UNAVAILABLE_STATES or state.startswith(("08", "53", "58", "XX")):
        translated = DatabaseUnavailableError(f"the database cannot do this now: {said}")
    translated.sqlstate = sqlstate
    return translated


def raise_by_itself(error: BaseException) -> NoReturn:
    """Raise at the end of a ``with`` block that the driver's error has ended.

    That one is still being handled there; as the context of this one it would show its DETAIL, which may quote a row.
    """
    try:
        raise error
    finally:
        error.__context__ = None


@contextmanager
def translating(schema: str = "pqrun") -> Iterator[None]:
    """Turn what the driver raises inside into pqrun's own errors, without the driver's in the chain; ``schema`` as for ``translate``."""
    failure: PqrunError | None = None
    try:
        yield
    except DRIVER_ERRORS as error:
        failure = translate(error, schema)
    if failure is not None:
        raise_by_itself(failure)
