"""Which library a handed-in connection belongs to, and our statements on it.

A library is looked up among the modules that are imported already: an object of a class can only come from where its class is.
"""

import asyncio
import sys
from collections.abc import Callable
from typing import NamedTuple

from pqrun.errors import OptionError
from pqrun.store.enqueueing import Joined
from pqrun.store.ports import Connection
from pqrun.store.statements import Statements

__all__ = ["join", "join_sync"]


class _Kind(NamedTuple):
    """One class of connections: where it is found, and what runs our statements on it."""

    module: str
    name: str
    is_async: bool
    open: Callable[[object, Statements], Joined]

    def has(self, connection: object) -> bool:
        """Whether the connection is of this kind."""
        found = getattr(sys.modules.get(self.module), self.name, None)
        return isinstance(found, type) and isinstance(connection, found)


# The imports inside of these: only for those whose own code has imported the library.


def _sqlalchemy(connection: object, statements: Statements) -> Joined:
    from pqrun.store.foreign import sqlalchemy

    return sqlalchemy.join_sync(connection, statements)


def _sqlalchemy_async(connection: object, statements: Statements) -> Joined:
    from pqrun.store.foreign import sqlalchemy

    return sqlalchemy.join(connection, statements)


def _psycopg(connection: object, statements: Statements) -> Joined:
    from pqrun.store.foreign import psycopg

    return psycopg.join_sync(connection, statements)


def _psycopg_async(connection: object, statements: Statements) -> Joined:
    from pqrun.store.foreign import psycopg

    return psycopg.join(connection, statements)


def _django(connection: object, statements: Statements) -> Joined:
    from pqrun.store.foreign import django

    return django.join_sync(connection, statements)


_KINDS = (
    _Kind("sqlalchemy.ext.asyncio", "AsyncSession", True, _sqlalchemy_async),
    _Kind("sqlalchemy.ext.asyncio", "AsyncConnection", True, _sqlalchemy_async),
    _Kind("sqlalchemy.ext.asyncio", "async_scoped_session", True, _sqlalchemy_async),
    _Kind("sqlalchemy.orm", "Session", False, _sqlalchemy),
    _Kind("sqlalchemy.orm", "scoped_session", False, _sqlalchemy),
    _Kind("sqlalchemy.engine", "Connection", False, _sqlalchemy),
    _Kind("psycopg", "AsyncConnection", True, _psycopg_async),
    _Kind("psycopg", "Connection", False, _psycopg),
    _Kind("django.db.backends.base.base", "BaseDatabaseWrapper", False, _django),
    _Kind("django.utils.connection", "ConnectionProxy", False, _django),
)

_ASYNC = "an asyncpg connection, SQLAlchemy's AsyncSession or AsyncConnection, or psycopg's AsyncConnection"
_SYNC = "SQLAlchemy's Session or Connection, psycopg's Connection, or Django's connection"


def _find(connection: object) -> _Kind | None:
    return next((kind for kind in _KINDS if kind.has(connection)), None)


def _name(connection: object) -> str:
    cls = type(connection)
    return f"{cls.__module__.partition('.')[0]}'s {cls.__name__}" if cls.__module__ != "builtins" else cls.__name__


def join(connection: object, statements: Statements) -> Joined:
    """Return our statements within the transaction of an asynchronous connection; raises OptionError for any other."""
    kind = _find(connection)
    if kind is None:
        raise OptionError(f"connection: expected {_ASYNC}; got {_name(connection)}")
    if not kind.is_async:
        raise OptionError(
            f"connection: {_name(connection)} would block the event loop; give it to defer_sync, defer_many_sync or "
            f"ctx.complete_sync in a thread, or give {_ASYNC}"
        )
    return kind.open(connection, statements)


def join_sync(connection: object, statements: Statements) -> Joined:
    """Return our statements, which then never suspend, within the transaction of a synchronous connection.

    Raises OptionError for any other, and in a thread that runs an event loop, which they would block.
    """
    kind = _find(connection)
    if kind is None and not isinstance(connection, Connection):
        raise OptionError(f"connection: expected {_SYNC}; got {_name(connection)}")
    if kind is None or kind.is_async:
        raise OptionError(
            f"connection: {_name(connection)} is asynchronous; await defer, defer_many or ctx.complete with it, or give {_SYNC}"
        )
    session = kind.open(connection, statements)
    if _runs_a_loop() and not session.is_driven_by_loop:
        raise OptionError(
            f"connection: {_name(connection)} would block the event loop that runs in this thread; do it in a thread of its own "
            f"(asyncio.to_thread), or await defer, defer_many or ctx.complete with {_ASYNC}"
        )
    return session


def _runs_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
