"""Each kind of connection whose transaction a job can join, as its library types it; and what is none.

A line that ends in `# E` must be reported by both checkers; no other line may be reported.
The file is checked, never run.
"""

from typing import Any, assert_type

import asyncpg
import psycopg
import sqlalchemy
from django.db import connection as django_connection  # type: ignore[import-untyped]
from django.db import connections as django_connections
from psycopg.rows import DictRow
from sqlalchemy import orm
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session, async_sessionmaker

from pqrun import AnyConnection, AnySyncConnection, App, JobContext, JobHandle, PgJobStore

jobs = App(dsn="postgresql://localhost/db")


@jobs.task
async def keep(ctx: JobContext, text: str) -> dict[str, str]:
    return {"text": text}


async def asynchronous_kinds(
    pool: asyncpg.Pool,
    plain: asyncpg.Connection,
    session: AsyncSession,
    connection: AsyncConnection,
    scoped: async_scoped_session[AsyncSession],
    tuples: psycopg.AsyncConnection,
    mappings: psycopg.AsyncConnection[DictRow],
    store: PgJobStore,
    ctx: JobContext,
) -> None:
    every: list[AnyConnection] = [plain, session, connection, scoped, tuples, mappings]
    for one in every:
        assert_type(await keep.options(connection=one).defer("x"), JobHandle[dict[str, str]])
    await keep.options(connection=session).defer("x")
    await jobs.defer_many([keep.call("x")], connection=session)
    await jobs.defer_many([keep.call("x")], connection=mappings)
    await store.enqueue("t", {}, connection=connection)
    await ctx.complete({"a": "b"}, connection=scoped)
    await ctx.complete(connection=tuples)
    async with pool.acquire() as lent:
        await jobs.defer_many([keep.call("x")], connection=lent)


def synchronous_kinds(
    session: orm.Session,
    connection: sqlalchemy.Connection,
    scoped: orm.scoped_session[orm.Session],
    tuples: psycopg.Connection,
    mappings: psycopg.Connection[dict[str, Any]],
    ctx: JobContext,
) -> None:
    every: list[AnySyncConnection] = [session, connection, scoped, tuples, mappings]
    for one in every:
        keep.options(connection=one)
        ctx.complete_sync({"a": "b"}, connection=one)
    ctx.complete_sync(connection=session)
    ctx.complete_sync({"a": "b"})
    ctx.complete_sync({"a": "b"}, connection=django_connection)
    ctx.complete_sync({"a": "b"}, connection=django_connections["default"])
    keep.options(connection=django_connection)


async def what_is_none(
    engine: sqlalchemy.Engine,
    async_engine: AsyncEngine,
    maker: async_sessionmaker[AsyncSession],
    session: orm.Session,
    async_session: AsyncSession,
    sync_psycopg: psycopg.Connection,
    async_psycopg: psycopg.AsyncConnection,
    store: PgJobStore,
    ctx: JobContext,
) -> None:
    keep.options(connection="x")  # E
    keep.options(connection=engine)  # E
    keep.options(connection=async_engine)  # E
    keep.options(connection=maker)  # E
    await jobs.defer_many([keep.call("x")], connection=engine)  # E
    await jobs.defer_many([keep.call("x")], connection=session)  # E
    await jobs.defer_many([keep.call("x")], connection=sync_psycopg)  # E
    await store.enqueue("t", {}, connection="x")  # E
    await store.enqueue("t", {}, connection=async_engine)  # E
    await ctx.complete(connection=session)  # E
    await ctx.complete(connection=sync_psycopg)  # E
    await ctx.complete(connection=engine)  # E
    ctx.complete_sync(connection=async_session)  # E
    ctx.complete_sync(connection=async_psycopg)  # E
    ctx.complete_sync(connection=engine)  # E
    ctx.complete_sync(connection="x")  # E
