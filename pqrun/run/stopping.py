"""The stopping of handlers: they are told, and whoever ignores it for ``grace_seconds`` is given up: it loses its slot.

The executor's; apart from it because nothing here is done when a job starts or ends by itself.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from pqrun.job.outcome import Outcome
from pqrun.job.record import Claim
from pqrun.run import events
from pqrun.run.attempt import Attempt, Completed
from pqrun.run.context import CancelReason
from pqrun.run.events import Events

__all__ = ["GIVE_UP_MOST_SECONDS", "Stops"]

GIVE_UP_MOST_SECONDS = 5.0
"""The longest wait for a handler that was told to stop by its timeout: well before a reaper elsewhere would step in."""


class Stops:
    """Tells attempts to stop, and keeps those that did not. On the executor's event loop."""

    def __init__(
        self,
        running: Mapping[Claim, Attempt],
        *,
        grace_seconds: float,
        events: Events,
        ended: Callable[[Attempt, Outcome | Completed | None], None],
    ) -> None:
        self._running = running  # the executor's: those that have a slot
        self._grace = min(grace_seconds, GIVE_UP_MOST_SECONDS)
        self._events = events
        self._ended = ended  # takes the slot of one that was given up, and hands its outcome on
        self._given_up: list[Attempt] = []  # no slot any more, but still alive

    @property
    def given_up(self) -> Sequence[Attempt]:
        """Attempts without a slot that were still alive at the last look."""
        return self._given_up

    @property
    def threads_alive(self) -> int:
        """How many of these still run in a thread."""
        return sum(attempt.is_thread_alive for attempt in self._given_up)

    def alive(self) -> Sequence[Attempt]:
        """Look which of these still run; the others are forgotten."""
        self._given_up = [attempt for attempt in self._given_up if attempt.is_alive]
        return self._given_up

    def stop(self, attempt: Attempt, reason: CancelReason) -> None:
        """Tell a handler to stop, once; after the grace it is given up."""
        if attempt.context.cancelled or attempt.is_over or attempt.claim not in self._running:
            return
        attempt.context._request_stop(reason)  # the context is the handler's face of this attempt
        self._events.emit(events.StopRequested(attempt.job, reason))
        # Middleware around a thread is cancelled before and after, not while it waits for it: nobody could tell the thread.
        if attempt.is_async and attempt.has_begun and attempt.task is not None and not attempt.is_thread_alive:
            attempt.task.cancel()
        attempt.giving_up = asyncio.get_running_loop().call_later(self._grace, self.give_up, attempt)

    def give_up(self, attempt: Attempt) -> None:
        """Decide without waiting any longer."""
        if attempt.is_over or attempt.claim not in self._running or attempt.task is None:
            return
        outcome = attempt.give_up()
        if attempt.giving_up is not None:
            attempt.giving_up.cancel()
        self._given_up.append(attempt)
        self._ended(attempt, outcome)

    def give_up_all(self) -> None:
        """Decide for all that still run; their tasks and threads are left to end by themselves, and nobody looks at them again."""
        for attempt in list(self._running.values()):
            if attempt.is_over and attempt.task is not None:
                attempt.task.cancel()  # its handler has ended, it only waits for the database
            self.give_up(attempt)
        for attempt in self._given_up:
            attempt.is_abandoned = True
            attempt.leave_behind()
