"""What is seen of workers when one of them is killed: its job is counted as lost, and its turn to measure goes to another."""

import signal
import sys
from datetime import UTC, datetime, timedelta

from prometheus_client import CollectorRegistry

from pqrun import JobContext, PgJobStore
from pqrun.contrib.prometheus import PrometheusMetrics
from pqrun.run import events
from pqrun.worker import Worker
from tests.cli.running import environment, running
from tests.contrib.scraping import Scrape
from tests.support.scripts import ROOT
from tests.support.waiting import Recorder, wait_until

VICTIM = """
import asyncio, os
from prometheus_client import REGISTRY
from pqrun import PgJobStore, Worker
from pqrun.contrib.prometheus import PrometheusMetrics

async def long(ctx):
    print("begun", flush=True)
    await asyncio.sleep(3600)

async def main():
    worker = Worker(store=PgJobStore(os.environ["PQRUN_DSN"]), handlers={"long": long}, environ={})
    PrometheusMetrics(worker, measure_every=1.0)
    async with worker.lifespan():
        while REGISTRY.get_sample_value("pqrun_queue_measured_timestamp_seconds") in (None, 0.0):
            await asyncio.sleep(0.05)
        print("measures", flush=True)
        await asyncio.sleep(3600)

asyncio.run(main())
"""


async def test_a_killed_worker_leaves_its_turn_and_its_job_is_counted_as_lost(dsn: str, store: PgJobStore) -> None:
    async def long(ctx: JobContext) -> None:
        return None

    registry = CollectorRegistry()
    worker = Worker(store=store, handlers={"long": long}, environ={})
    PrometheusMetrics(worker, registry=registry, measure_every=1.0)
    heard = Recorder(worker.events)
    env = environment(PQRUN_DSN=dsn, PYTHONPATH=str(ROOT))
    async with running("-c", VICTIM, env=env, program=(sys.executable,)) as victim:
        await victim.wait_line("measures")
        job_id = await store.enqueue("long", {})
        await victim.wait_line("begun")
        async with worker.lifespan():
            assert not Scrape(registry).named("pqrun_queue_jobs")
            victim.send(signal.SIGKILL)
            await heard.wait_for(events.Recovered)
            await store.wait_end(job_id, 60)
            await wait_until(lambda: Scrape(registry).named("pqrun_queue_jobs"))
            lost = Scrape(registry).value("pqrun_job_outcomes_total", queue="default", task="long", outcome="lost")
            assert lost == 1
    now, hours = datetime.now(UTC), timedelta(hours=2)
    (row,) = await store.statistics(now - hours, now + hours, step=2 * hours, by="task")
    # What the killed one had counted is lost with it; the one that took its job back counts the loss, and the second start.
    assert (row.lost, row.started, row.done, row.wait.count) == (1, 1, 1, 0)
