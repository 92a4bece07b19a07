"""Synchronous calls that join the transaction of a synchronous connection; the ways that each library has are tested with the store."""

import asyncio
import threading
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import Session

from pqrun import App, JobContext, OptionError, PgJobStore, Task
from tests.support.database import connected, run

THREAD = "pqrun sync"


def declared(jobs: App[None]) -> Task[..., Any, None, None]:
    @jobs.task(dedupe_key="t:{a}")
    async def t(ctx: JobContext, a: int) -> None: ...

    return t


def count(dsn: str) -> int:
    async def look() -> int:
        async with connected(dsn) as connection:
            return int(await connection.fetchval("SELECT count(*) FROM pqrun.jobs"))

    return run(look())


def is_thread_of_our_own() -> bool:
    return any(thread.name == THREAD for thread in threading.enumerate())


def test_a_job_commits_and_rolls_back_with_a_psycopg_connection_and_needs_no_thread(jobs: App[None], dsn: str) -> None:
    t = declared(jobs)
    with psycopg.connect(dsn) as connection:
        first = t.options(connection=connection).defer_sync(1)
        assert first.created
        assert count(dsn) == 0
        connection.rollback()
        second = t.options(connection=connection).defer_sync(1)
        again = t.options(connection=connection).defer_sync(1)
        assert (second.created, again.created, again.id) == (True, False, second.id)
        assert not is_thread_of_our_own()
    assert count(dsn) == 1
    assert second.job_sync().payload == {"a": 1}  # the handle goes its own way
    jobs.close_sync()


def test_many_jobs_commit_and_roll_back_with_a_session(jobs: App[None], dsn: str) -> None:
    t = declared(jobs)
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(dsn))
    with Session(engine) as session:
        jobs.defer_many_sync([t.call(number) for number in range(3)], connection=session)
        session.rollback()
        assert count(dsn) == 0
        handles = jobs.defer_many_sync([t.call(number) for number in range(3)], connection=session)
        assert jobs.defer_many_sync([], connection=session) == []
        session.commit()
    engine.dispose()
    assert len({handle.id for handle in handles}) == count(dsn) == 3
    assert not is_thread_of_our_own()


def test_an_app_over_a_store_that_is_open_nowhere_serves_a_connection(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        declared(App(store=PgJobStore(dsn))).options(connection=connection).defer_sync(1)
    assert count(dsn) == 1


def test_an_asynchronous_connection_is_refused(jobs: App[None], dsn: str) -> None:
    with asyncio.Runner() as runner:
        connection: asyncpg.Connection = runner.run(asyncpg.connect(dsn))
        with pytest.raises(OptionError, match="connection"):
            declared(jobs).options(connection=connection).defer_sync(1)
        runner.run(connection.close())
    assert count(dsn) == 0
