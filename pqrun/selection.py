"""``JobSelection``: many jobs of an app at once, for coroutines and for synchronous code."""

from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from typing_extensions import Unpack

from pqrun.job.bulk import BulkReport
from pqrun.job.filter import JobFilter
from pqrun.job.record import Job
from pqrun.portal import Portal
from pqrun.store.selection import FIND_LIMIT, BulkOptions, Selection

__all__ = ["JobSelection"]

T = TypeVar("T")


class JobSelection(Selection):
    """What ``jobs.select(...)`` returns: a ``Selection``, with each call for synchronous code too.

    Those run where the portal leads (see ``Task.defer_sync``), ``on_progress`` included: it is called in the thread of an event loop.
    """

    def __init__(self, portal: Portal, which: JobFilter | Iterable[int], limit: int | None) -> None:
        super().__init__(lambda: portal.opened_store().open_selection(), which, limit)
        self._portal = portal

    def count_sync(self) -> int:
        """Do what ``count`` does, from synchronous code; see ``Task.defer_sync``."""
        return self._run(lambda jobs: jobs.count(), "count()")

    def find_sync(self, limit: int = FIND_LIMIT) -> list[Job]:
        """Do what ``find`` does, from synchronous code; see ``Task.defer_sync``."""
        return self._run(lambda jobs: jobs.find(limit), "find()")

    def cancel_sync(self, **options: Unpack[BulkOptions]) -> BulkReport:
        """Do what ``cancel`` does, from synchronous code; see ``Task.defer_sync``."""
        return self._run(lambda jobs: jobs.cancel(**options), "cancel()")

    def retry_sync(self, *, force: bool = False, **options: Unpack[BulkOptions]) -> BulkReport:
        """Do what ``retry`` does, from synchronous code; see ``Task.defer_sync``."""
        return self._run(lambda jobs: jobs.retry(force=force, **options), "retry()")

    def delete_sync(self, *, waiting: bool = False, **options: Unpack[BulkOptions]) -> BulkReport:
        """Do what ``delete`` does, from synchronous code; see ``Task.defer_sync``."""
        return self._run(lambda jobs: jobs.delete(waiting=waiting, **options), "delete()")

    def move_sync(self, queue: str, **options: Unpack[BulkOptions]) -> BulkReport:
        """Do what ``move`` does, from synchronous code; see ``Task.defer_sync``."""
        return self._run(lambda jobs: jobs.move(queue, **options), "move(...)")

    def prioritize_sync(self, priority: int, **options: Unpack[BulkOptions]) -> BulkReport:
        """Do what ``prioritize`` does, from synchronous code; see ``Task.defer_sync``."""
        return self._run(lambda jobs: jobs.prioritize(priority, **options), "prioritize(...)")

    def _run(self, act: Callable[[Selection], Coroutine[Any, Any, T]], call: str) -> T:
        return self._portal.run(
            lambda store: act(store.select(self._which, limit=self._limit)), instead=f"await jobs.select(...).{call}"
        )
