"""``jobs.workers``: the registered workers, and what is wanted of them from outside."""

from collections.abc import Callable

import msgspec

from pqrun.errors import ArgumentsError
from pqrun.job.registered import RegisteredWorker
from pqrun.job.serving import Queues
from pqrun.job.wanted import UNCHANGED, wanted_text
from pqrun.store import PgJobStore
from pqrun.store import workers as rows

__all__ = ["Workers"]


class Workers:
    """The registered workers: ``jobs.workers`` of an open app, or ``Workers(store)``. Its calls raise StoreError and its kinds."""

    def __init__(self, store: PgJobStore | Callable[[], PgJobStore]) -> None:
        self._find_store = store

    @property
    def _store(self) -> PgJobStore:
        return self._find_store if isinstance(self._find_store, PgJobStore) else self._find_store()

    async def list(self) -> "list[RegisteredWorker]":
        """Return the registered workers, living ones first, at most 1,000."""
        return await self._store.list_workers()

    async def set(
        self,
        worker: int | str,
        *,
        queues: Queues | msgspec.UnsetType = UNCHANGED,
        concurrency: int | msgspec.UnsetType | None = UNCHANGED,
    ) -> tuple[int, ...]:
        """Let a worker (``id``), or all of one ``worker_id``, serve other queues or run another number of jobs at once.

        ``queues`` is what a worker's ``queues=`` takes; ``concurrency`` None: what its numbers add up to. What is not given stays. Each
        worker follows within about a second, as with ``Worker.set_queues``, until it ends; one that cannot (more queues with numbers
        than ``concurrency``) logs a warning and stays as it is. Returns the ids of the workers it was written for, none where no such
        worker lives. Raises ArgumentsError where nothing is given, and OptionError.
        """
        if queues is UNCHANGED and concurrency is UNCHANGED:
            raise ArgumentsError("give queues=, concurrency= or both")
        wanted = wanted_text(queues, concurrency)
        meant = [one.id for one in await self.list() if one.dead_at is None and worker in (one.id, one.worker_id)]
        return tuple(await rows.want(self._store, meant, wanted)) if meant else ()
