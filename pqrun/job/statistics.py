"""What is counted of jobs in a minute, and how times become a small histogram: values only, no clock.

Times are counted in buckets that are the same for everybody and for ever: rows of many workers and minutes are added up bucket by bucket,
and percentiles are read from the sum. A percentile is exact to its bucket, within which times are taken to lie evenly.
"""

import operator
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

__all__ = ["BOUNDS_MS", "BUCKETS", "Histogram", "MinuteCounts", "StatisticsRow", "bucket_of"]

BOUNDS_MS: Final = (
    *(1, 2, 5, 10, 25, 50, 100, 250, 500),
    *(1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000, 1_800_000, 3_600_000),
)
"""The upper bounds of the buckets, in milliseconds, each included: from a millisecond to an hour. What is longer is in one more."""

BUCKETS: Final = len(BOUNDS_MS) + 1


def bucket_of(milliseconds: float) -> int:
    """Return the index of the bucket that a time belongs to."""
    return bisect_left(BOUNDS_MS, milliseconds)


class Histogram(msgspec.Struct, frozen=True):
    """How many times there were in each bucket, and their sum."""

    counts: tuple[int, ...] = (0,) * BUCKETS
    """One number per bucket: up to each of ``BOUNDS_MS`` milliseconds, and above them all."""
    total_seconds: float = 0.0

    def __add__(self, other: "Histogram") -> "Histogram":
        """Return both together: of several minutes, queues or tasks."""
        counts = tuple(map(operator.add, self.counts, other.counts))
        return Histogram(counts, self.total_seconds + other.total_seconds)

    @property
    def count(self) -> int:
        """How many there were."""
        return sum(self.counts)

    @property
    def mean_seconds(self) -> float | None:
        """Their mean; None where there was none."""
        return self.total_seconds / count if (count := self.count) else None

    def percentile(self, percent: float) -> float | None:
        """Return the time, in seconds, that so many percent (0 to 100) do not exceed; None where there was none.

        Of times above the last bound nothing more is known: for those it is that bound, an hour.
        """
        rank = self.count * min(max(percent, 0.0), 100.0) / 100
        below = 0
        lower = 0
        for bound, count in zip(BOUNDS_MS, self.counts, strict=False):
            if count and below + count >= rank:
                return (lower + (bound - lower) * (rank - below) / count) / 1000
            below += count
            lower = bound
        return BOUNDS_MS[-1] / 1000 if self.count else None


class StatisticsRow(msgspec.Struct, frozen=True, kw_only=True):
    """What all workers together counted in one step of time, of one queue, one task, or of all.

    A start, and an end, counts in the minute in which it was written. ``done``, ``failed``, ``retrying``, ``snoozed``, ``cancelled``,
    ``lost`` and ``released`` are the ends of starts; a job may have many.
    """

    at: datetime
    """When the step begins; aware, in UTC."""
    key: str
    """The queue or the job_type; empty where all were asked for together."""
    started: int
    arrived: int
    """The starts that were a job's first: jobs in, as workers see it. Jobs that nobody has started yet are in no row."""
    done: int
    failed: int
    """FAILED was written."""
    retrying: int
    """Failed attempts that are tried again."""
    snoozed: int
    cancelled: int
    """CANCELLED was written for a job that was claimed; a waiting one that is cancelled is in no row."""
    lost: int
    """Jobs taken back from workers that died; counted by who took them back."""
    released: int
    """Claims given back: at a shutdown, unstarted, or because they need newer code."""
    run: Histogram
    """How long handlers ran, those that failed too; whole milliseconds, as in ``duration_ms``."""
    wait: Histogram
    """How long jobs had been due when they started; not counted for those that a dead or stopping worker had before."""


class MinuteCounts:
    """The same for one queue and task while it is being counted, by one worker.

    What every job makes is only appended, to ``first_waits``, ``later_waits`` and ``done_times``; ``fold`` counts many of them in less time
    than it would take one by one.
    """

    __slots__ = (
        *("arrived", "cancelled", "done", "failed", "lost", "released", "retrying", "snoozed", "started"),
        *("done_times", "first_waits", "later_waits", "other_times"),
        *("run_counts", "run_ms", "wait_counts", "wait_seconds"),
    )

    def __init__(self) -> None:
        self.started = self.arrived = self.done = self.failed = self.retrying = 0
        self.snoozed = self.cancelled = self.lost = self.released = 0
        self.first_waits: list[float] = []
        """Seconds, of the first starts of their jobs."""
        self.later_waits: list[float] = []
        """Seconds, of other starts."""
        self.done_times: list[int] = []
        """Milliseconds, of jobs that are DONE."""
        self.other_times: list[int] = []
        """Milliseconds, of handlers that ended otherwise."""
        self.run_ms = 0
        self.wait_seconds = 0.0
        self.run_counts = [0] * BUCKETS
        self.wait_counts = [0] * BUCKETS

    def fold(self) -> None:
        """Count what has been appended."""
        if self.first_waits or self.later_waits:
            waits = self.first_waits + self.later_waits
            self.started += len(waits)
            self.arrived += len(self.first_waits)
            self.wait_seconds += sum(waits)
            _count(waits, _BOUNDS_SECONDS, self.wait_counts)
            self.first_waits.clear()
            self.later_waits.clear()
        if self.done_times or self.other_times:
            times = self.done_times + self.other_times
            self.done += len(self.done_times)
            self.run_ms += sum(times)
            _count(times, BOUNDS_MS, self.run_counts)
            self.done_times.clear()
            self.other_times.clear()

    @property
    def numbers(self) -> Sequence[int]:
        """All but the histograms, in the order in which the table's statement takes them; of what is folded."""
        return (
            *(self.started, self.arrived, self.done, self.failed, self.retrying, self.snoozed),
            *(self.cancelled, self.lost, self.released, self.run_ms, round(self.wait_seconds * 1000)),
        )


_BOUNDS_SECONDS: Final = tuple(bound / 1000 for bound in BOUNDS_MS)


def _count(times: list[int] | list[float], bounds: Sequence[float], counts: list[int]) -> None:
    """Sorted, all bounds are found in a handful of steps each."""
    times.sort()
    before = 0
    for index, bound in enumerate(bounds):
        if before == len(times):
            return
        upto = bisect_right(times, bound, before)
        counts[index] += upto - before
        before = upto
    counts[-1] += len(times) - before
