"""Our statements through Django's connection: inside ``transaction.atomic`` they are part of it, outside each commits by itself."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from typing import Protocol, cast

from django.db import Error
from django.db.transaction import atomic

from pqrun.errors import OptionError, PqrunError
from pqrun.store.failure import raise_by_itself, translate_foreign
from pqrun.store.foreign.literals import as_text, parameter_names, with_percents
from pqrun.store.rows import Row
from pqrun.store.statements import Statements

__all__ = ["join_sync"]


class _Cursor(Protocol):
    """What is used of a cursor; Django ships no types."""

    @property
    def description(self) -> Sequence[Sequence[object]]: ...

    def execute(self, sql: str, params: Mapping[str, object]) -> object: ...

    def fetchall(self) -> list[tuple[object, ...]]: ...


class _Connection(Protocol):
    """What is used of ``django.db.connection``."""

    @property
    def vendor(self) -> str: ...

    @property
    def alias(self) -> str: ...

    @property
    def in_atomic_block(self) -> bool: ...

    def get_autocommit(self) -> bool: ...

    def cursor(self) -> AbstractContextManager[_Cursor]: ...


@contextmanager
def _translating(schema: str) -> Iterator[None]:
    failure: PqrunError | None = None
    try:
        yield
    except (Error, OSError) as error:
        failure = translate_foreign(error, schema)
    if failure is not None:
        raise_by_itself(failure)


class _Session:
    """Our statements on one of Django's connections."""

    is_driven_by_loop = False

    def __init__(self, connection: _Connection, statements: Statements) -> None:
        self._connection = connection
        self._statements = statements

    async def run(self, name: str, *arguments: object, timeout: float | None = None) -> Sequence[Row]:  # noqa: ARG002  # the caller's own limits hold
        """Run the statement of ``sql/NAME.sql``. Raises StoreError and its kinds."""
        sql = with_percents(self._statements.bare(name))
        parameters = dict(zip(parameter_names(len(arguments)), map(as_text, arguments), strict=True))
        with _translating(self._statements.schema), self._connection.cursor() as cursor:
            cursor.execute(sql, parameters)
            columns = [str(column[0]) for column in cursor.description]
            return [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]

    @asynccontextmanager
    async def whole(self) -> AsyncIterator[None]:
        """See ``Joined``."""
        with _translating(self._statements.schema):
            if self._connection.in_atomic_block or not self._connection.get_autocommit():
                yield
                return
            with cast("AbstractContextManager[object]", atomic(using=self._connection.alias)):
                yield


def join_sync(connection: object, statements: Statements) -> _Session:
    """Join ``django.db.connection`` or one of ``connections``; raises OptionError where it leads to another database."""
    joined = cast("_Connection", connection)
    if joined.vendor != "postgresql":
        raise OptionError(
            f"connection: pqrun's tables are in PostgreSQL, and this one of Django leads to {joined.vendor}"
        )
    return _Session(joined, statements)
