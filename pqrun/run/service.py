"""Starting, ticking and stopping, written once for all duties of a worker.

A duty gives a tick: an async function that does a piece of work and says how many seconds may pass until the next; ``AT_ONCE`` means
before anything else of the loop, for a tick that will await the database anyway. The service waits that long or until ``wake``, goes on
after errors (the policy's sleep, never below a floor that grows), and stops between two ticks: a tick under way is finished, unless the
time that ``stop`` was given is over. Double start, double stop and stop before start are harmless.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable

from pqrun.job.policy import LoopErrorPolicy
from pqrun.run.events import Events
from pqrun.run.streak import ErrorStreak

__all__ = ["AT_ONCE", "Service"]

AT_ONCE = -1.0
"""What a tick returns to be called again before any handler has its turn: with many of them that is milliseconds later."""


class Service:
    """One loop; see the module's docstring."""

    def __init__(
        self, duty: str, tick: Callable[[], Awaitable[float]], *, events: Events, policy: LoopErrorPolicy
    ) -> None:
        self.duty = duty
        self._tick = tick
        self._events = events
        self._wake = asyncio.Event()  # set by anybody on the loop, cleared before each tick
        self._is_stopping = False  # written by stop, read by the loop
        self._streak = ErrorStreak(duty, policy)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start ticking; a second start does nothing."""
        if self._task is None and not self._is_stopping:
            self._task = asyncio.create_task(self._run(), name=f"pqrun {self.duty}")

    def wake(self) -> None:
        """Make the next tick come at once."""
        self._wake.set()

    @property
    def is_stopping(self) -> bool:
        """Whether ``stop`` was called: a long tick should come to its end."""
        return self._is_stopping

    def stop_soon(self) -> None:
        """Let the present tick be the last, without waiting for it."""
        self._is_stopping = True
        self._wake.set()

    async def stop(self, timeout: float) -> bool:
        """Stop after the present tick, or cut it off after ``timeout`` seconds; return whether it ended by itself."""
        self.stop_soon()
        if self._task is None:
            return True
        done, _ = await asyncio.wait({self._task}, timeout=max(timeout, 0.0))
        if done:
            return True
        self._task.cancel()
        await asyncio.wait({self._task}, timeout=1.0)
        return False

    async def _run(self) -> None:
        while not self._is_stopping:
            self._wake.clear()
            try:
                seconds = await self._tick()
                self._resumed()
            except Exception as error:  # noqa: BLE001  # the border of the loop: no error of a tick ends a duty
                seconds = self._failed(error)
                await self._sleep_unless_stopping(seconds)
                continue
            await self._pause(seconds)

    async def _pause(self, seconds: float) -> None:
        if seconds == AT_ONCE:
            return
        if seconds <= 0 or self._wake.is_set():
            await asyncio.sleep(0)
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), seconds)

    async def _sleep_unless_stopping(self, seconds: float) -> None:
        """After an error: a wake-up must not turn the back-off into a hot loop."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while not self._is_stopping and (left := until - loop.time()) > 0:
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), left)

    def _resumed(self) -> None:
        if (resumed := self._streak.ended()) is not None:
            self._events.emit(resumed)

    def _failed(self, error: Exception) -> float:
        failed = self._streak.met(error, jitter=random.random())  # noqa: S311  # jitter, not a secret
        self._events.emit(failed)
        return failed.sleep_seconds
