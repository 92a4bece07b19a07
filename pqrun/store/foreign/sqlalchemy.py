"""Our statements through SQLAlchemy: Session, Connection and scoped_session, and their asynchronous kinds, on any dialect of PostgreSQL."""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import lru_cache
from typing import Protocol, TypeAlias, TypeVar, cast

import asyncpg
import sqlalchemy
from sqlalchemy import exc, orm
from sqlalchemy.util import concurrency

from pqrun.errors import DatabaseUnavailableError, OptionError, PqrunError, StoreError
from pqrun.store.failure import DRIVER_ERRORS, raise_by_itself, translate_foreign
from pqrun.store.foreign.literals import as_text, parameter_names, with_colons
from pqrun.store.rows import Row
from pqrun.store.statements import Statements

__all__ = ["join", "join_sync"]

T = TypeVar("T")

_Runner: TypeAlias = orm.Session | sqlalchemy.Connection

_WHOLE_ANSWERS = {"stream_results": False, "yield_per": None}
"""A server-side cursor, which a connection may be set to use, takes no statement that writes."""


_FACE = "connection: the synchronous face of an asynchronous SQLAlchemy session; give the AsyncSession itself"


@lru_cache(maxsize=64)
def _clause(sql: str, count: int) -> sqlalchemy.TextClause:
    # The type is stated: of None SQLAlchemy could not know any.
    binds = [sqlalchemy.bindparam(name, type_=sqlalchemy.String()) for name in parameter_names(count)]
    return sqlalchemy.text(with_colons(sql)).bindparams(*binds)


def _translate(error: Exception, schema: str) -> PqrunError:
    """SQLAlchemy's own words are not used where they may quote a statement, which they do with its parameters."""
    if isinstance(error, exc.PendingRollbackError):
        return StoreError("the transaction of this SQLAlchemy session has failed before: roll it back first")
    if isinstance(error, exc.MissingGreenlet):
        return OptionError(_FACE)
    if isinstance(error, exc.ResourceClosedError):
        return OptionError("connection: this SQLAlchemy connection, or its transaction, is closed")
    if isinstance(error, exc.UnboundExecutionError):
        return OptionError(
            "connection: this SQLAlchemy session is bound to no engine of its own; give it bind=, or give its connection()"
        )
    if isinstance(error, exc.InvalidRequestError):
        return OptionError(
            f"connection: SQLAlchemy runs no statement on it ({type(error).__name__}): not started, closed, or its transaction is over"
        )
    if isinstance(error, exc.TimeoutError):
        return DatabaseUnavailableError("the pool of SQLAlchemy had no free connection in time")
    return translate_foreign(error, schema)


@contextmanager
def _translating(schema: str) -> Iterator[None]:
    failure: PqrunError | None = None
    try:
        yield
    except (exc.SQLAlchemyError, *DRIVER_ERRORS) as error:  # its asynchronous dialects let some of the driver's through
        failure = _translate(error, schema)
    if failure is not None:
        raise_by_itself(failure)


def _bind(runner: _Runner) -> sqlalchemy.Engine | sqlalchemy.Connection:
    return runner.get_bind() if isinstance(runner, orm.Session) else runner


def _checked(runner: _Runner) -> _Runner:
    name = _bind(runner).dialect.name
    if name != "postgresql":
        raise OptionError(f"connection: pqrun's tables are in PostgreSQL, and this one leads to {name}")
    if isinstance(runner, sqlalchemy.Connection) and runner.closed:
        raise OptionError("connection: this SQLAlchemy connection is closed")
    return runner


def _begin(runner: _Runner) -> bool:
    """Begin a transaction where each statement would commit by itself; return whether it did."""
    is_autocommit = _is_autocommit(_checked(runner))
    if is_autocommit:
        _say(runner, "BEGIN")
    return is_autocommit


def _is_autocommit(runner: _Runner) -> bool:
    """Whether each statement commits by itself: autocommit, and nobody has begun a transaction by hand."""
    pooled = (runner.connection() if isinstance(runner, orm.Session) else runner).connection
    if not getattr(pooled.dbapi_connection, "autocommit", False):
        return False
    driver = pooled.driver_connection
    if isinstance(driver, asyncpg.Connection):
        return not driver.is_in_transaction()
    return (
        getattr(getattr(driver, "info", None), "transaction_status", 0) == 0
    )  # psycopg's and psycopg2's word for idle


def _run(runner: _Runner, sql: str, arguments: Sequence[object]) -> Sequence[Row]:
    parameters = dict(zip(parameter_names(len(arguments)), map(as_text, arguments), strict=True))
    result = _checked(runner).execute(_clause(sql, len(arguments)), parameters, execution_options=_WHOLE_ANSWERS)
    return result.mappings().all()


def _say(runner: _Runner, word: str) -> None:
    runner.execute(sqlalchemy.text(word))


class _Reaches(Protocol):
    """How to act on the synchronous runner: at once, or by way of the event loop."""

    async def __call__(self, act: Callable[[_Runner], T], /) -> T: ...


class _RunsSync(Protocol):
    """What SQLAlchemy's asynchronous kinds have in common."""

    async def run_sync(self, act: Callable[[_Runner], T], /) -> T: ...


class _Session:
    """Our statements on whatever ``reach`` leads to."""

    def __init__(self, reach: _Reaches, statements: Statements, *, is_driven_by_loop: bool) -> None:
        self._reach = reach
        self._statements = statements
        self.is_driven_by_loop = is_driven_by_loop

    async def run(self, name: str, *arguments: object, timeout: float | None = None) -> Sequence[Row]:  # noqa: ARG002  # the caller's own limits hold
        """Run the statement of ``sql/NAME.sql``. Raises StoreError and its kinds, and OptionError."""
        sql = self._statements.bare(name)
        with _translating(self._statements.schema):
            return await self._reach(lambda runner: _run(runner, sql, arguments))

    @asynccontextmanager
    async def whole(self) -> AsyncIterator[None]:
        """See ``Joined``."""
        with _translating(self._statements.schema):
            is_ours = await self._reach(_begin)
        try:
            yield
        except BaseException:
            if is_ours:
                with suppress(exc.SQLAlchemyError, *DRIVER_ERRORS):  # what went wrong before says more
                    await self._reach(lambda runner: _say(runner, "ROLLBACK"))
            raise
        if is_ours:
            with _translating(self._statements.schema):
                await self._reach(lambda runner: _say(runner, "COMMIT"))


def join_sync(connection: object, statements: Statements) -> _Session:
    """Join a Session, a scoped_session or a Connection."""
    runner = cast("_Runner", connection() if isinstance(connection, orm.scoped_session) else connection)

    async def reach(act: Callable[[_Runner], T], /) -> T:
        return act(runner)

    with _translating(statements.schema):
        is_driven_by_loop = _bind(runner).dialect.is_async
    # Asked before a statement is tried, which would leave a coroutine of the driver's behind.
    if is_driven_by_loop and not getattr(concurrency, "in_greenlet", lambda: True)():  # of late releases of 2.0 only
        raise OptionError(_FACE)
    return _Session(reach, statements, is_driven_by_loop=is_driven_by_loop)


def join(connection: object, statements: Statements) -> _Session:
    """Join an AsyncSession, an async_scoped_session or an AsyncConnection."""
    from sqlalchemy.ext.asyncio import async_scoped_session  # imported, since there is one of its kinds

    reached = cast("_RunsSync", connection() if isinstance(connection, async_scoped_session) else connection)
    return _Session(reached.run_sync, statements, is_driven_by_loop=True)
