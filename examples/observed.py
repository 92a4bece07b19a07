"""What a worker does, seen from outside: probes, metrics for Prometheus, and statistics from the database.

python examples/observed.py
"""

import asyncio
import json
import urllib.request
from datetime import UTC, datetime, timedelta

from prometheus_client import CollectorRegistry

from pqrun import App, JobContext
from pqrun.contrib.prometheus import PrometheusMetrics, exposition
from pqrun.health import HealthServer

jobs = App()  # reads PQRUN_DSN, then DATABASE_URL


@jobs.task(queue="mail", max_attempts=1)
async def send(ctx: JobContext, to: str) -> None:
    if "@" not in to:
        raise ValueError("that is no address")


def get(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:  # our own server
        text: str = answer.read().decode()
    return text


async def main() -> None:
    registry = CollectorRegistry()
    worker = jobs.worker(concurrency=4)
    PrometheusMetrics(worker, registry=registry)
    health = HealthServer(worker, port=0, metrics=lambda accept: exposition(accept, registry))
    async with jobs, health:
        async with worker.lifespan():
            for to in ("ann@example.org", "bob@example.org", "nobody"):
                job = await send.defer(to=to)
                await jobs.store.wait_end(job.id, timeout=10)
            ready = json.loads(await asyncio.to_thread(get, health.port, "/readyz"))
            print(ready["status"], ready["worker"]["slots"])
            for line in (await asyncio.to_thread(get, health.port, "/metrics")).splitlines():
                if line.startswith("pqrun_job_outcomes_total") and not line.endswith(" 0.0"):
                    print(line)
        now = datetime.now(UTC)  # the worker has stopped, and added its last minute
        hour = timedelta(hours=1)
        for row in await jobs.store.statistics(now - hour, now + hour, step=2 * hour, by="task"):
            print(row.key, f"started={row.started} done={row.done} failed={row.failed}")


asyncio.run(main())
