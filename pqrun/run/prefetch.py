"""How many jobs to hold beyond the free slots: as many as start within PREFETCH_SECONDS by what was seen, and none while nothing ends.

Holding claims that have not started makes a worker fast and costs others: a crash counts an attempt for each. So a task is only fetched
ahead after it has ended a few times in this very worker.
"""

from typing import NamedTuple

__all__ = ["Capacity", "Prefetch"]

PREFETCH_SECONDS = 0.2
"""What is held should start within this time."""

PREFETCH_MAX = 2_000
"""Claims held at most beyond the slots."""

STALLED_SECONDS = 0.25
"""When no handler has ended for so long, what is held waits already: hold no more."""

PROVEN_ENDS = 3
"""A task that ended so often in this worker did not kill it."""

_WEIGHT = 0.05
"""How much the latest run time counts in the moving average."""


class Capacity(NamedTuple):
    """What fits: idle slots, and claims beyond them that would start soon."""

    free: int
    room: int


class Prefetch:
    """Moving average of run times, and the tasks that have ended here. Times are monotonic seconds, handed in."""

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._mean: float | None = None
        self._ended_at = 0.0
        self._ends: dict[str, int] = {}
        self.proven: list[str] = []

    def ended(self, job_type: str, seconds: float, now: float) -> None:
        """Note the end of a handler that was not interrupted."""
        self._ended_at = now
        self._mean = seconds if self._mean is None else self._mean + (seconds - self._mean) * _WEIGHT
        ends = self._ends.get(job_type, 0)
        if ends < PROVEN_ENDS:
            self._ends[job_type] = ends + 1
            if ends + 1 == PROVEN_ENDS:
                self.proven.append(job_type)

    def target(self, now: float) -> int:
        """Return how many claims to hold beyond the slots."""
        if self._mean is None or not self.proven or now - self._ended_at > STALLED_SECONDS:
            return 0
        return min(PREFETCH_MAX, int(self._concurrency * PREFETCH_SECONDS / max(self._mean, 1e-6)))
