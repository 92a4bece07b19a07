"""The gauges of the queues: what was measured last, exported for as long as this process has the turn to measure."""

import time
from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from pqrun.store.measuring import COUNT_MAX, QueueDepth

__all__ = ["OTHER", "QueueGauges"]

OTHER: Final = "(other)"

QUEUES_MAX = 200
"""Queues that are told apart; the rest are added up as OTHER."""


class QueueGauges(Collector):
    """What was measured last, exported while it is this process's turn."""

    def __init__(self, registry: CollectorRegistry) -> None:
        # Written on the worker's loop, read by whoever scrapes: one attribute, replaced as a whole.
        self._shown: tuple[float, dict[str, QueueDepth]] | None = None
        registry.register(self)

    def show(self, depths: list[QueueDepth], until: float) -> None:
        """Export these until then, in monotonic time; a queue that was there before and is empty now is 0."""
        before = self._shown[1] if self._shown is not None else {}
        shown: dict[str, QueueDepth] = {}
        for depth in [*depths, *(QueueDepth(queue, 0, 0, 0, None) for queue in before)]:
            if depth.queue in shown and depth.queue != OTHER:
                continue
            name = depth.queue if depth.queue in shown or len(shown) < QUEUES_MAX else OTHER
            shown[name] = _added(shown[name], depth) if name in shown else depth._replace(queue=name)
        self._shown = until, shown

    def hide(self) -> None:
        """Export nothing: the turn is another's."""
        self._shown = None

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Return the gauges."""
        jobs = GaugeMetricFamily(
            "pqrun_queue_jobs",
            f"Jobs in a queue that have not ended, by state; from {COUNT_MAX} on no more are counted",
            labels=("queue", "state"),
        )
        oldest = GaugeMetricFamily(
            "pqrun_queue_oldest_ready_age_seconds",
            "How long the first READY job has been due; 0 without one",
            labels=("queue",),
        )
        shown = self._shown
        if shown is not None and time.monotonic() < shown[0]:
            for queue, depth in shown[1].items():
                for state in ("ready", "scheduled", "running"):
                    jobs.add_metric((queue, state), getattr(depth, state))
                oldest.add_metric((queue,), depth.oldest_ready_seconds or 0.0)
        yield jobs
        yield oldest


def _added(one: QueueDepth, other: QueueDepth) -> QueueDepth:
    oldest = max(
        (age for age in (one.oldest_ready_seconds, other.oldest_ready_seconds) if age is not None), default=None
    )
    ready, scheduled, running = one.ready + other.ready, one.scheduled + other.scheduled, one.running + other.running
    return QueueDepth(one.queue, ready, scheduled, running, oldest)
