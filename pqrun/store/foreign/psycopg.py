"""Our statements through psycopg 3, on cursors of our own: whatever cursor class and row factory the connection has."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TypeAlias, cast

from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor, Error
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row

from pqrun.errors import OptionError, PqrunError
from pqrun.store.failure import raise_by_itself, translate_foreign
from pqrun.store.foreign.literals import as_text, parameter_names, with_percents
from pqrun.store.rows import Row
from pqrun.store.statements import Statements

__all__ = ["join", "join_sync"]

_Async: TypeAlias = AsyncConnection[object]
_Sync: TypeAlias = Connection[object]


@contextmanager
def _translating(connection: _Async | _Sync, schema: str) -> Iterator[None]:
    if connection.closed and not connection.broken:
        raise OptionError("connection: this psycopg connection is closed")
    failure: PqrunError | None = None
    try:
        yield
    except (Error, OSError) as error:
        failure = translate_foreign(error, schema)
    if failure is not None:
        raise_by_itself(failure)


def _is_autocommit(connection: _Async | _Sync) -> bool:
    """Whether each statement commits by itself: autocommit, and no transaction was begun on it."""
    return connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE


def _parameters(arguments: Sequence[object]) -> dict[str, str | None]:
    return dict(zip(parameter_names(len(arguments)), map(as_text, arguments), strict=True))


class _AsyncSession:
    """Our statements on an AsyncConnection."""

    is_driven_by_loop = True

    def __init__(self, connection: _Async, statements: Statements) -> None:
        self._connection = connection
        self._statements = statements

    async def run(self, name: str, *arguments: object, timeout: float | None = None) -> Sequence[Row]:  # noqa: ARG002  # the caller's own limits hold
        """Run the statement of ``sql/NAME.sql``. Raises StoreError and its kinds, and OptionError."""
        sql = with_percents(self._statements.bare(name))
        with _translating(self._connection, self._statements.schema):
            async with AsyncCursor(self._connection, row_factory=dict_row) as cursor:
                await cursor.execute(sql, _parameters(arguments))  # pyright: ignore[reportArgumentType]  # ours, though no literal
                return await cursor.fetchall()

    @asynccontextmanager
    async def whole(self) -> AsyncIterator[None]:
        """See ``Joined``."""
        with _translating(self._connection, self._statements.schema):
            if not _is_autocommit(self._connection):
                yield
                return
            async with self._connection.transaction():
                yield


class _SyncSession:
    """Our statements on a Connection."""

    is_driven_by_loop = False

    def __init__(self, connection: _Sync, statements: Statements) -> None:
        self._connection = connection
        self._statements = statements

    async def run(self, name: str, *arguments: object, timeout: float | None = None) -> Sequence[Row]:  # noqa: ARG002  # the caller's own limits hold
        """Run the statement of ``sql/NAME.sql``. Raises StoreError and its kinds, and OptionError."""
        sql = with_percents(self._statements.bare(name))
        with (
            _translating(self._connection, self._statements.schema),
            Cursor(self._connection, row_factory=dict_row) as cursor,
        ):
            cursor.execute(sql, _parameters(arguments))  # pyright: ignore[reportArgumentType]  # ours, though no literal
            return cursor.fetchall()

    @asynccontextmanager
    async def whole(self) -> AsyncIterator[None]:
        """See ``Joined``."""
        with _translating(self._connection, self._statements.schema):
            if not _is_autocommit(self._connection):
                yield
                return
            with self._connection.transaction():
                yield


def join(connection: object, statements: Statements) -> _AsyncSession:
    """Join an AsyncConnection."""
    return _AsyncSession(cast("_Async", connection), statements)


def join_sync(connection: object, statements: Statements) -> _SyncSession:
    """Join a Connection."""
    return _SyncSession(cast("_Sync", connection), statements)
