"""Health of a worker: probes over HTTP for Kubernetes and load balancers, and notifications for systemd.

::

    from pqrun.health import HealthServer

    worker = jobs.worker()
    async with HealthServer(worker, port=8081), worker.lifespan():
        ...

``pqrun worker --health-port 8081`` does the same, and notifies systemd where NOTIFY_SOCKET is set.
"""

from pqrun.health.server import HealthServer
from pqrun.health.systemd import SystemdNotifier

__all__ = ["HealthServer", "SystemdNotifier"]
