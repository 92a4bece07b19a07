"""An app of the user's on a database of one test's."""

import contextlib
from types import TracebackType
from typing import Self, TypeVar

from pqrun.app import App
from pqrun.store import PgJobStore
from pqrun.testing.opening import run_apart

__all__ = ["Bind"]

S = TypeVar("S")


class Bind:
    """What the fixture ``pqrun_bind`` is: ``pqrun_bind(jobs)`` ties the app to the test's database until the test ends.

    The app object stays the same, so the tasks, and the modules that imported them, need no change. It is not open after that: open it as
    the application does (a lifespan, a worker), or with ``async with pqrun_bind(jobs):``. An app that was open before is left alone, and is
    as it was when the test has ended. A schema of another name than "pqrun" is migrated.
    """

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        """The database of the test, migrated."""
        self._bound = contextlib.ExitStack()

    def __call__(self, jobs: App[S]) -> App[S]:
        """Tie the app to the test's database and return it. Raises StoreError and its kinds where the schema cannot be made."""
        self._bound.enter_context(jobs.bound(dsn=self.dsn))
        if jobs.store.schema != "pqrun":
            run_apart(PgJobStore(self.dsn, schema=jobs.store.schema).migrate())
        return jobs

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bound.close()
