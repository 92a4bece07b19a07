"""One timer for all timeouts, at the first of them: a timer for each job would cost more than the rest of its start."""

import asyncio
import math
import time
from collections.abc import Callable, Mapping

from pqrun.job.record import Claim
from pqrun.run.attempt import Attempt

__all__ = ["Alarm"]

ALARM_MOST_SECONDS = 3_600.0
"""The event loop refuses timers of years; ringing early costs a look."""


class Alarm:
    """Calls ``stop`` with each of the attempts whose deadline has come, once."""

    def __init__(self, attempts: Mapping[Claim, Attempt], stop: Callable[[Attempt], None]) -> None:
        self._attempts = attempts
        self._stop = stop
        self._timer: asyncio.TimerHandle | None = None
        self._at = math.inf  # monotonic

    def note(self, deadline: float) -> None:
        """Ring at this time, too."""
        if deadline < self._at:
            self._set(deadline)

    def _set(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._at = deadline
        if deadline < math.inf:
            seconds = min(max(deadline - time.monotonic(), 0.0), ALARM_MOST_SECONDS)
            self._timer = asyncio.get_running_loop().call_later(seconds, self._ring)

    def _ring(self) -> None:
        now = time.monotonic()
        for attempt in list(self._attempts.values()):
            if attempt.deadline <= now:
                attempt.deadline = math.inf
                self._stop(attempt)
        self._set(min((attempt.deadline for attempt in self._attempts.values()), default=math.inf))
