"""What ``pqrun doctor`` reads: the server, our tables, who holds old snapshots, rights, workers, and whether notifications arrive.

Read only, each question a statement of its own with a limit, so that one that is refused or slow leaves the others their answer.
"""

import asyncio
from typing import Final, NamedTuple
from uuid import uuid4

from pqrun.store.failure import translating
from pqrun.store.maintaining import find_unserved
from pqrun.store.pg import PgJobStore

__all__ = [
    "Holder",
    "KnownWorker",
    "MissingRight",
    "Server",
    "Strays",
    "TableState",
    "hears_notifications",
    "inspect_rights",
    "inspect_server",
    "inspect_snapshots",
    "inspect_strays",
    "inspect_tables",
    "inspect_unserved",
    "inspect_workers",
    "is_pooled",
]

READ_SECONDS: Final = 5.0
"""How long one question may take."""

LISTEN_SECONDS: Final = 2.0
"""How long a notification of our own may be on its way."""


class Server(NamedTuple):
    """The server and this session; times in seconds, limits -1 for none, ``clock`` in epoch seconds."""

    version: str
    version_number: int
    is_standby: bool
    clock: float
    max_connections: int
    reserved_connections: int
    connections: int
    has_autovacuum: bool
    has_counts: bool
    naptime_seconds: float
    idle_timeout_seconds: float
    is_durable: bool
    role: str
    role_limit: int
    database_limit: int


class Holder(NamedTuple):
    """Who keeps an old snapshot: a "session", a "prepared" transaction, a replication "slot", or a "standby" with feedback."""

    kind: str
    who: str
    detail: str
    seconds: float | None
    transactions: int


class TableState(NamedTuple):
    """One of our tables, by the statistics of autovacuum; ``vacuumed_seconds`` ago, None for never."""

    name: str
    bytes: int
    live_rows: int
    dead_rows: int
    vacuumed_seconds: float | None
    is_left_alone: bool


class MissingRight(NamedTuple):
    """What this role may not do that a worker does."""

    name: str
    privilege: str


class KnownWorker(NamedTuple):
    """A row of the registry; ``queues`` None: all. ``is_older_than_schema``: started before the last migration. ``version``: of pqrun."""

    id: int
    worker_id: str
    hostname: str | None
    pid: int | None
    queues: list[str] | None
    job_types: list[str]
    has_lock: bool
    is_dead: bool
    beat_seconds: float
    started_seconds: float
    is_older_than_schema: bool
    version: str | None = None


class Strays(NamedTuple):
    """RUNNING rows that no registered worker holds."""

    jobs: int
    first_id: int | None


async def inspect_server(store: PgJobStore) -> Server:
    """Read what the server says of itself; needs no schema of ours."""
    return Server(*(await store.run("inspect_server", timeout=READ_SECONDS))[0])


async def inspect_snapshots(store: PgJobStore, *, seconds: float, limit: int) -> list[Holder]:
    """Read who has kept a snapshot for ``seconds`` or more, the oldest first; those without times too."""
    return [Holder(*row) for row in await store.run("inspect_snapshots", seconds, limit, timeout=READ_SECONDS)]


async def inspect_tables(store: PgJobStore) -> list[TableState]:
    """Read size, dead rows and vacuum of each table of the schema."""
    return [TableState(*row) for row in await store.run("inspect_tables", timeout=READ_SECONDS)]


async def inspect_rights(store: PgJobStore) -> list[MissingRight]:
    """Read what this role may not do that a worker does."""
    return [MissingRight(*row) for row in await store.run("inspect_rights", timeout=READ_SECONDS)]


async def inspect_workers(store: PgJobStore) -> list[KnownWorker]:
    """Read the registry, the longest running first."""
    return [KnownWorker(*row) for row in await store.run("inspect_workers", timeout=READ_SECONDS)]


async def inspect_strays(store: PgJobStore, *, limit: int) -> Strays:
    """Count RUNNING rows of nobody, up to ``limit``."""
    return Strays(*(await store.run("inspect_strays", limit, timeout=READ_SECONDS))[0])


async def inspect_unserved(store: PgJobStore) -> list[tuple[str, str]]:
    """Read the pairs of queue and job_type that wait and that no living worker serves."""
    return await find_unserved(store)


async def is_pooled(store: PgJobStore) -> bool:
    """Return whether connections lead through a pooler in transaction mode."""
    return await store.open_pooled().is_pooled()


async def hears_notifications(store: PgJobStore) -> bool:
    """Return whether what one connection notifies, it hears itself, within LISTEN_SECONDS."""
    opener, word = store.open_pooled(), uuid4().hex
    heard = asyncio.Event()

    def listener(_connection: object, _pid: int, _channel: str, message: object) -> None:
        if message == word:
            heard.set()

    with translating():
        connection = await opener.open()
        channel = f"{store.schema}:doctor"
        try:
            async with asyncio.timeout(LISTEN_SECONDS):
                await connection.add_listener(channel, listener)
                await connection.execute("SELECT pg_catalog.pg_notify($1, $2)", channel, word)
                await heard.wait()
        except TimeoutError:
            return False
        finally:
            await connection.remove_listener(channel, listener)  # a pool would warn of one that comes back with it
            await opener.dispose(connection, 1.0)
        return True
