"""The real store that the state machine drives: one loop, one database, and connections that are kept from example to example."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import asyncpg

from pqrun.job.record import Enqueued
from pqrun.store import PgJobStore, registry
from pqrun.store.link import Session
from pqrun.store.work import WorkStore
from tests.faults.model import Spec
from tests.support.leasing import EMPTY
from tests.support.waiting import wait_until

__all__ = ["SLOTS", "WORKER_IDS", "Arena", "Slot"]

T = TypeVar("T")

WORKER_IDS = ("twin", "twin", "other")
"""Two processes may have one worker_id."""

SLOTS = range(len(WORKER_IDS))

WAITING = """SELECT count(*) FROM pg_locks l JOIN pg_stat_activity s ON s.pid = l.pid
              WHERE NOT l.granted AND s.datname = current_database()"""

OLDER = """
UPDATE pqrun.jobs SET run_after = run_after - $1::interval, locked_at = locked_at - $1::interval,
       finished_at = finished_at - $1::interval, created_at = created_at - $1::interval
"""

OLDER_GRAVES = "UPDATE pqrun.workers SET dead_at = dead_at - $1::interval"


@dataclass
class Slot:
    """A worker process, as far as the store can see: its links, its keeper's connection, its row of the registry."""

    work: WorkStore
    keeper: asyncpg.Connection
    session: Session
    worker: int = 0


class Arena:
    """See the module's docstring. Every call has ``patience`` seconds: what hangs is a failure."""

    store: PgJobStore
    slots: list[Slot]
    handler: asyncpg.Connection
    """Where a handler's own transaction runs."""
    outsider: asyncpg.Connection
    """Where SQL that knows nothing of this package runs."""
    watcher: asyncpg.Connection

    def __init__(self, dsn: str, *, patience: float) -> None:
        self._dsn = dsn
        self._patience = patience
        self._runner = asyncio.Runner()
        self._tasks: set[asyncio.Task[Any]] = set()

    def __enter__(self) -> Self:
        self.call(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        self.call(self._close())
        self._runner.close()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run in the arena's loop."""
        return self._runner.run(self._bounded(coroutine))

    async def _bounded(self, coroutine: Coroutine[Any, Any, T]) -> T:
        async with asyncio.timeout(self._patience):
            return await coroutine

    async def _open(self) -> None:
        self.store = PgJobStore(self._dsn)
        await self.store.start()
        self.handler, self.outsider, self.watcher = [await asyncpg.connect(self._dsn) for _ in range(3)]
        self.slots = []
        for worker_id in WORKER_IDS:
            keeper = await asyncpg.connect(self._dsn)
            self.slots.append(Slot(WorkStore(self.store, worker_id=worker_id), keeper, self.store.session(keeper)))

    async def _close(self) -> None:
        await self._stop()
        for slot in self.slots:
            await slot.work.close(1.0)
            await slot.keeper.close()
        for connection in (self.handler, self.outsider, self.watcher):
            await connection.close()
        await self.store.close()

    async def _stop(self) -> None:
        if self.handler.is_in_transaction():
            await self.handler.execute("ROLLBACK")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def empty(self) -> None:
        """Leave nothing of the example before."""
        await self._stop()
        for slot in self.slots:
            await slot.keeper.execute("SELECT pg_advisory_unlock_all()")
        await self.watcher.execute(EMPTY)

    def start(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start something that may have to wait for the open transaction."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        return task

    async def wait_until_waiting(self, task: asyncio.Task[Any]) -> None:
        """Wait until the task waits for a lock, or has ended without."""

        async def is_waiting() -> bool:
            return task.done() or bool(await self.watcher.fetchval(WAITING))

        await wait_until(is_waiting)

    async def end_transaction(self, *, commits: bool) -> None:
        """End the handler's transaction."""
        await self.handler.execute("COMMIT" if commits else "ROLLBACK")

    async def register(self, number: int) -> int:
        """A process starts: a new row of the registry, and its lock."""
        slot = self.slots[number]
        slot.worker = await registry.register(slot.session, WORKER_IDS[number], "host", 1)
        slot.work.register(slot.worker)
        assert await registry.hold_lock(slot.session, slot.worker)
        return slot.worker

    async def kill(self, number: int) -> None:
        """What PostgreSQL does when the connection of a dead process is gone."""
        await self.slots[number].keeper.execute("SELECT pg_advisory_unlock_all()")

    async def enqueue_by_function(self, spec: Spec, *, within: bool) -> Enqueued:
        """What external SQL does."""
        connection = self.handler if within else self.outsider
        row = await connection.fetchrow(
            """SELECT id, created FROM pqrun.enqueue($1, jsonb_build_object('n', $2::integer), queue => $3, dedupe_key => $4,
                   priority => $5, max_attempts => $6, timeout_seconds => $7, delay_seconds => $8)""",
            *(spec.job_type, spec.number, spec.queue, spec.key, spec.priority),
            *(spec.max_attempts, spec.timeout, spec.delay),
        )
        assert row is not None
        return Enqueued(row["id"], row["created"])

    async def pass_time(self, seconds: float) -> None:
        """Shift all rows back."""
        by = f"{seconds} seconds"
        await self.watcher.execute(OLDER.replace("$1", f"'{by}'"))
        await self.watcher.execute(OLDER_GRAVES.replace("$1", f"'{by}'"))
