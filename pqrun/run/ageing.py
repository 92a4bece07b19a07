"""Ageing: what strict priority keeps waiting for too long gets a small part of the starts.

A lane is starved that claims have not reached for AGEING_SECONDS, because jobs of higher priorities filled them. While there is such a
lane, one in AGEING_SHARE starts goes to starved lanes, in turns, the one that has waited longest first; until an ordinary claim reaches
it, or nothing is found in it. It decides and counts; the claim is the fetcher's.
"""

from collections.abc import Iterable
from typing import NamedTuple

from pqrun.store.claiming import Lane

__all__ = ["AGEING_SECONDS", "AGEING_SHARE", "Ageing", "Starved"]

AGEING_SECONDS = 30.0
"""How long a lane waits before it is starved."""

AGEING_SHARE = 10
"""One in so many starts goes to starved lanes."""


class Starved(NamedTuple):
    """A starved lane; ``is_new``: it was not looked into since, so its next look begins at the beginning."""

    lane: Lane
    is_new: bool


class _Wait:
    """Of one lane that ordinary claims do not reach."""

    __slots__ = ("is_looked_into", "since", "turn")

    def __init__(self, now: float) -> None:
        self.since = now
        self.turn = now  # when it had its last turn, or began to wait
        self.is_looked_into = False


class Ageing:
    """The lanes of one group of queues that wait, and the starts that are due to them. Times are monotonic seconds, handed in."""

    def __init__(self) -> None:
        self._waits: dict[Lane, _Wait] = {}
        self._starts = 0  # ordinary ones since the last turn of a starved lane

    @property
    def is_idle(self) -> bool:
        """Whether no lane waits."""
        return not self._waits

    def passed_by(self, lanes: Iterable[Lane], starts: int, now: float) -> None:
        """Note an ordinary claim that was filled before it reached these lanes, and how many jobs it brought."""
        for lane in lanes:
            if lane not in self._waits:
                self._waits[lane] = _Wait(now)
        self._starts = self._starts + starts if self._is_any_starved(now) else 0

    def reached(self, lanes: Iterable[Lane]) -> None:
        """Note lanes that an ordinary claim reached, or in which nothing is: their wait is over."""
        if self._waits:
            for lane in lanes:
                self._waits.pop(lane, None)

    def due(self, now: float) -> tuple[list[Starved], int]:
        """Return the starved lanes whose turn it is, in order, and how many starts are theirs; none, 0 while it is no one's turn."""
        starts = self._starts // (AGEING_SHARE - 1)
        if not starts:
            return [], 0
        starved = [(lane, wait) for lane, wait in self._waits.items() if now - wait.since >= AGEING_SECONDS]
        starved.sort(key=lambda one: one[1].turn)
        return [Starved(lane, not wait.is_looked_into) for lane, wait in starved], starts

    def served(self, lanes: Iterable[Lane], now: float) -> None:
        """Note that starved lanes had their turn, whether or not a job of theirs could be claimed: others are first next time."""
        self._starts = 0
        for lane in lanes:
            if (wait := self._waits.get(lane)) is not None:
                wait.turn, wait.is_looked_into = now, True

    def _is_any_starved(self, now: float) -> bool:
        return any(now - wait.since >= AGEING_SECONDS for wait in self._waits.values())
