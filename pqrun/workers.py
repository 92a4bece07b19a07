"""``jobs.workers``: the registered workers, and what is wanted of them from outside, for coroutines and for synchronous code."""

import asyncio
from collections.abc import Callable, Collection, Coroutine
from datetime import datetime
from typing import Any, Final, TypeAlias, TypeVar
from uuid import uuid4

import msgspec

from pqrun.errors import ArgumentsError, NotOpenError, OptionError
from pqrun.job.registered import RegisteredWorker
from pqrun.job.serving import Queues
from pqrun.job.wanted import UNCHANGED, wanted_text
from pqrun.portal import Portal
from pqrun.store import PgJobStore
from pqrun.store import workers as rows

__all__ = ["Which", "WorkerStacks", "Workers", "await_stacks"]

T = TypeVar("T")

Which: TypeAlias = int | str | Collection[int | str]
"""A worker's ``id``, or a ``worker_id``, which several may share; or a collection of both."""

_Registered: TypeAlias = list[RegisteredWorker]  # inside the class ``list`` is its method
_Asked: TypeAlias = list[rows.Told]
_Answers: TypeAlias = dict[int, tuple[datetime, str]]

LOOK_SECONDS: Final = 0.1
"""Between two looks for answers."""


class WorkerStacks(msgspec.Struct, frozen=True, kw_only=True):
    """Where the running handlers of one worker are."""

    id: int
    worker_id: str
    taken_at: datetime | None
    text: str | None
    """At most 64 kB; None: it did not answer in time, or is of a version that does not know the question."""


_Stacks: TypeAlias = list[WorkerStacks]


async def await_stacks(store: PgJobStore, told: _Asked, timeout: float) -> _Answers:
    """Wait ``timeout`` seconds at most until all workers that were asked for stacks have answered; return what came, by the worker's id."""
    loop = asyncio.get_running_loop()
    until = loop.time() + timeout
    asked, since = [one.worker for one in told], min(one.asked_at for one in told)
    while True:
        answers = await rows.find_stacks(store, asked, since)
        if len(answers) == len(asked) or loop.time() >= until:
            return answers
        await asyncio.sleep(LOOK_SECONDS)


class Workers:
    """The registered workers: ``jobs.workers`` of an open app, or ``Workers(store)``. Its calls raise StoreError and its kinds.

    Those for synchronous code (``…_sync``, see ``Task.defer_sync``) need an app.
    """

    def __init__(self, store: PgJobStore | Callable[[], PgJobStore], portal: Portal | None = None) -> None:
        self._find_store = store
        self._portal = portal

    @property
    def _store(self) -> PgJobStore:
        return self._find_store if isinstance(self._find_store, PgJobStore) else self._find_store()

    async def list(self) -> _Registered:
        """Return the registered workers, living ones first, at most 1,000."""
        return await self._store.list_workers()

    async def set(
        self,
        worker: Which,
        *,
        queues: Queues | msgspec.UnsetType = UNCHANGED,
        concurrency: int | msgspec.UnsetType | None = UNCHANGED,
        fetching: bool | msgspec.UnsetType = UNCHANGED,
    ) -> tuple[int, ...]:
        """Let workers serve other queues, run another number of jobs at once, or claim nothing for now.

        ``worker``: an ``id``, a ``worker_id``, which several may share, or a collection of these. ``queues`` is what a worker's
        ``queues=`` takes; ``concurrency`` None: what its numbers add up to. ``fetching`` False: it claims nothing until True is said; its
        running jobs go on, and claims that have not started go back. What is not given stays. Each worker follows within about a second
        until it ends; one that cannot (more queues with numbers than ``concurrency``) logs a warning and keeps its queues and numbers.
        Returns the ids of the workers it was written for, none where no such worker lives. Raises ArgumentsError where nothing is given,
        and OptionError.
        """
        if queues is UNCHANGED and concurrency is UNCHANGED and fetching is UNCHANGED:
            raise ArgumentsError("give queues=, concurrency=, fetching= or several")
        return await self._want(worker, wanted_text(queues, concurrency, fetching))

    async def drain(self, worker: Which) -> tuple[int, ...]:
        """Let workers stop for good, as SIGTERM does: they claim no more, running jobs have their grace, and the rest goes back.

        The process of ``pqrun worker`` ends then; inside a web application only the worker does. It cannot be taken back. ``worker`` and
        what is returned: as in ``set``.
        """
        return await self._want(worker, wanted_text(drain=True))

    async def stacks(self, worker: Which, *, timeout: float = 5.0) -> _Stacks:
        """Ask workers where their running handlers are, and return what they answer within ``timeout`` seconds.

        Stacks are file names, lines and source: no variables, no payloads. A worker answers also while its event loop is blocked, if it
        has a connection of its own for signs of life (not with ``pool=`` alone). ``worker`` is as in ``set``; none lives: an empty list.
        Raises OptionError.
        """
        if not timeout >= 0:
            raise OptionError(f"timeout: expected seconds, 0 or more; got {timeout!r:.80}")
        meant = {one.id: one.worker_id for one in await self._living(worker)}
        told = await rows.want(self._store, [*meant], wanted_text(stacks=uuid4().hex)) if meant else []
        answers: _Answers = await await_stacks(self._store, told, timeout) if told else {}
        return [
            WorkerStacks(id=one.worker, worker_id=meant[one.worker], taken_at=at, text=text)
            for one in sorted(told)
            for at, text in [answers.get(one.worker, (None, None))]
        ]

    async def _want(self, worker: Which, wanted: str) -> tuple[int, ...]:
        meant = [one.id for one in await self._living(worker)]
        return tuple(told.worker for told in await rows.want(self._store, meant, wanted)) if meant else ()

    async def _living(self, worker: Which) -> _Registered:
        named = {worker} if isinstance(worker, int | str) else set(worker)
        return [
            one for one in await self.list() if one.dead_at is None and not named.isdisjoint((one.id, one.worker_id))
        ]

    # The same for synchronous code.

    def list_sync(self) -> _Registered:
        """Do what ``list`` does, from synchronous code; see ``Task.defer_sync``."""
        return self._run(lambda workers: workers.list(), "list()")

    def set_sync(
        self,
        worker: Which,
        *,
        queues: Queues | msgspec.UnsetType = UNCHANGED,
        concurrency: int | msgspec.UnsetType | None = UNCHANGED,
        fetching: bool | msgspec.UnsetType = UNCHANGED,
    ) -> tuple[int, ...]:
        """Do what ``set`` does, from synchronous code; see ``Task.defer_sync``."""
        return self._run(
            lambda workers: workers.set(worker, queues=queues, concurrency=concurrency, fetching=fetching), "set(...)"
        )

    def drain_sync(self, worker: Which) -> tuple[int, ...]:
        """Do what ``drain`` does, from synchronous code; see ``Task.defer_sync``."""
        return self._run(lambda workers: workers.drain(worker), "drain(...)")

    def stacks_sync(self, worker: Which, *, timeout: float = 5.0) -> _Stacks:
        """Do what ``stacks`` does, from synchronous code; see ``Task.defer_sync``."""
        return self._run(lambda workers: workers.stacks(worker, timeout=timeout), "stacks(...)")

    def _run(self, act: "Callable[[Workers], Coroutine[Any, Any, T]]", call: str) -> T:
        if self._portal is None:
            raise NotOpenError(f"synchronous calls need an app: jobs.workers; here: await Workers(store).{call}")
        return self._portal.run(lambda store: act(Workers(store)), instead=f"await jobs.workers.{call}")
