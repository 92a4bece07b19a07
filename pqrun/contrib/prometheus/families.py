"""The metrics themselves: one set per registry, shared by all workers and apps of the process that use it.

Labels are bounded: what is beyond PAIRS_MAX queues and tasks counts for OTHER, so that queues which are named after customers cannot fill
the memory of a Prometheus.
"""

from collections.abc import Iterator
from typing import Final
from weakref import WeakKeyDictionary

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from pqrun.contrib.prometheus.depths import OTHER, QueueGauges
from pqrun.worker import Worker

__all__ = ["OUTCOMES", "Families", "Pair", "families_of"]

PAIRS_MAX = 200
"""Queues and tasks that are told apart."""

NAMES_MAX = 500
"""The same for other labels."""

OUTCOMES: Final = ("done", "failed", "retrying", "snoozed", "cancelled", "released", "lost")

SECONDS_BUCKETS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0),
)
"""From a millisecond to an hour."""

LAG_BUCKETS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

_BY: Final = ("queue", "task")


class Pair:
    """The children of one queue and task, looked up once."""

    __slots__ = ("_families", "_labels", "_outcomes", "run", "starts", "wait")

    def __init__(self, families: "Families", queue: str, task: str) -> None:
        self._families = families
        self._labels = (queue, task)
        self.starts = families.starts.labels(queue, task)
        self.run = families.run.labels(queue, task)
        self.wait = families.wait.labels(queue, task)
        # All from the start: a counter that appears with its first failure has no increase that an alert could see.
        self._outcomes = {outcome: families.outcomes.labels(queue, task, outcome) for outcome in OUTCOMES}

    def ended(self, outcome: str, milliseconds: int | None = None) -> None:
        """Count an end, and the time that its handler ran."""
        self._outcomes[outcome].inc()
        if milliseconds is not None:
            self.run.observe(milliseconds / 1000)

    def claim_lost(self) -> None:
        """Count a claim that was no longer ours."""
        self._families.claims_lost.labels(*self._labels).inc()

    def stopped(self, reason: str) -> None:
        """Count a handler that was told to stop."""
        self._families.stops.labels(*self._labels, reason).inc()

    def deferred(self, *, is_new: bool) -> None:
        """Count a job that was written, or found by its dedupe key."""
        self._families.deferred.labels(*self._labels, "true" if is_new else "false").inc()


def _lag(registry: CollectorRegistry) -> Histogram:
    return Histogram(
        "pqrun_worker_loop_lag_seconds",
        "How late the event loop woke a timer, asked once a second",
        registry=registry,
        buckets=LAG_BUCKETS,
    )


def _measured_at(registry: CollectorRegistry) -> Gauge:
    return Gauge(
        "pqrun_queue_measured_timestamp_seconds",
        "When this process last measured the queues; 0 while that is another's turn",
        registry=registry,
    )


class Families:
    """See the module's docstring. Names: https://prometheus.io/docs/practices/naming/."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, words: str, labels: tuple[str, ...] = _BY) -> Counter:
            return Counter(name, words, labels, registry=registry)

        self.starts = counter("pqrun_job_starts_total", "Handlers started")
        self.outcomes = counter(
            "pqrun_job_outcomes_total", "Ends of starts that were written, by what became of the job", (*_BY, "outcome")
        )
        self.stops = counter("pqrun_job_stops_total", "Running handlers told to stop, by reason", (*_BY, "reason"))
        self.claims_lost = counter(
            "pqrun_job_claims_lost_total", "Claims that were found to be no longer this worker's"
        )
        self.deferred = counter("pqrun_jobs_deferred_total", "Jobs deferred in this process", (*_BY, "created"))
        self.run = Histogram(
            "pqrun_job_run_seconds", "How long handlers ran", _BY, registry=registry, buckets=SECONDS_BUCKETS
        )
        self.wait = Histogram(
            "pqrun_job_wait_seconds",
            "How long jobs had been due when they started",
            _BY,
            registry=registry,
            buckets=SECONDS_BUCKETS,
        )
        self.errors = counter("pqrun_worker_errors_total", "Errors that a duty of the worker met", ("duty",))
        self.firings = counter(
            "pqrun_schedule_firings_total", "What became of firings of schedules", ("schedule", "outcome")
        )
        self.blocked = counter(
            "pqrun_worker_loop_blocked_seconds_total", "Time the event loop stood still for 2 s or more", ()
        )
        self.measure_errors = counter(
            "pqrun_queue_measurement_errors_total", "Failed looks at the queues by this process", ()
        )
        self.lag, self.measured_at = _lag(registry), _measured_at(registry)
        self.queues = QueueGauges(registry)
        self.workers: set[Worker] = set()
        registry.register(_WorkerCollector(self))
        self._pairs: dict[tuple[str, str], Pair] = {}
        self._names: set[str] = set()

    def pair(self, queue: str, task: str) -> Pair:
        """Return the children of a queue and a task."""
        pair = self._pairs.get((queue, task))
        if pair is None:
            if len(self._pairs) >= PAIRS_MAX:
                queue = task = OTHER
            pair = self._pairs.setdefault((queue, task), Pair(self, queue, task))
        return pair

    def name(self, name: str) -> str:
        """Return the name of a schedule as a label."""
        if name not in self._names and len(self._names) >= NAMES_MAX:
            return OTHER
        self._names.add(name)
        return name


class _WorkerCollector(Collector):
    """What the workers of this process hold, read when it is asked for: no gauge that could drift."""

    def __init__(self, families: Families) -> None:
        self._families = families

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Read the numbers of the moment, of all workers together."""
        vitals = [worker.vitals for worker in tuple(self._families.workers)]
        working = [one for one in vitals if one.state in ("working", "stopping")]
        yield _gauge("pqrun_worker_up", "Workers of this process that are at work", len(working))
        yield _gauge("pqrun_worker_slots", "Handlers that may run at once", sum(one.slots for one in working))
        yield _gauge("pqrun_worker_running_jobs", "Handlers that run", sum(one.running for one in working))
        yield _gauge("pqrun_worker_held_jobs", "Claimed jobs that wait for a slot", sum(one.held for one in working))
        yield _gauge("pqrun_worker_unwritten_jobs", "Ended jobs not written yet", sum(one.unwritten for one in working))


def _gauge(name: str, words: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, words, value=value)


_FAMILIES: "WeakKeyDictionary[CollectorRegistry, Families]" = WeakKeyDictionary()


def families_of(registry: CollectorRegistry) -> Families:
    """Return the metrics of a registry, made when they are first asked for."""
    families = _FAMILIES.get(registry)
    if families is None:
        families = _FAMILIES[registry] = Families(registry)
    return families
