"""``jobs.pause``, ``resume``, ``paused`` and ``queues``: the queues of an app's database, for coroutines and for synchronous code."""

from typing import overload

from pqrun.job.pause import Named, Pause, check_pausable, check_reason
from pqrun.job.queue import QueueState
from pqrun.portal import Portal

__all__ = ["QueueCalls"]


class QueueCalls:
    """The part of ``App`` that is about queues as a whole; the app must be open."""

    _portal: Portal

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
        store = self._portal.opened_store()
        if kind == "queue":
            return await store.pause(queue=name, reason=reason)
        return await store.pause(task=name, reason=reason)

    @overload
    async def resume(self, *, queue: str) -> bool: ...
    @overload
    async def resume(self, *, task: Named | str) -> bool: ...
    async def resume(self, *, queue: str | None = None, task: Named | str | None = None) -> bool:
        """End a pause; return whether there was one. Workers look for its jobs at once. Raises ArgumentsError and OptionError."""
        kind, name = check_pausable(queue, task)
        store = self._portal.opened_store()
        return await (store.resume(queue=name) if kind == "queue" else store.resume(task=name))

    async def paused(self) -> list[Pause]:
        """Return what is paused, the oldest pause first."""
        return await self._portal.opened_store().paused()

    async def queues(self) -> list[QueueState]:
        """Return all queues that have unfinished jobs, are paused or are served, by name.

        It looks at a bounded number of rows, so counts may be lower bounds; see ``QueueState.at_least``.
        """
        return await self._portal.opened_store().queues()

    # The same for synchronous code.

    @overload
    def pause_sync(self, *, queue: str, reason: str | None = None) -> bool: ...
    @overload
    def pause_sync(self, *, task: Named | str, reason: str | None = None) -> bool: ...
    def pause_sync(
        self, *, queue: str | None = None, task: Named | str | None = None, reason: str | None = None
    ) -> bool:
        """Do what ``pause`` does, from synchronous code; see ``Task.defer_sync``."""
        kind, name = check_pausable(queue, task)
        why = check_reason(reason)
        if kind == "queue":
            return self._portal.run(lambda store: store.pause(queue=name, reason=why), instead="await jobs.pause(...)")
        return self._portal.run(lambda store: store.pause(task=name, reason=why), instead="await jobs.pause(...)")

    @overload
    def resume_sync(self, *, queue: str) -> bool: ...
    @overload
    def resume_sync(self, *, task: Named | str) -> bool: ...
    def resume_sync(self, *, queue: str | None = None, task: Named | str | None = None) -> bool:
        """Do what ``resume`` does, from synchronous code; see ``Task.defer_sync``."""
        kind, name = check_pausable(queue, task)
        if kind == "queue":
            return self._portal.run(lambda store: store.resume(queue=name), instead="await jobs.resume(...)")
        return self._portal.run(lambda store: store.resume(task=name), instead="await jobs.resume(...)")

    def paused_sync(self) -> list[Pause]:
        """Do what ``paused`` does, from synchronous code; see ``Task.defer_sync``."""
        return self._portal.run(lambda store: store.paused(), instead="await jobs.paused()")

    def queues_sync(self) -> list[QueueState]:
        """Do what ``queues`` does, from synchronous code; see ``Task.defer_sync``."""
        return self._portal.run(lambda store: store.queues(), instead="await jobs.queues()")
