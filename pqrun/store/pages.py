"""What the web pages read: each look is one statement of bounded cost, whatever the tables hold.

All of a page is read in one read-only transaction with a short limit for each statement: what would take longer is refused by the
database, and the page says so.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Final, NamedTuple

from pqrun.job.record import Job
from pqrun.job.registered import RegisteredWorker
from pqrun.job.state import Status
from pqrun.store import workers
from pqrun.store.enqueueing import Runs
from pqrun.store.failure import translating
from pqrun.store.link import PLANNER_SETTINGS, Session, own_transaction
from pqrun.store.pg import PgJobStore
from pqrun.store.rows import stored_job

__all__ = [
    "ACT_SETTINGS",
    "BEFORE_ALL",
    "PAGE_SETTINGS",
    "STATEMENT_CANCELLED",
    "STATEMENT_SECONDS",
    "ActiveCount",
    "Counts",
    "Database",
    "History",
    "IndexSize",
    "MigrationRow",
    "Running",
    "Surroundings",
    "TableSize",
    "count_active",
    "get_job",
    "list_migrations",
    "list_running",
    "list_workers",
    "read_clock",
    "read_pulse",
    "reading",
    "see_database",
    "see_history",
    "see_indexes",
    "see_surroundings",
    "see_tables",
    "writing",
]

STATEMENT_SECONDS: Final = 2.5
"""A page is for people: what takes longer needs a narrower question."""

PAGE_SETTINGS: Final = (
    f"{PLANNER_SETTINGS}; SET statement_timeout = {STATEMENT_SECONDS * 1000:.0f}; SET lock_timeout = 1000"
    "; SET default_transaction_read_only = on; SET transaction_read_only = on"
)
"""The last for the transaction that has begun already, where a pooler lends each its own connection."""

ACT_SETTINGS: Final = f"{PLANNER_SETTINGS}; SET statement_timeout = 10000; SET lock_timeout = 2000"

BEGIN_SECONDS: Final = 5.0
"""How long a page waits for the start of its transaction, behind a pooler for a server connection."""

STATEMENT_CANCELLED: Final = "57014"
"""SQLSTATE of a statement that has taken too long."""

BEFORE_ALL: Final = 2**63 - 1
"""An id above all that there are: where a list begins."""

COUNT_ROWS: Final = 20_000
"""Jobs that are counted by state: some 15 ms."""

HISTORY_ROWS: Final = 20_000
RUNNING_SHOWN: Final = 200
SCHEDULES_SHOWN: Final = 6


class ActiveCount(NamedTuple):
    """Jobs of one queue, task and state that have not finished."""

    queue: str
    job_type: str
    status: Status
    jobs: int
    again: int
    """Of those, the ones that have been started before."""
    oldest_due: datetime


class Counts(NamedTuple):
    """What was counted, whether that was all there is, and the clock."""

    active: list[ActiveCount]
    is_capped: bool
    now: datetime


class Running(NamedTuple):
    """A job that a worker runs."""

    id: int
    job_type: str
    queue: str
    attempts: int
    max_attempts: int
    locked_at: datetime
    timeout_seconds: float | None
    cancel_requested_at: datetime | None


class Surroundings(NamedTuple):
    """What belongs to a job beside its row."""

    now: datetime
    worker: int | None
    """Of a RUNNING job: who runs it, as a number of the registry."""
    beat_seconds: float | None
    """Since the last sign of life of that worker; None where it is not registered."""
    is_dead: bool
    names: list[str]
    """Schedules of its task, if a schedule made it: one of them did."""
    is_last: bool
    """Whether the first of those did for certain: it is the job of its last firing."""


class TableSize(NamedTuple):
    """A table of the schema; rows are estimates."""

    name: str
    bytes: int
    index_bytes: int
    live: int
    dead: int
    vacuumed_at: datetime | None
    analyzed_at: datetime | None
    age: int
    """In transactions, towards the 2 billion at which PostgreSQL stops."""


class IndexSize(NamedTuple):
    """An index of the schema."""

    name: str
    table_name: str
    bytes: int
    scans: int
    """How often it was used since the statistics began."""
    is_valid: bool
    """False after a REINDEX CONCURRENTLY or CREATE INDEX CONCURRENTLY that was broken off."""


class History(NamedTuple):
    """Jobs that retention of some age would remove, counted to HISTORY_ROWS, and when the oldest job of the history ended."""

    jobs: int
    is_capped: bool
    oldest: datetime | None


class Database(NamedTuple):
    """The server, and what goes on in this database."""

    now: datetime
    version: str
    database: str
    max_connections: int
    is_standby: bool
    notify_usage: float
    """0 to 1: how full the queue of notifications is; what stays full holds up those who defer."""
    autovacuum: bool
    connections: int
    longest_seconds: float | None
    longest_application: str | None
    longest_state: str | None
    longest_pid: int | None
    waiting: int
    """Sessions that wait for a lock."""


class MigrationRow(NamedTuple):
    """A migration that was applied."""

    version: int
    name: str
    applied_at: datetime


@asynccontextmanager
async def reading(store: PgJobStore) -> AsyncIterator[Session]:
    """Lend the statements of a page: one read-only transaction. Raises StoreError and its kinds."""
    async with _transaction(store, PAGE_SETTINGS) as session:
        yield session


@asynccontextmanager
async def writing(store: PgJobStore, settings: str = ACT_SETTINGS) -> AsyncIterator[Session]:
    """Lend the statements of an action: one transaction, committed at the end. Raises StoreError and its kinds."""
    async with _transaction(store, settings) as session:
        yield session


@asynccontextmanager
async def _transaction(store: PgJobStore, settings: str) -> AsyncIterator[Session]:
    with translating(store.schema):
        async with (
            store.connection() as lent,
            own_transaction(store.session(lent).connection, settings=settings, timeout=BEGIN_SECONDS),
        ):
            yield store.session(lent)


async def read_clock(session: Runs) -> datetime:
    """Return what the clock of the database shows."""
    (begin,) = await session.run("begin_selection")
    now: datetime = begin["now"]
    return now


async def get_job(session: Session, job_id: int) -> Job | None:
    """Return a job with all its columns."""
    rows = await session.run("get", job_id)
    return stored_job(rows[0]) if rows else None


async def count_active(session: Runs) -> Counts:
    """Count what has not finished, of the oldest 20,000 rows."""
    rows = await session.run("count_active", COUNT_ROWS)
    found = [
        ActiveCount(row["queue"], row["job_type"], Status(row["status"]), row["jobs"], row["again"], row["oldest_due"])
        for row in rows
        if row["queue"] is not None
    ]
    return Counts(found, rows[0]["looked"] == COUNT_ROWS, rows[0]["now"])


async def list_workers(session: Runs) -> list[RegisteredWorker]:
    """Return the registry, the living first, at most 1,000."""
    return await workers.list_workers(session)


async def list_running(session: Runs, worker: int) -> list[Running]:
    """Return what a worker runs, the longest first, at most 200."""
    rows = await session.run("list_running", worker, RUNNING_SHOWN)
    return [Running(*(row[name] for name in Running._fields)) for row in rows]


async def see_surroundings(session: Runs, job_id: int, scheduled_task: str | None) -> Surroundings:
    """Return what belongs to a job; ``scheduled_task``: its job_type, if a schedule made it."""
    (row,) = await session.run("see_surroundings", job_id, scheduled_task, SCHEDULES_SHOWN)
    return Surroundings(
        row["now"], row["worker"], row["beat_seconds"], row["is_dead"], row["names"] or [], row["is_last"]
    )


async def see_tables(session: Runs, schema: str) -> list[TableSize]:
    """Return the tables of the schema, the largest first."""
    rows = await session.run("see_tables", schema)
    return [TableSize(*(row[name] for name in TableSize._fields)) for row in rows]


async def see_indexes(session: Runs, schema: str) -> list[IndexSize]:
    """Return the indexes of the schema, the largest first."""
    rows = await session.run("see_indexes", schema)
    return [IndexSize(*(row[name] for name in IndexSize._fields)) for row in rows]


async def see_history(session: Runs, age_seconds: float) -> History:
    """Say what retention of this age would remove now."""
    (row,) = await session.run("count_old", age_seconds, HISTORY_ROWS)
    return History(row["jobs"], row["jobs"] == HISTORY_ROWS, row["oldest"])


async def see_database(session: Runs) -> Database:
    """Return what the server says of itself."""
    (row,) = await session.run("see_database")
    return Database(*(row[name] for name in Database._fields))


async def list_migrations(session: Runs) -> list[MigrationRow]:
    """Return the migrations that were applied."""
    return [MigrationRow(*(row[name] for name in MigrationRow._fields)) for row in await session.run("list_migrations")]


async def read_pulse(session: Runs, schema: str) -> dict[str, int]:
    """Return by table a number that grows with each write, a little late."""
    return {row["name"]: int(row["writes"]) for row in await session.run("read_pulse", schema)}
