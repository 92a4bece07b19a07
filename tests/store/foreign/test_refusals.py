"""What is no connection, leads elsewhere, is closed, or would block the event loop is refused, with a word on what to do."""

import asyncio
import sqlite3
import sys
from collections.abc import Callable
from typing import Any

import psycopg
import psycopg2
import pytest
import sqlalchemy
from sqlalchemy import orm
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from pqrun.errors import DatabaseUnavailableError, OptionError, StoreError
from pqrun.job.record import NewJob
from pqrun.store import PgJobStore
from pqrun.store.foreign import kinds
from pqrun.store.foreign.driving import run_to_end
from pqrun.store.foreign.literals import as_text
from tests.support.doors import ASYNC_KINDS, SYNC_KINDS, configure_django, open_door, sqlalchemy_url

JOB = NewJob(job_type="t", payload='{"a": 1}')


async def refusal(store: PgJobStore, connection: Any) -> str:
    with pytest.raises(OptionError) as caught:
        await store.enqueue_jobs([JOB], connection=connection)
    return str(caught.value)


async def refusal_sync(store: PgJobStore, connection: Any) -> str:
    """In a thread, as such calls are made."""
    with pytest.raises(OptionError) as caught:
        await asyncio.to_thread(store.enqueue_jobs_sync, [JOB], connection)
    return str(caught.value)


@pytest.mark.parametrize("kind", SYNC_KINDS)
async def test_a_synchronous_connection_given_to_defer_names_the_call_that_takes_it(
    kind: str, store: PgJobStore, dsn: str
) -> None:
    async with open_door(kind, dsn) as door:
        assert "defer_sync" in await refusal(store, door.connection)


@pytest.mark.parametrize("kind", ASYNC_KINDS)
async def test_an_asynchronous_connection_given_to_a_synchronous_call_names_the_call_that_takes_it(
    kind: str, store: PgJobStore, dsn: str
) -> None:
    async with open_door(kind, dsn) as door:
        assert "await defer" in await refusal_sync(store, door.connection)


@pytest.mark.parametrize("kind", [kind for kind in SYNC_KINDS if kind != "django"])
async def test_a_synchronous_call_inside_a_running_loop_is_refused(kind: str, store: PgJobStore, dsn: str) -> None:
    async with open_door(kind, dsn) as door:
        with pytest.raises(OptionError, match="would block the event loop"):
            store.enqueue_jobs_sync([JOB], door.connection)


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_inside_run_sync_the_synchronous_call_joins_since_it_blocks_nothing(
    store: PgJobStore, dsn: str, driver: str
) -> None:
    engine = create_async_engine(sqlalchemy_url(dsn, driver))
    async with AsyncSession(engine) as session:
        (one,) = await session.run_sync(lambda inner: store.enqueue_jobs_sync([JOB], inner))
        assert await store.get(one.id) is None
        await session.commit()
    await engine.dispose()
    assert await store.get(one.id) is not None


async def test_the_synchronous_face_of_an_async_session_outside_of_run_sync_is_refused(
    store: PgJobStore, dsn: str
) -> None:
    engine = create_async_engine(sqlalchemy_url(dsn, "asyncpg"))
    async with AsyncSession(engine) as session:
        assert "give the AsyncSession itself" in await refusal_sync(store, session.sync_session)
        with pytest.raises(OptionError, match="give the AsyncSession itself"):
            store.enqueue_jobs_sync([JOB], session.sync_session)
    await engine.dispose()


async def test_what_is_no_connection_names_those_that_are(store: PgJobStore, dsn: str) -> None:
    engine, async_engine = (
        sqlalchemy.create_engine(sqlalchemy_url(dsn, "psycopg")),
        create_async_engine(sqlalchemy_url(dsn, "asyncpg")),
    )
    raw = await asyncio.to_thread(psycopg2.connect, dsn)
    things: list[Any] = [
        "postgresql://u:secret@h/d",
        3,
        object(),
        engine,
        async_engine,
        async_sessionmaker(async_engine),
        raw,
        Any,
    ]
    for thing in things:
        for said in (await refusal(store, thing), await refusal_sync(store, thing)):
            assert "SQLAlchemy's" in said
            assert "secret" not in said
    raw.close()
    await async_engine.dispose()


async def test_a_session_of_another_database_is_refused(store: PgJobStore) -> None:
    engine = sqlalchemy.create_engine(
        "sqlite://", poolclass=sqlalchemy.StaticPool, connect_args={"check_same_thread": False}
    )
    with orm.Session(engine) as session:
        assert "leads to sqlite" in await refusal_sync(store, session)
        with engine.connect() as connection:
            assert "leads to sqlite" in await refusal_sync(store, connection)
    engine.dispose()


async def test_a_django_connection_of_another_database_is_refused(store: PgJobStore, dsn: str) -> None:
    connections = configure_django(dsn)
    described = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    connections.settings["other"] = connections.configure_settings({"default": {}, "other": described})["other"]
    try:
        assert "leads to sqlite" in await refusal_sync(store, connections["other"])
    finally:
        del connections.settings["other"]


async def test_an_unbound_session_is_refused(store: PgJobStore) -> None:
    with orm.Session() as session:
        assert "bound to no engine" in await refusal_sync(store, session)


async def test_closed_and_unstarted_connections_are_refused(store: PgJobStore, dsn: str) -> None:
    engine = sqlalchemy.create_engine(sqlalchemy_url(dsn, "psycopg2"))

    def closed() -> list[Any]:
        connection, own = engine.connect(), psycopg.connect(dsn)
        session = orm.Session(engine, close_resets_only=False)
        for one in (connection, own, session):
            one.close()
        return [connection, own, session]

    for one in await asyncio.to_thread(closed):
        assert "closed" in await refusal_sync(store, one)
    async_engine = create_async_engine(sqlalchemy_url(dsn, "asyncpg"))
    unstarted = async_engine.connect()
    assert "not started" in await refusal(store, unstarted)
    async with async_engine.connect() as connection:
        pass
    assert "closed" in await refusal(store, connection)
    lone = await psycopg.AsyncConnection.connect(dsn)
    await lone.close()
    assert "closed" in await refusal(store, lone)
    await async_engine.dispose()
    engine.dispose()


async def test_a_session_whose_transaction_has_failed_says_roll_back_and_quotes_nothing(
    store: PgJobStore, dsn: str
) -> None:
    engine = sqlalchemy.create_engine(sqlalchemy_url(dsn, "psycopg2"))

    class Base(orm.DeclarativeBase): ...

    class Worker(Base):
        __tablename__ = "workers"
        __table_args__ = {"schema": "pqrun"}  # noqa: RUF012  # as SQLAlchemy documents it
        id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
        worker_id: orm.Mapped[str]

    def fail() -> orm.Session:
        session = orm.Session(engine)
        session.add(Worker(id=2**70, worker_id="what nobody may see"))
        with pytest.raises(sqlalchemy.exc.DBAPIError):
            session.flush()
        return session

    session = await asyncio.to_thread(fail)
    with pytest.raises(StoreError, match="roll it back first") as caught:
        await asyncio.to_thread(store.enqueue_jobs_sync, [JOB], session)
    assert "nobody" not in str(caught.value)
    assert caught.value.__context__ is None
    await asyncio.to_thread(session.rollback)
    assert (await asyncio.to_thread(store.enqueue_jobs_sync, [JOB], session))[0].created
    await asyncio.to_thread(session.close)
    engine.dispose()


async def test_a_session_that_cannot_connect_says_that_the_database_is_away(store: PgJobStore) -> None:
    for driver in ("asyncpg", "psycopg"):
        engine = create_async_engine(f"postgresql+{driver}://nobody:secret@127.0.0.1:1/nothing")
        async with AsyncSession(engine) as session:
            with pytest.raises(DatabaseUnavailableError) as caught:
                await store.enqueue_jobs([JOB], connection=session)
        assert "secret" not in str(caught.value)
        await engine.dispose()


async def test_a_connection_that_is_set_to_stream_its_rows_takes_jobs_too(store: PgJobStore, dsn: str) -> None:
    engine = sqlalchemy.create_engine(sqlalchemy_url(dsn, "psycopg2"))

    def write() -> int:
        with engine.connect().execution_options(stream_results=True, yield_per=10) as connection:
            (one,) = store.enqueue_jobs_sync([JOB], connection)
            connection.commit()
            return one.id

    assert await store.get(await asyncio.to_thread(write)) is not None
    engine.dispose()


async def test_an_unusual_cursor_class_of_psycopg_does_not_matter(store: PgJobStore, dsn: str) -> None:
    for factory in (psycopg.AsyncClientCursor, psycopg.AsyncRawCursor):
        async with await psycopg.AsyncConnection.connect(dsn, cursor_factory=factory) as connection:
            (one,) = await store.enqueue_jobs([JOB], connection=connection)
            await connection.commit()
        assert await store.get(one.id) is not None


async def test_in_a_pipeline_of_psycopg_jobs_join_too(store: PgJobStore, dsn: str) -> None:
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        async with connection.pipeline():
            (one,) = await store.enqueue_jobs([JOB], connection=connection)
        await connection.rollback()
    assert await store.get(one.id) is None


def test_a_library_that_is_not_imported_costs_nothing_and_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in kinds._KINDS:
        monkeypatch.delitem(sys.modules, kind.module, raising=False)
    assert kinds._find(sqlite3.connect(":memory:")) is None
    assert not {kind.module for kind in kinds._KINDS} & sys.modules.keys()


def test_no_event_loop_and_no_open_store_is_needed(leases: Any) -> None:
    dsn = asyncio.run(leases.take())
    store = PgJobStore(dsn)
    with psycopg.connect(dsn) as connection:
        assert store.enqueue_jobs_sync([JOB, JOB], connection)[1].created
    assert not store.is_open
    assert asyncio.run(leases.give_back(dsn)) == []


def test_what_suspends_is_no_synchronous_session() -> None:
    with pytest.raises(AssertionError, match="suspended"):
        run_to_end(asyncio.sleep(0))


def test_arguments_of_other_types_are_no_parameters() -> None:
    with pytest.raises(TypeError, match="dict"):
        as_text({})


def test_the_asyncpg_connection_costs_no_look_at_other_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lent:
        fetch: Callable[..., Any]
        execute: Callable[..., Any]

        async def _never(self) -> None: ...

        fetch = execute = _never

        def is_in_transaction(self) -> bool:
            return True

        def is_closed(self) -> bool:
            return False

    monkeypatch.setattr(kinds, "join", None)
    given: Any = Lent()
    assert PgJobStore("postgresql://localhost/never").join(given) is not None
