"""The keeper's connection: the registry's statements, the session lock, and the notifications, all on one.

Behind a pooler there is no lock and there are no notifications: the worker is registered without a lock, so others judge it by the slow
limit, and it polls.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import asyncpg

from pqrun.errors import DatabaseUnavailableError, PqrunError
from pqrun.job.serving import Serving
from pqrun.store import registry
from pqrun.store.failure import DRIVER_ERRORS, is_standing, translating
from pqrun.store.link import Opener, Session, own_transaction
from pqrun.store.registry import Beat, Beats
from pqrun.store.statements import Statements

__all__ = ["KeptRegistry"]


LISTEN_SECONDS = 2.0
"""How long the answer to a LISTEN may take: meanwhile nothing beats."""

WAIT_SECONDS = 5.0
"""How long a statement may wait for a server connection of a pooler: longer than for an answer, as a new try would wait from the start."""


class KeptRegistry:
    """One connection that beats and listens; used by one event loop, which need not be the worker's."""

    def __init__(
        self,
        opener: Opener,
        statements: Statements,
        *,
        job_types: Sequence[str] = (),
        schedules: Sequence[str] = (),
        version: str | None = None,
        on_pooled: Callable[[], None] | None = None,
        is_direct: bool = False,
    ) -> None:
        self._is_direct = is_direct  # an opener of the user's choice, apart from the store's: errors name it
        self._on_pooled = on_pooled  # called once, when a pooler is found; from the loop that uses this connection
        self._is_pooled = False
        self._job_types = job_types
        self._schedules = schedules
        self._version = version
        self._opener = opener
        self._statements = statements
        self._connection: asyncpg.Connection | None = None
        self._heard: Callable[[object, int, str, object], None] | None = None  # what listens on the present connection

    @property
    def is_connected(self) -> bool:
        """Whether the connection stands, as far as the socket tells."""
        return self._connection is not None and is_standing(self._connection)

    async def connect(self) -> None:
        """Open a connection; what was there before is dropped."""
        await self.close()
        failure: DatabaseUnavailableError | None = None
        try:
            with translating():
                self._is_pooled = await self._opener.is_pooled()
                self._connection = await self._opener.open()
        except Exception as error:
            if not self._is_direct:
                raise
            # What a function of the user's raises may say anything: its type is enough.
            said = str(error) if isinstance(error, PqrunError) else f"raised {type(error).__name__}"
            failure = DatabaseUnavailableError(f"direct_dsn=: {said}")
        if failure is not None:
            raise failure
        if self._is_pooled and self._on_pooled is not None:
            on_pooled, self._on_pooled = self._on_pooled, None
            on_pooled()

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
        """Hear the schema's channel until the connection ends; behind a pooler nothing can be heard, and nothing is asked for."""
        if self._is_pooled:
            return

        def heard(_connection: object, _pid: int, _channel: str, message: object) -> None:
            on_message(str(message))

        self._heard = heard
        with translating():
            await asyncio.wait_for(self._opened.add_listener(self._statements.schema, heard), LISTEN_SECONDS)

    async def register(self, worker_id: str, hostname: str, pid: int, serving: Serving) -> int:
        """Add a row for this process; return its id."""
        async with self._session() as session:
            return await registry.register(
                session,
                worker_id,
                hostname,
                pid,
                serving=serving,
                job_types=self._job_types,
                schedules=self._schedules,
                version=self._version,
            )

    async def serve(self, worker: int, serving: Serving) -> None:
        """Say what the worker serves from now on."""
        async with self._session() as session:
            await registry.serve(session, worker, serving)

    async def tell_stacks(self, worker: int, text: str) -> None:
        """Write where the worker's handlers are."""
        async with self._session() as session:
            await registry.tell_stacks(session, worker, text)

    async def hold_lock(self, worker: int) -> bool:
        """Take the session lock of this row; return whether it was had, which behind a pooler it is not."""
        if self._is_pooled:
            return False
        async with self._session() as session:
            return await registry.hold_lock(session, worker)

    async def beat(self, worker: int) -> Beats:
        """Advance the counter; read all. A connection that does not answer in time is dropped."""
        try:
            async with self._session() as session:
                return await registry.beat(session, worker)
        except Exception:
            await self.close()
            raise

    async def probe_locks(self, workers: list[int]) -> frozenset[int]:
        """Return those whose session lock is free."""
        async with self._session() as session:
            return await registry.probe_locks(session, workers)

    async def bury(self, dead: list[Beat]) -> list[tuple[int, str]]:
        """Take for dead; return (id, worker_id)."""
        async with self._session() as session:
            return await registry.bury(session, dead)

    async def deregister(self, worker: int) -> None:
        """Leave the registry."""
        async with self._session() as session:
            await registry.deregister(session, worker)

    @property
    def _opened(self) -> asyncpg.Connection:
        assert self._connection is not None  # noqa: S101  # the keeper connects first
        return self._connection

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[Session]:
        """One statement; behind a pooler in a transaction of its own."""
        with translating(self._statements.schema):
            session = Session(self._opened, self._statements)
            if not self._is_pooled:
                yield session
                return
            async with own_transaction(session.connection, timeout=WAIT_SECONDS):
                yield session
