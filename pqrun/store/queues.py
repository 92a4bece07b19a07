"""Queues from outside: paused and resumed for all workers, and what each looks like now."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar, overload

from pqrun.errors import DatabaseUnavailableError, StoreError
from pqrun.job.pause import Named, Pause, PauseKind, check_pausable, check_reason
from pqrun.job.queue import QueueState
from pqrun.store.enqueueing import Runs
from pqrun.store.link import PLANNER_SETTINGS, Link
from pqrun.store.rows import Row

__all__ = ["PAUSE_SETTINGS", "QueueControl", "find_pauses", "find_queues", "patiently"]

T = TypeVar("T")

PAUSE_SETTINGS: Final = f"{PLANNER_SETTINGS}; SET lock_timeout = 500"
"""While a pause waits for the claims under way, later ones wait behind it: not for long, should one of those hang."""

PAUSE_TRIES: Final = 10
"""How often a pause is tried that such a claim stands in the way of."""

PAUSE_WAIT_SECONDS: Final = 0.1
"""Between two tries: the claims that waited have their turn."""

COUNT_ROWS: Final = 10_000
"""No count of a queue's jobs goes beyond it."""

COUNT_LANES: Final = 2_000
"""Lanes (queue and priority) with ready jobs that are looked at."""

LOCK_NOT_AVAILABLE: Final = "55P03"


async def find_queues(session: Runs) -> list[QueueState]:
    """Return all queues that have unfinished jobs, are paused or are served, by name; see ``QueueControl.queues``."""
    return [_state(row) for row in await session.run("find_queues", COUNT_ROWS, COUNT_LANES)]


async def find_pauses(session: Runs) -> list[Pause]:
    """Return what is paused, the oldest pause first."""
    rows = await session.run("find_pauses")
    return [Pause(row["kind"], row["name"], row["paused_at"], row["reason"]) for row in rows]


class QueueControl(ABC):
    """The part of ``PgJobStore`` that is about queues as a whole."""

    @abstractmethod
    def open_selection(self, settings: str = PLANNER_SETTINGS) -> Link:
        """Return a way to run these statements, whose user closes it; raises NotOpenError."""

    @overload
    async def pause(self, *, queue: str, reason: str | None = None) -> bool: ...
    @overload
    async def pause(self, *, task: Named | str, reason: str | None = None) -> bool: ...
    async def pause(
        self, *, queue: str | None = None, task: Named | str | None = None, reason: str | None = None
    ) -> bool:
        """Let no worker start jobs of a queue, or of a task (or its name), until ``resume``; return whether it was not paused before.

        When this returns no job of it will be claimed any more, by any worker. Claims that have not started go back at once, running jobs
        go on, and jobs are added as ever. One that is paused already keeps its time and its reason. Raises ArgumentsError unless exactly
        one is given, OptionError, and DatabaseUnavailableError when the claim of another connection does not end.
        """
        kind, name = check_pausable(queue, task)
        why = check_reason(reason)
        link = self.open_selection(PAUSE_SETTINGS)
        try:
            return await _pause(link, kind, name, why)
        finally:
            await link.close()

    @overload
    async def resume(self, *, queue: str) -> bool: ...
    @overload
    async def resume(self, *, task: Named | str) -> bool: ...
    async def resume(self, *, queue: str | None = None, task: Named | str | None = None) -> bool:
        """End a pause; return whether there was one. Workers look for its jobs at once. Raises ArgumentsError and OptionError."""
        kind, name = check_pausable(queue, task)

        async def resume(link: Runs) -> bool:
            return bool(await link.run("resume", kind, name))

        return await self._asked(resume)

    async def paused(self) -> list[Pause]:
        """Return what is paused, the oldest pause first."""
        return await self._asked(find_pauses)

    async def queues(self) -> list[QueueState]:
        """Return all queues that have unfinished jobs, are paused or are served, by name.

        It looks at a bounded number of rows, so counts may be lower bounds; see ``QueueState.at_least``.
        """
        return await self._asked(find_queues)

    async def _asked(self, ask: Callable[[Runs], Awaitable[T]]) -> T:
        link = self.open_selection(PLANNER_SETTINGS)
        try:
            return await ask(link)
        finally:
            await link.close()


async def _pause(link: Link, kind: PauseKind, name: str, reason: str | None) -> bool:
    async def pause() -> bool:
        return bool(await link.run("pause", kind, name, reason))

    return await patiently(pause, kind)


async def patiently(pause: Callable[[], Awaitable[T]], kind: PauseKind) -> T:
    """Pause, and again while claims under way stand in the way; raises DatabaseUnavailableError when one does not end."""
    for _ in range(PAUSE_TRIES):
        try:
            return await pause()
        except StoreError as error:
            if error.sqlstate != LOCK_NOT_AVAILABLE:
                raise
        await asyncio.sleep(PAUSE_WAIT_SECONDS)
    raise DatabaseUnavailableError(
        f"the {kind} was not paused: a worker's claim has been under way for seconds and does not end; try again"
    )


def _state(row: Row) -> QueueState:
    cut = {name for name in ("ready", "scheduled", "running") if row[f"is_{name}_cut"]}
    return QueueState(
        name=row["name"],
        ready=row["ready"],
        scheduled=row["scheduled"],
        running=row["running"],
        failing=row["failing"],
        at_least=frozenset(cut | ({"failing"} if "scheduled" in cut else set())),
        oldest_ready_seconds=row["oldest_ready_seconds"],
        paused_at=row["paused_at"],
        reason=row["reason"],
        workers=row["workers"],
        slots=row["slots"],
        paused_workers=row["paused_workers"],
    )
