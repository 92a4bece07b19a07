"""What watches a worker from outside while ``pqrun worker`` runs it: health checks, metrics, systemd."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from pqrun.app import App
from pqrun.errors import MissingExtraError
from pqrun.health import HealthServer, SystemdNotifier
from pqrun.health.server import Metrics
from pqrun.worker import Worker

__all__ = ["Watching", "watched"]

_LOGGER = logging.getLogger("pqrun")


class Watching(NamedTuple):
    """The flags of the command."""

    port: int | None
    host: str
    blocked_after: float


@asynccontextmanager
async def watched(worker: Worker, app: App[Any], flags: Watching) -> AsyncIterator[None]:
    """Serve health checks and tell systemd, as far as that is asked for, until the block ends."""
    async with SystemdNotifier(worker):
        if flags.port is None:
            yield
            return
        metrics = _metrics(worker, app)
        async with HealthServer(
            worker, port=flags.port, host=flags.host, blocked_after=flags.blocked_after, metrics=metrics
        ) as health:
            host = f"[{flags.host}]" if ":" in flags.host else flags.host
            paths = "/livez, /readyz" + ("" if metrics is None else ", /metrics")
            _LOGGER.info("health checks are served on http://%s:%d: %s", host, health.port, paths)
            yield


def _metrics(worker: Worker, app: App[Any]) -> Metrics | None:
    try:
        from pqrun.contrib.prometheus import PrometheusMetrics, exposition  # an extra
    except MissingExtraError:
        _LOGGER.info("/metrics is not served; for that run: pip install 'pqrun[prometheus]'")
        return None
    PrometheusMetrics(worker)
    PrometheusMetrics(app)
    return exposition
