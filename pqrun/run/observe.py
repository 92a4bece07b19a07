"""Who is dead: judged by observation, not by age.

A worker is dead when its beat counter stood still during an unbroken run of this observer's own beats: for LOCKED_SECONDS if it takes
session locks and its lock is free by now, else for the slow limit. Any gap in the observer's own beats starts all observations anew, so a
database that restarts or pauses, or an observer that slept, condemns nobody. No clock but the observer's monotonic one is used.
"""

from collections.abc import Collection, Sequence

from pqrun.store.registry import Beat

__all__ = ["Observer", "slow_limit"]

LOCKED_SECONDS = 3.0
"""How long a counter must stand still where a free session lock confirms it."""

GAP_SECONDS = 2.0
"""A longer pause between two beats of the observer's own restarts every observation."""

SLOW_LEAST_SECONDS = 2.0
SLOW_MOST_SECONDS = 30.0


def slow_limit(default_stale_after_seconds: float) -> float:
    """Return how long a counter must stand still where no lock can confirm it."""
    return max(SLOW_LEAST_SECONDS, min(SLOW_MOST_SECONDS, default_stale_after_seconds))


class Observer:
    """The observations of one worker about all others. Times are monotonic seconds, handed in."""

    def __init__(self, slow_seconds: float) -> None:
        self._slow_seconds = slow_seconds
        self._seen: dict[int, tuple[int, float]] = {}  # worker → (beat, since when unchanged)
        self._last = float("-inf")

    def reset(self) -> None:
        """Start anew: an error, or a new connection."""
        self._seen.clear()

    def observe(self, others: Sequence[Beat], now: float) -> tuple[list[Beat], list[Beat]]:
        """Note what a beat of ours has read; return (those whose lock decides, those that are dead without asking)."""
        if now - self._last > GAP_SECONDS:
            self.reset()
        self._last = now
        before, self._seen = self._seen, {}
        to_probe: list[Beat] = []
        dead: list[Beat] = []
        for other in others:
            beat, since = before.get(other.worker, (None, now))
            if beat != other.beat:
                since = now
            self._seen[other.worker] = (other.beat, since)
            still = now - since
            if still >= self._slow_seconds:
                dead.append(other)
            elif other.has_lock and still >= LOCKED_SECONDS:
                to_probe.append(other)
        return to_probe, dead

    @staticmethod
    def confirmed(probed: Sequence[Beat], free: Collection[int]) -> list[Beat]:
        """Return those probed whose lock is free: their connection is gone, and nothing has beaten since."""
        return [beat for beat in probed if beat.worker in free]
