"""Every kind of connection whose transaction a job can join, with one face: so that one test is run for all of them.

What is synchronous lives in a thread of its own, as in users' programs: Django's connections belong to their thread, and no event loop
may be blocked.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qs, urlsplit

import asyncpg
import psycopg
import sqlalchemy
from psycopg.rows import namedtuple_row
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sqlalchemy_async

from pqrun.job.record import Claim, Enqueued, NewJob
from pqrun.store import PgJobStore
from pqrun.store.work import WorkStore

__all__ = ["ASYNC_KINDS", "KINDS", "SYNC_KINDS", "Door", "configure_django", "open_door", "sqlalchemy_url"]

T = TypeVar("T")


def sqlalchemy_url(dsn: str, driver: str) -> sqlalchemy.URL:
    """Return the URL of SQLAlchemy for a DSN of the tests."""
    parts = urlsplit(dsn)
    query = {key: values[0] for key, values in parse_qs(parts.query).items()}
    return sqlalchemy.URL.create(
        f"postgresql+{driver}",
        username=parts.username,
        password=parts.password,
        host=parts.hostname,
        port=parts.port,
        database=parts.path[1:],
        query={key: value for key, value in query.items() if key in {"host", "port"}},
    )


class Door(NamedTuple):
    """An open connection of some kind, in no transaction yet."""

    connection: Any
    is_sync: bool
    call: Callable[..., Awaitable[Any]]
    """Run a plain function where the connection lives: in its thread, or here."""
    execute: Callable[[str], Awaitable[None]]
    begin: Callable[[], Awaitable[None]]
    commit: Callable[[], Awaitable[None]]
    rollback: Callable[[], Awaitable[None]]
    savepoint: Callable[[], AbstractAsyncContextManager[None]]
    """What is raised inside rolls back to it, and passes."""

    async def enqueue(self, store: PgJobStore, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Write jobs by the call that this kind needs."""
        if self.is_sync:
            enqueued: list[Enqueued] = await self.call(store.enqueue_jobs_sync, jobs, self.connection)
            return enqueued
        return await store.enqueue_jobs(jobs, connection=self.connection)

    async def complete(self, work: WorkStore, claim: Claim, result: str | None) -> None:
        """Complete a claim by the call that this kind needs."""
        if self.is_sync:
            await self.call(lambda: work.complete_sync(claim, result, self.connection, duration_ms=1))
        else:
            await work.complete(claim, result, self.connection, duration_ms=1)


async def _here(function: Callable[..., T], *arguments: object) -> T:
    return function(*arguments)


@asynccontextmanager
async def _thread() -> AsyncIterator[Callable[..., Awaitable[Any]]]:
    with ThreadPoolExecutor(1, "door") as pool:

        async def call(function: Callable[..., T], *arguments: object) -> T:
            return await asyncio.get_running_loop().run_in_executor(pool, function, *arguments)

        yield call


async def _nothing() -> None: ...


@asynccontextmanager
async def _asyncpg(dsn: str, _driver: str, autocommit: bool) -> AsyncIterator[Door]:
    connection = await asyncpg.connect(dsn)

    async def execute(sql: str) -> None:
        await connection.execute(sql)

    @asynccontextmanager
    async def savepoint() -> AsyncIterator[None]:
        async with connection.transaction():
            yield

    begun: list[asyncpg.transaction.Transaction] = []

    async def begin() -> None:
        if not autocommit:
            begun.append(connection.transaction())
            await begun[-1].start()

    async def commit() -> None:
        await begun.pop().commit()

    async def rollback() -> None:
        await begun.pop().rollback()

    try:
        yield Door(connection, False, _here, execute, begin, commit, rollback, savepoint)
    finally:
        await connection.close()


def _sqlalchemy_async(make: Callable[[sqlalchemy_async.AsyncEngine], Any]) -> Callable[..., Any]:
    @asynccontextmanager
    async def opened(dsn: str, driver: str, autocommit: bool) -> AsyncIterator[Door]:
        level: Any = "AUTOCOMMIT" if autocommit else "READ COMMITTED"
        engine = sqlalchemy_async.create_async_engine(sqlalchemy_url(dsn, driver), isolation_level=level)
        connection = make(engine)
        if isinstance(connection, sqlalchemy_async.AsyncConnection):
            _ = await connection.start()

        async def execute(sql: str) -> None:
            await connection.execute(sqlalchemy.text(sql))

        @asynccontextmanager
        async def savepoint() -> AsyncIterator[None]:
            async with connection.begin_nested():
                yield

        try:
            yield Door(connection, False, _here, execute, _nothing, connection.commit, connection.rollback, savepoint)
        finally:
            await connection.close()
            await engine.dispose()

    return opened


def _sqlalchemy_sync(make: Callable[[sqlalchemy.Engine], Any]) -> Callable[..., Any]:
    @asynccontextmanager
    async def opened(dsn: str, driver: str, autocommit: bool) -> AsyncIterator[Door]:
        level: Any = "AUTOCOMMIT" if autocommit else "READ COMMITTED"
        async with _thread() as call:
            engine = sqlalchemy.create_engine(sqlalchemy_url(dsn, driver), isolation_level=level)
            connection = await call(make, engine)

            @asynccontextmanager
            async def savepoint() -> AsyncIterator[None]:
                nested = await call(connection.begin_nested)
                try:
                    yield
                except BaseException:
                    await call(nested.rollback)
                    raise
                await call(nested.commit)

            async def execute(sql: str) -> None:
                await call(connection.execute, sqlalchemy.text(sql))

            async def commit() -> None:
                await call(connection.commit)

            async def rollback() -> None:
                await call(connection.rollback)

            try:
                yield Door(connection, True, call, execute, _nothing, commit, rollback, savepoint)
            finally:
                await call(connection.close)
                engine.dispose()

    return opened


@asynccontextmanager
async def _psycopg_async(dsn: str, _driver: str, autocommit: bool) -> AsyncIterator[Door]:
    connection = await psycopg.AsyncConnection.connect(dsn, autocommit=autocommit, row_factory=namedtuple_row)

    async def execute(sql: str) -> None:
        await connection.execute(sql)  # pyright: ignore[reportArgumentType]  # no literal

    @asynccontextmanager
    async def savepoint() -> AsyncIterator[None]:
        async with connection.transaction():
            yield

    try:
        yield Door(connection, False, _here, execute, _nothing, connection.commit, connection.rollback, savepoint)
    finally:
        await connection.close()


@asynccontextmanager
async def _psycopg_sync(dsn: str, _driver: str, autocommit: bool) -> AsyncIterator[Door]:
    async with _thread() as call:
        connection = await call(lambda: psycopg.connect(dsn, autocommit=autocommit, row_factory=namedtuple_row))
        async with _framed(call, connection.transaction, connection) as door:
            try:
                yield door
            finally:
                await call(connection.close)


@asynccontextmanager
async def _framed(
    call: Callable[..., Awaitable[Any]], frame: Callable[[], Any], connection: Any
) -> AsyncIterator[Door]:
    """A connection whose savepoints are context managers."""

    @asynccontextmanager
    async def savepoint() -> AsyncIterator[None]:
        block = frame()
        await call(block.__enter__)
        try:
            yield
        except BaseException as error:
            await call(block.__exit__, type(error), error, None)
            raise
        await call(block.__exit__, None, None, None)

    async def execute(sql: str) -> None:
        def run() -> None:
            with connection.cursor() as cursor:
                cursor.execute(sql)

        await call(run)

    async def commit() -> None:
        await call(connection.commit)

    async def rollback() -> None:
        await call(connection.rollback)

    yield Door(connection, True, call, execute, _nothing, commit, rollback, savepoint)


def configure_django(dsn: str) -> Any:
    """Set Django up, once per process, and lead ``django.db.connection`` of this thread to a database of the tests."""
    import django
    from django.conf import settings
    from django.db import connections

    if not settings.configured:
        settings.configure(DATABASES={}, INSTALLED_APPS=[], USE_TZ=True)
        django.setup()
    parts = urlsplit(dsn)
    query = {key: values[0] for key, values in parse_qs(parts.query).items()}
    described = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path[1:],
        "USER": parts.username or "",
        "PASSWORD": parts.password or "",
        "HOST": query.get("host") or parts.hostname or "",
        "PORT": query.get("port") or parts.port or "",
    }
    connections.settings["default"] = connections.configure_settings({"default": described})["default"]
    return connections


@asynccontextmanager
async def _django(dsn: str, _driver: str, autocommit: bool) -> AsyncIterator[Door]:
    async with _thread() as call:
        connections = await call(configure_django, dsn)
        from django.db import connection, transaction

        outer: list[Any] = []

        async def begin() -> None:
            if not autocommit:
                outer.append(transaction.atomic())
                await call(outer[-1].__enter__)

        async def commit() -> None:
            await call(outer.pop().__exit__, None, None, None)

        async def rollback() -> None:
            await call(outer.pop().__exit__, ZeroDivisionError, ZeroDivisionError(), None)

        def close() -> None:
            connection.close()
            del connections["default"]  # the next thread's is another anyway

        async with _framed(call, transaction.atomic, connection) as door:
            try:
                yield door._replace(begin=begin, commit=commit, rollback=rollback)
            finally:
                while outer:
                    await rollback()
                await call(close)


def _scoped(engine: sqlalchemy.Engine) -> object:
    return orm.scoped_session(orm.sessionmaker(engine))


def _scoped_async(engine: sqlalchemy_async.AsyncEngine) -> object:
    maker = sqlalchemy_async.async_sessionmaker(engine)
    return sqlalchemy_async.async_scoped_session(maker, scopefunc=asyncio.current_task)


_OPENERS: dict[str, tuple[Callable[..., Any], str]] = {
    "asyncpg": (_asyncpg, ""),
    "AsyncSession-asyncpg": (_sqlalchemy_async(sqlalchemy_async.AsyncSession), "asyncpg"),
    "AsyncSession-psycopg": (_sqlalchemy_async(sqlalchemy_async.AsyncSession), "psycopg"),
    "AsyncConnection-asyncpg": (_sqlalchemy_async(lambda engine: engine.connect()), "asyncpg"),
    "AsyncConnection-psycopg": (_sqlalchemy_async(lambda engine: engine.connect()), "psycopg"),
    "async_scoped_session-asyncpg": (_sqlalchemy_async(_scoped_async), "asyncpg"),
    "psycopg-async": (_psycopg_async, ""),
    "Session-psycopg": (_sqlalchemy_sync(orm.Session), "psycopg"),
    "Session-psycopg2": (_sqlalchemy_sync(orm.Session), "psycopg2"),
    "Connection-psycopg": (_sqlalchemy_sync(lambda engine: engine.connect()), "psycopg"),
    "Connection-psycopg2": (_sqlalchemy_sync(lambda engine: engine.connect()), "psycopg2"),
    "scoped_session-psycopg2": (_sqlalchemy_sync(_scoped), "psycopg2"),
    "psycopg-sync": (_psycopg_sync, ""),
    "django": (_django, ""),
}

KINDS = tuple(_OPENERS)
SYNC_KINDS = KINDS[7:]
ASYNC_KINDS = KINDS[:7]


@asynccontextmanager
async def open_door(kind: str, dsn: str, *, autocommit: bool = False) -> AsyncIterator[Door]:
    """Open a connection of this kind; with ``autocommit`` each statement on it commits by itself."""
    opener, driver = _OPENERS[kind]
    async with AsyncExitStack() as stack:
        yield await stack.enter_async_context(opener(dsn, driver, autocommit))
