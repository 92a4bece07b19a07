"""PgJobStore: the door to the tables, for applications and for workers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Protocol, Self, cast

import asyncpg
from typing_extensions import Unpack

from pqrun.errors import ConfigurationError
from pqrun.job.attempts import ErrorGroup, JobAttempt
from pqrun.job.by_name import job_by_name
from pqrun.job.filter import JobFilter
from pqrun.job.options import check_job_id
from pqrun.job.outcome import CancelOutcome
from pqrun.job.record import Enqueued, Job, NewJob
from pqrun.store import attempts, intervening
from pqrun.store.attempts import GroupOptions
from pqrun.store.awaiting import Awaiting
from pqrun.store.borrowed import BorrowedLink
from pqrun.store.connecting import check_dsn, describe_dsn, open_connection
from pqrun.store.enqueueing import Joined, insert_in
from pqrun.store.failure import DRIVER_ERRORS, translating
from pqrun.store.gathering import GATHER_SECONDS, GATHER_SETTINGS
from pqrun.store.link import PLANNER_SETTINGS, KeptLink, Link, Session, repeated
from pqrun.store.migrate import Migration, check_schema, migrate
from pqrun.store.patience import FIRST_SECONDS, MOST_SECONDS, Patience
from pqrun.store.ports import AnyConnection, AnySyncConnection, Connection, Pool
from pqrun.store.producing import Producer
from pqrun.store.rows import stored_job
from pqrun.store.selecting import SELECT_SETTINGS
from pqrun.store.selection import Selection
from pqrun.store.source import DirectDsn, DsnOpener, FactoryOpener, PoolOpener, PoolSource
from pqrun.store.statements import Statements

__all__ = ["PgJobStore"]

EMBEDDED_PREFIX = "embedded:"


class _Server(Protocol):
    """A database of the package's own (``pqrun.embedded``), running."""

    @property
    def dsn(self) -> str: ...

    def close(self) -> None: ...


class PgJobStore(Awaiting):
    """Jobs in PostgreSQL, without decorators; ``App`` is built on it, and both share tables and workers.

    Give ``dsn`` (``postgresql://…``, or ``embedded:PATH`` for a database of the package's own) or ``pool`` (an asyncpg pool, which stays
    yours to close). ``schema`` is where the tables live, "pqrun" by default. Open it with ``start`` and ``close``, or ``async with``; it
    belongs to the event loop and the process that opened it. Raises ConfigurationError for anything that cannot work.
    """

    def __init__(self, dsn: str | None = None, *, pool: Pool | None = None, schema: str = "pqrun") -> None:
        self._statements = Statements(schema)
        if dsn is not None and not dsn.startswith(EMBEDDED_PREFIX):
            dsn = check_dsn(dsn)
        self._source = PoolSource(dsn, pool)
        self._producer = Producer(self._source, self._statements)
        self._opening = asyncio.Lock()
        self._server: _Server | None = None
        self._dsn: str | None = None  # the resolved one, while open

    def __repr__(self) -> str:
        dsn = self._source.dsn
        where = "a pool" if dsn is None else dsn if dsn.startswith(EMBEDDED_PREFIX) else describe_dsn(dsn)
        return f"PgJobStore({where}, schema={self.schema!r})"

    @property
    def schema(self) -> str:
        """The schema that holds the tables."""
        return self._statements.schema

    @property
    def is_open(self) -> bool:
        """Whether ``start`` was called, in this process, and ``close`` was not."""
        return self._source.is_open

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop that it is open in, None while it is closed."""
        return self._source.loop

    @property
    def is_open_here(self) -> bool:
        """Whether it is open in the running event loop."""
        return self._source.is_here

    @property
    def is_pool_handed_in(self) -> bool:
        """Whether connections come from a pool of the caller's."""
        return self._source.is_handed_in

    def another(self) -> "PgJobStore":
        """Return a store on the same tables for another event loop, not open yet; raises ConfigurationError with a handed-in pool."""
        if self._source.dsn is None:
            raise ConfigurationError(
                "a store with pool= belongs to the event loop of its pool; make the store with a DSN"
            )
        return PgJobStore(self._source.dsn, schema=self.schema)

    async def start(self) -> None:
        """Open the store; a second start does nothing. An embedded database is started and migrated.

        No connection is made until one is needed. Raises ConfigurationError, WrongLoopError, or EmbeddedError.
        """
        async with self._opening:
            if self.is_open:
                _ = self._source.checked()  # open elsewhere is not open here: say so now
                return
            try:
                await self._open()
            except BaseException:
                await self.close()
                raise

    async def _open(self) -> None:
        self._dsn = await self._resolve() or None
        await self._source.open(self._dsn, is_direct=self._server is not None)
        opener = None if self._dsn is None else self._source.opener(self._dsn, "pqrun results")
        self._open_asking(opener, f"{self.schema}:done")
        self._producer.open(
            self.open_link("enqueue", kept=False, settings=GATHER_SETTINGS, patience=GATHER_SECONDS),
            is_kept=self._dsn is not None,
        )
        if self._server is not None:
            await self.migrate()

    async def close(self, timeout: float = 10.0) -> None:
        """Close what ``start`` opened, within ``timeout`` seconds; a second close does nothing."""
        clock = asyncio.get_running_loop().time
        give_up = clock() + timeout
        asking, self._asking = self._asking, None
        if self._source.is_here:
            await self._producer.close(timeout / 2)
            await self._close_asking(asking)
        await self._source.close(max(give_up - clock(), 0.1))
        server, self._server = self._server, None
        if server is not None:
            await asyncio.to_thread(server.close)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def migrate(self) -> list[Migration]:
        """Bring the schema up to this version of pqrun; needs no ``start``. Any number of processes may call it at once.

        Returns the migrations that were applied. Raises SchemaError when the schema was made by another text of the same version.
        """
        if self._source.is_handed_in:
            async with self._source.acquire(unopened=True) as lent:
                with translating():
                    return await migrate(lent, self.schema)
        # All of it is one transaction; without a statement cache that holds behind a pooler, too.
        connection = await open_connection(
            await self._resolve(), application_name="pqrun migrate", statement_cache_size=0
        )
        try:
            with translating():
                return await migrate(connection, self.schema)
        finally:
            await connection.close(timeout=5.0)

    async def check_schema(self) -> None:
        """Raise SchemaError, naming the command to run, when the schema is missing or older than this code."""
        with translating():
            async with self._source.acquire_own() as connection:
                await check_schema(connection, self.schema)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """Lend a connection of the store's pool. Behind a pooler in transaction mode use it in transactions only."""
        async with self._source.acquire() as connection:
            yield connection

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """Lend a connection with an open transaction: committed at the end, rolled back on an error.

        Jobs enqueued with ``connection=`` become visible, and wake a worker, with the commit. What is raised inside passes as it is;
        raises StoreError and its kinds where beginning or committing fails.
        """
        async with self._source.acquire() as connection:
            transaction = connection.transaction()
            with translating():
                await transaction.start()
            try:
                yield connection
            except BaseException:
                with contextlib.suppress(*DRIVER_ERRORS):  # the connection is gone: what was raised inside counts
                    await transaction.rollback()
                raise
            with translating():
                await transaction.commit()

    async def enqueue(
        self,
        job_type: str,
        payload: Mapping[str, object],
        *,
        queue: str = "default",
        dedupe_key: str | None = None,
        run_after: datetime | timedelta | None = None,
        priority: int = 0,
        max_attempts: int = 5,
        timeout_seconds: float | None = None,
        payload_version: int = 1,
        headers: Mapping[str, str] | None = None,
        connection: AnyConnection | None = None,
    ) -> int:
        """Add a job and return its id: that of the active job where ``dedupe_key`` (a finished key, per job_type) is taken.

        ``payload`` is a JSON object; ``run_after`` an aware datetime or a delay; ``priority`` a smallint, higher first;
        ``payload_version`` the version of the task that the payload was made for; ``headers`` texts that travel beside it;
        ``connection`` joins the caller's transaction (asyncpg, SQLAlchemy or psycopg). Raises PayloadError, OptionError or DedupeKeyError
        before anything is written.
        """
        job = job_by_name(
            job_type,
            payload,
            queue=queue,
            dedupe_key=dedupe_key,
            run_after=run_after,
            priority=priority,
            max_attempts=max_attempts,
            timeout_seconds=timeout_seconds,
            payload_version=payload_version,
            headers=headers,
        )
        return (await self.enqueue_jobs([job], connection=connection))[0].id

    async def enqueue_jobs(self, jobs: Sequence[NewJob], *, connection: AnyConnection | None = None) -> list[Enqueued]:
        """Insert validated jobs in one transaction; one Enqueued each, in order. Equal keys share one id.

        A single one without ``connection`` travels with others of this process that come at the same time. A deadlock or serialization
        failure is repeated where the transaction is ours, else raised as ConflictError.
        """
        if connection is not None:
            session = self.join(connection)
            if isinstance(session, Session):
                return await self._producer.write_in(session, jobs)
            return await insert_in(session, jobs)
        return await self._producer.write(jobs)

    def enqueue_jobs_sync(self, jobs: Sequence[NewJob], connection: AnySyncConnection) -> list[Enqueued]:
        """Do the same within the caller's transaction on a synchronous connection; the store need not be open, nor any loop run.

        Raises OptionError for a connection that is asynchronous, or that would block an event loop.
        """
        session = self.join_sync(connection)
        from pqrun.store.foreign.driving import run_to_end  # only for those who have such a connection

        return run_to_end(insert_in(session, jobs))

    async def get(self, job_id: int) -> Job | None:
        """Return the job as it is now, or None where there is none."""
        rows = await self.run("get", check_job_id(job_id))
        return stored_job(rows[0]) if rows else None

    async def cancel(self, job_id: int) -> CancelOutcome:
        """Cancel a job: at once if it has not started, by asking its worker if it runs.

        Raises JobBusy when another transaction held the row for five seconds.
        """
        return await intervening.cancel(self.run, check_job_id(job_id))

    async def retry(self, job_id: int, *, force: bool = False) -> None:
        """Make a FAILED or CANCELLED job READY again with all its attempts (``force``: a DONE one too, losing its result).

        Raises RetryRefused (its ``conflicting_id`` names the active job that has taken the dedupe key) or JobNotFound.
        """
        await intervening.retry(self.run, check_job_id(job_id), force=force)

    async def attempts(self, job_id: int) -> list[JobAttempt]:
        """Return the last attempts of a job that did not succeed, newest last: 20 at most; none where there is no such job."""
        return await attempts.find_attempts(self.run, job_id)

    async def error_groups(self, **options: Unpack[GroupOptions]) -> list[ErrorGroup]:
        """Return what went wrong, in groups of the same error, the one with the newest attempt first; raises OptionError.

        It looks at 5,000 groups at most; what it costs grows with those, not with the attempts.
        """
        return await attempts.find_error_groups(self.run, **options)

    def select(self, which: JobFilter | Iterable[int], *, limit: int | None = None) -> Selection:
        """Choose jobs by ids or by a ``JobFilter``, to count, find, cancel, retry, delete, move or prioritize all; at most ``limit``."""
        return Selection(self.open_selection, which, limit)

    def open_selection(self) -> Link:
        """Return a way to run the statements of a selection, whose user closes it; raises NotOpenError."""
        _ = self._source.checked()
        return self.open_link("select", kept=False, settings=SELECT_SETTINGS, patience=MOST_SECONDS)

    async def run(self, name: str, *arguments: object, timeout: float | None = None) -> list[asyncpg.Record]:
        """Run one of pqrun's own statements on the pool, repeated on a deadlock or serialization failure."""

        async def run() -> list[asyncpg.Record]:
            with translating(self.schema):
                async with self._source.acquire_own() as connection:
                    return await Session(connection, self._statements).run(name, *arguments, timeout=timeout)

        return await repeated(run)

    def session(self, connection: Connection) -> Session:
        """Return pqrun's statements on an asyncpg connection."""
        return Session(cast("asyncpg.Connection", connection), self._statements)

    def join(self, connection: AnyConnection) -> Session | Joined:
        """Return pqrun's statements within the transaction of an asynchronous connection; raises OptionError for what is none.

        What those on another library's connection raise is translated already.
        """
        if isinstance(connection, Connection):
            return self.session(connection)
        from pqrun.store.foreign import kinds  # only for those who have such a connection

        return kinds.join(connection, self._statements)

    def join_sync(self, connection: AnySyncConnection) -> Joined:
        """Return the same for a synchronous connection; raises OptionError for what is none, or would block an event loop."""
        from pqrun.store.foreign import kinds  # only for those who have such a connection

        return kinds.join_sync(connection, self._statements)

    def open_link(
        self, duty: str, *, kept: bool, settings: str = PLANNER_SETTINGS, patience: float = FIRST_SECONDS
    ) -> Link:
        """Return a way to run statements for one duty of a worker; a kept connection is opened when it is first used.

        ``kept`` is a wish: from a handed-in pool a worker keeps two connections, so other duties borrow. ``settings`` are made for its
        session or each of its transactions; ``patience``: seconds that a statement may take at first.
        """
        patient = Patience(patience)
        if self._dsn is None and not kept:
            return BorrowedLink(self._source, self._statements, settings=settings, patience=patient)
        opener = self._source.opener(self._dsn, f"pqrun {duty}")
        return KeptLink(opener, self._statements, settings=settings, patience=patient)

    def open_direct(self, duty: str, direct: DirectDsn | None) -> DsnOpener | FactoryOpener | None:
        """Return a way to connections outside of any pool, usable from another thread; None where there is none."""
        if callable(direct):
            return FactoryOpener(direct)
        if direct is not None:
            return DsnOpener(check_dsn(direct), f"pqrun {duty}")
        return None if self._dsn is None else DsnOpener(self._dsn, f"pqrun {duty}", self._source.outside_finder())

    def open_pooled(self) -> PoolOpener | DsnOpener:
        """Return a way to connections that are kept for long: our own, or lent by the handed-in pool."""
        return self._source.opener(self._dsn, "pqrun keeper")

    @property
    def statements(self) -> Statements:
        """The SQL of this store's schema."""
        return self._statements

    async def _resolve(self) -> str:
        """Return the DSN to connect to; starts the embedded server if that is where it leads."""
        dsn = self._source.dsn
        if dsn is None:
            return ""
        if not dsn.startswith(EMBEDDED_PREFIX):
            return dsn
        if self._server is None:
            from pqrun.embedded import start_server_async  # only those who use it pay for its import

            self._server = await start_server_async(dsn.removeprefix(EMBEDDED_PREFIX))
        return self._server.dsn
