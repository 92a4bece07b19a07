"""What pqrun needs of connections and of a pool, as Protocols: the libraries' own satisfy them, with or without type stubs.

Those of other libraries than asyncpg state just enough to tell their kinds apart for a type checker; at run time the class decides.
"""

from collections.abc import Sequence
from typing import Protocol, TypeAlias, runtime_checkable

__all__ = [
    "AnyConnection",
    "AnySyncConnection",
    "AsyncPsycopg",
    "AsyncSqlalchemy",
    "Connection",
    "Django",
    "DjangoProxy",
    "Pool",
    "SyncPsycopg",
    "SyncSqlalchemy",
]


@runtime_checkable
class Connection(Protocol):
    """An asyncpg connection, or one that a pool lent."""

    async def fetch(self, query: str, *args: object, timeout: float | None = None) -> Sequence[object]:
        """Run a statement with positional arguments and return its rows."""
        ...

    async def execute(self, query: str, *args: object, timeout: float | None = None) -> str:
        """Run a statement and return its command tag."""
        ...

    def is_in_transaction(self) -> bool:
        """Whether a transaction is open on this connection."""
        ...

    def is_closed(self) -> bool:
        """Whether the connection is gone."""
        ...


class AsyncSqlalchemy(Protocol):
    """SQLAlchemy's AsyncSession, AsyncConnection or async_scoped_session."""

    def begin_nested(self) -> object:
        """Set a savepoint."""
        ...

    async def commit(self) -> None:
        """Commit the open transaction."""
        ...


class SyncSqlalchemy(Protocol):
    """SQLAlchemy's Session, Connection or scoped_session."""

    def begin_nested(self) -> object:
        """Set a savepoint."""
        ...

    def commit(self) -> None:
        """Commit the open transaction."""
        ...


class AsyncPsycopg(Protocol):
    """An AsyncConnection of psycopg 3."""

    async def set_autocommit(self, value: bool, /) -> None:
        """Say whether each statement commits by itself."""
        ...

    async def commit(self) -> None:
        """Commit the open transaction."""
        ...


class SyncPsycopg(Protocol):
    """A Connection of psycopg 3."""

    @property
    def closed(self) -> bool:
        """Whether the connection is closed."""
        ...

    def set_autocommit(self, value: bool, /) -> None:
        """Say whether each statement commits by itself."""
        ...

    def commit(self) -> None:
        """Commit the open transaction."""
        ...


class Django(Protocol):
    """One of Django's connections."""

    @property
    def in_atomic_block(self) -> bool:
        """Whether a ``transaction.atomic`` is open."""
        ...

    @property
    def vendor(self) -> str:
        """The kind of database."""
        ...


class DjangoProxy(Protocol):
    """``django.db.connection`` as a checker sees it that reads Django's source: a proxy of whatever connection is this thread's."""

    def __getattr__(self, item: str, /) -> object: ...

    def __delattr__(self, name: str, /) -> None: ...

    def __contains__(self, key: str, /) -> bool: ...


AnyConnection: TypeAlias = Connection | AsyncSqlalchemy | AsyncPsycopg
"""Any asynchronous connection whose transaction a job can join: asyncpg's, SQLAlchemy's or psycopg's."""

AnySyncConnection: TypeAlias = SyncSqlalchemy | SyncPsycopg | Django | DjangoProxy
"""Any synchronous connection whose transaction a job can join: SQLAlchemy's, psycopg's or Django's."""


@runtime_checkable
class Pool(Protocol):
    """An asyncpg pool."""

    def get_max_size(self) -> int:
        """Return how many connections the pool may open."""
        ...

    def is_closing(self) -> bool:
        """Whether the pool is closed or being closed."""
        ...

    def acquire(self, *, timeout: float | None = None) -> object:
        """Lend a connection."""
        ...
