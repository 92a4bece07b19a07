"""How jobs get in: one alone travels with others of this process, many go in one transaction, and some in the caller's own."""

import functools
from collections.abc import Sequence

from pqrun.errors import NotOpenError
from pqrun.job.record import Enqueued, NewJob
from pqrun.store.enqueueing import announce, copy_jobs, insert_or_find, insert_then_find, is_for_copy
from pqrun.store.failure import translating
from pqrun.store.gathering import Gatherer
from pqrun.store.link import Link, Session, repeated
from pqrun.store.source import PoolSource
from pqrun.store.statements import Statements

__all__ = ["Producer"]


class Producer:
    """The writing side of one store; open between ``open`` and ``close``."""

    def __init__(self, source: PoolSource, statements: Statements) -> None:
        self._source = source
        self._statements = statements
        self._link: Link | None = None
        self._gatherer: Gatherer | None = None

    def open(self, link: Link, *, is_kept: bool) -> None:
        """Gather single jobs on this link; ``is_kept``: it has a connection of its own."""
        self._link = link

        async def write(jobs: Sequence[NewJob], is_loud: bool) -> list[Enqueued | None]:
            if not is_kept and len(jobs) == 1 and jobs[0].dedupe_key is None:
                # On a pool of the users' a transaction takes more round trips.
                return [await self._write_alone(jobs[0], is_loud)]
            return await insert_then_find(link, jobs, notify=is_loud)

        self._gatherer = Gatherer(
            write=write, write_alone=self._write_alone, announce=functools.partial(announce, link)
        )

    async def close(self, timeout: float) -> None:
        """Let what is on its way arrive, and give the connection up."""
        gatherer, self._gatherer = self._gatherer, None
        if gatherer is not None:
            await gatherer.close(timeout)
        link, self._link = self._link, None
        if link is not None:
            await link.close(min(timeout, 2.0))

    async def write(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Write jobs in a transaction of our own; a deadlock or serialization failure is repeated. Raises StoreError and its kinds."""
        _ = self._source.checked()
        if not jobs:
            return []
        if len(jobs) > 1:
            return await repeated(lambda: self._write_many(jobs))
        if self._gatherer is None:
            raise NotOpenError("not open any more: the store was closed")
        return [await self._gatherer.enqueue(jobs[0])]

    async def write_in(self, session: Session, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Write jobs in the caller's transaction. Raises StoreError and its kinds; ConflictError where it must be repeated."""
        if not jobs:
            return []
        connection = session.connection
        is_whole = len(jobs) == 1 or connection.is_in_transaction()  # else pieces of it would commit one by one
        with translating(self._statements.schema):
            async with self._source.around(connection) if is_whole else connection.transaction():
                return await self._write_all(session, jobs)

    async def _write_many(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        with translating(self._statements.schema):
            async with self._source.acquire() as connection, connection.transaction():
                return await self._write_all(Session(connection, self._statements), jobs)

    async def _write_all(self, session: Session, jobs: Sequence[NewJob]) -> list[Enqueued]:
        if is_for_copy(jobs):
            return await copy_jobs(session, self._statements.schema, jobs)
        return await insert_or_find(session, jobs)

    async def _write_alone(self, job: NewJob, is_loud: bool) -> Enqueued:
        async def write() -> Enqueued:
            with translating(self._statements.schema):
                async with self._source.acquire_own() as connection:
                    session = Session(connection, self._statements)
                    return (await insert_or_find(session, [job], notify=is_loud))[0]

        return await repeated(write)
