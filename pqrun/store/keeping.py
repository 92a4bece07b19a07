"""The keeper's connection: the registry's statements, the session lock, and the notifications, all on one."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence

import asyncpg

from pqrun.store import registry
from pqrun.store.failure import DRIVER_ERRORS, translating
from pqrun.store.link import Opener, Session
from pqrun.store.registry import Beat, Beats
from pqrun.store.statements import Statements

__all__ = ["KeptRegistry"]


class KeptRegistry:
    """One connection that beats and listens; used by one event loop, which need not be the worker's."""

    def __init__(
        self,
        opener: Opener,
        statements: Statements,
        *,
        queues: Sequence[str] | None = None,
        job_types: Sequence[str] = (),
    ) -> None:
        self._queues = queues
        self._job_types = job_types
        self._opener = opener
        self._statements = statements
        self._connection: asyncpg.Connection | None = None
        self._heard: Callable[[object, int, str, object], None] | None = None  # what listens on the present connection

    @property
    def is_connected(self) -> bool:
        """Whether the connection stands, as far as the socket tells."""
        return self._connection is not None and not self._connection.is_closed()

    async def connect(self) -> None:
        """Open a connection; what was there before is dropped."""
        await self.close()
        with translating():
            self._connection = await self._opener.open()

    async def close(self) -> None:
        """Close the connection; one that a pool lent goes back without our listener, of which the pool would warn."""
        connection, self._connection = self._connection, None
        heard, self._heard = self._heard, None
        if connection is None:
            return
        if heard is not None:
            with contextlib.suppress(*DRIVER_ERRORS):  # it does not answer: it is disposed of all the same
                await asyncio.wait_for(connection.remove_listener(self._statements.schema, heard), 1.0)
        await self._opener.dispose(connection, 1.0)

    async def listen(self, on_message: Callable[[str], None]) -> None:
        """Hear the schema's channel until the connection ends."""

        def heard(_connection: object, _pid: int, _channel: str, message: object) -> None:
            on_message(str(message))

        self._heard = heard
        with translating():
            await self._opened.add_listener(self._statements.schema, heard)

    async def register(self, worker_id: str, hostname: str, pid: int) -> int:
        """Add a row for this process; return its id."""
        with translating():
            return await registry.register(
                self._session, worker_id, hostname, pid, queues=self._queues, job_types=self._job_types
            )

    async def hold_lock(self, worker: int) -> bool:
        """Take the session lock of this row."""
        with translating():
            return await registry.hold_lock(self._session, worker)

    async def beat(self, worker: int) -> Beats:
        """Advance the counter; read all. A connection that does not answer in time is dropped."""
        try:
            with translating():
                return await registry.beat(self._session, worker)
        except Exception:
            await self.close()
            raise

    async def probe_locks(self, workers: list[int]) -> frozenset[int]:
        """Return those whose session lock is free."""
        with translating():
            return await registry.probe_locks(self._session, workers)

    async def bury(self, dead: list[Beat]) -> list[tuple[int, str]]:
        """Take for dead; return (id, worker_id)."""
        with translating():
            return await registry.bury(self._session, dead)

    async def deregister(self, worker: int) -> None:
        """Leave the registry."""
        with translating():
            await registry.deregister(self._session, worker)

    @property
    def _opened(self) -> asyncpg.Connection:
        assert self._connection is not None  # noqa: S101  # the keeper connects first
        return self._connection

    @property
    def _session(self) -> Session:
        return Session(self._opened, self._statements)
