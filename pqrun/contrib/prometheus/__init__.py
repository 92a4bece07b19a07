"""Metrics for Prometheus: ``pip install 'pqrun[prometheus]'``.

::

    from pqrun.contrib.prometheus import PrometheusMetrics

    worker = jobs.worker()
    PrometheusMetrics(worker)  # what happens in this worker, and the queues, which one worker of all measures
    PrometheusMetrics(jobs)  # what this process defers

``pqrun worker --health-port 8081`` does both and serves ``/metrics``. docs/metrics.md lists all metrics.
"""

from pqrun.errors import MissingExtraError

try:
    import prometheus_client  # noqa: F401  # an extra: said here, with the line that installs it, not where it is first used
except ImportError:
    raise MissingExtraError("pqrun.contrib.prometheus", "prometheus") from None

from pqrun.contrib.prometheus.exposing import exposition
from pqrun.contrib.prometheus.metrics import PrometheusMetrics

__all__ = ["PrometheusMetrics", "exposition"]
