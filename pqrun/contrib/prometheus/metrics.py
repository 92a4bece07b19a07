"""PrometheusMetrics: subscribes to a worker, or hooks into an app, and counts."""

import asyncio
import time
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry

from pqrun.app import App
from pqrun.contrib.prometheus.families import Families, families_of
from pqrun.contrib.prometheus.queues import QueueMeasurer
from pqrun.deferral import Deferral
from pqrun.errors import OptionError
from pqrun.handle import JobHandle
from pqrun.job.state import Status
from pqrun.run import events
from pqrun.worker import Worker

__all__ = ["PrometheusMetrics"]

LAG_SECONDS = 1.0
"""How often the loop is asked how late it is."""

_OUTCOME_OF = {Status.SCHEDULED: "retrying", Status.FAILED: "failed", Status.CANCELLED: "cancelled"}


class PrometheusMetrics:
    """Metrics of a worker, or of what an app defers, in a registry of prometheus-client.

    ``source``: a Worker, from then on, through all its runs; or an App, whose ``defer`` in this process is counted. ``registry``: by
    default the one that prometheus-client serves. ``measure_every``: seconds between two looks at the queues, by one worker of all that
    have the same schema (15); None: this worker never looks. One registry may have any number of both: their numbers are added. Raises
    OptionError.
    """

    def __init__(
        self, source: Worker | App[Any], *, registry: CollectorRegistry = REGISTRY, measure_every: float | None = 15.0
    ) -> None:
        if measure_every is not None and not 1.0 <= measure_every <= 3600.0:  # false for NaN too
            raise OptionError(f"measure_every: expected seconds from 1 to 3600, or None; got {measure_every!r:.80}")
        self._families: Families = families_of(registry)
        self._tasks: list[asyncio.Task[None]] = []
        self._measurer: QueueMeasurer | None = None
        match source:
            case Worker():
                if measure_every is not None:
                    self._measurer = QueueMeasurer(lambda: source.store, self._families, every_seconds=measure_every)
                self._families.workers.add(source)
                source.events.subscribe(self._hear)
            case App():
                source.after_defer(self._count_deferral)
            case _:
                raise OptionError(f"PrometheusMetrics takes a Worker or an App, got {type(source).__name__}")

    def _count_deferral(self, deferral: Deferral, handle: JobHandle[object]) -> None:
        self._families.pair(deferral.queue, deferral.job_type).deferred(is_new=handle.created)

    def _hear(self, event: events.Event) -> None:
        match event:
            case events.Picked(job=job):
                pair = self._families.pair(job.queue, job.job_type)
                pair.starts.inc()
                if event.waited_seconds is not None:
                    pair.wait.observe(event.waited_seconds)
            case events.Done(job=job):
                self._families.pair(job.queue, job.job_type).ended("done", event.duration_ms)
            case events.Retrying(job=job):
                self._families.pair(job.queue, job.job_type).ended("retrying", event.duration_ms)
            case events.Failed(job=job):
                self._families.pair(job.queue, job.job_type).ended("failed", event.duration_ms)
            case events.JobCancelled(job=job):
                self._families.pair(job.queue, job.job_type).ended("cancelled", event.duration_ms)
            case events.Snoozed(job=job):
                self._families.pair(job.queue, job.job_type).ended("snoozed")
            case events.Released(job=job) | events.PutAside(job=job):
                self._families.pair(job.queue, job.job_type).ended("released")
            case events.ClaimLost(job=job):
                self._families.pair(job.queue, job.job_type).claim_lost()
            case events.StopRequested(job=job):
                self._families.pair(job.queue, job.job_type).stopped(event.reason)
            case _:
                self._hear_worker(event)

    def _hear_worker(self, event: events.Event) -> None:
        families = self._families
        match event:
            case events.Recovered():
                self._count_recovery(event)
            case events.LoopFailed():
                families.errors.labels(event.duty).inc()
            case events.LoopBlocked():
                families.blocked.inc(event.seconds)
            case events.Fired():
                families.firings.labels(families.name(event.schedule), "fired").inc()
            case events.FiringSkipped():
                families.firings.labels(families.name(event.schedule), "skipped").inc()
            case events.FiringsMissed():
                families.firings.labels(families.name(event.schedule), "missed").inc()
            case events.ScheduleFailed():
                families.firings.labels(families.name(event.schedule), "failed").inc()
            case events.WorkerStarted():
                self._begin()
            case events.WorkerStopping(step="stop fetching") | events.WorkerStopped():
                self._end()
            case _:
                pass

    def _count_recovery(self, event: events.Recovered) -> None:
        pair = self._families.pair(event.queue, event.job_type)
        if event.is_lost:
            pair.ended("lost")
        outcome = _OUTCOME_OF.get(Status(event.status))
        if outcome is not None:
            pair.ended(outcome)

    def _begin(self) -> None:
        self._tasks.append(asyncio.create_task(self._watch_lag(), name="pqrun loop lag"))
        if self._measurer is not None:
            self._tasks.append(asyncio.create_task(self._measurer.run(), name="pqrun measure queues"))

    def _end(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()

    async def _watch_lag(self) -> None:
        while True:
            due = time.monotonic() + LAG_SECONDS
            await asyncio.sleep(LAG_SECONDS)
            self._families.lag.observe(max(time.monotonic() - due, 0.0))
