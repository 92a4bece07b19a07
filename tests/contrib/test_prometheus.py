"""Metrics of real workers, as Prometheus reads them."""

import asyncio
import subprocess
import sys
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from prometheus_client import CollectorRegistry

from pqrun import Abort, App, JobContext, OptionError, PgJobStore, Snooze
from pqrun.contrib.prometheus import PrometheusMetrics, depths, families, queues
from pqrun.contrib.prometheus.depths import QueueGauges
from pqrun.job.state import Status
from pqrun.run import events
from pqrun.store.link import Link
from pqrun.store.measuring import QueueDepth, leave_turn, measure_queues, take_turn
from pqrun.worker import Worker
from tests.contrib.scraping import Scrape
from tests.run.making import make_job
from tests.run.working import AtOnce, wait_finished
from tests.support.rows import make_job as insert_job
from tests.support.rows import make_worker
from tests.support.waiting import Recorder, wait_until


async def quick(ctx: JobContext) -> None:
    return None


def made(store: PgJobStore, registry: CollectorRegistry, **options: Any) -> Worker:
    worker = Worker(store=store, handlers={"quick": quick}, environ={})
    PrometheusMetrics(worker, registry=registry, **options)
    return worker


async def test_starts_ends_and_times_are_counted_by_queue_and_task(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    tries: list[int] = []

    async def flaky(ctx: JobContext) -> None:
        tries.append(ctx.job.id)
        if len(tries) == 1:
            raise ValueError
        if len(tries) == 2:
            raise Snooze(timedelta(0))
        raise Abort("no")

    async def endless(ctx: JobContext) -> None:
        await asyncio.sleep(3600)

    registry = CollectorRegistry()
    dead = await make_worker(connection, dead=True)
    lost = await insert_job(connection, status=Status.RUNNING, job_type="quick", worker=dead, queue="mail")
    handlers = {"quick": quick, "flaky": flaky, "endless": endless}
    worker = Worker(store=store, handlers=handlers, backoff=AtOnce(), concurrency=4, shutdown_grace=0, environ={})
    PrometheusMetrics(worker, registry=registry)
    heard = Recorder(worker.events)
    async with worker.lifespan():
        await wait_finished(store, await store.enqueue("quick", {}))
        await wait_finished(store, await store.enqueue("flaky", {}, queue="mail"))
        await wait_finished(store, lost)
        cancelled = await store.enqueue("endless", {})
        await heard.wait_for(events.Picked, count=6)
        at_work = Scrape(registry)
        await store.cancel(cancelled)
        await wait_finished(store, cancelled)
        await store.enqueue("endless", {})
        await heard.wait_for(events.Picked, count=7)
    scrape = Scrape(registry)

    def outcome(queue: str, task: str, outcome: str) -> float | None:
        return scrape.value("pqrun_job_outcomes_total", queue=queue, task=task, outcome=outcome)

    assert scrape.value("pqrun_job_starts_total", queue="default", task="quick") == 1
    assert [outcome("mail", "flaky", name) for name in ("retrying", "snoozed", "failed", "done")] == [1, 1, 1, 0]
    assert [outcome("mail", "quick", name) for name in ("lost", "done")] == [1, 1]
    assert [outcome("default", "endless", name) for name in ("cancelled", "released")] == [1, 1]
    assert scrape.value("pqrun_job_stops_total", queue="default", task="endless", reason="cancelled") == 1
    assert scrape.value("pqrun_job_run_seconds_count", queue="mail", task="flaky") == 2
    assert scrape.value("pqrun_job_wait_seconds_count", queue="default", task="quick") == 1
    assert scrape.value("pqrun_job_wait_seconds_count", queue="mail", task="quick") == 0  # its worker had it before
    assert [at_work.value(f"pqrun_worker_{name}") for name in ("up", "slots", "running_jobs")] == [1, 4, 1]
    assert [scrape.value(f"pqrun_worker_{name}") for name in ("up", "slots", "running_jobs")] == [0, 0, 0]


async def test_what_an_app_defers_is_counted_and_duplicates_apart(dsn: str) -> None:
    jobs = App(dsn=dsn)

    @jobs.task(queue="mail", dedupe_key="{n}")
    async def send(ctx: JobContext, n: int) -> None: ...

    registry = CollectorRegistry()
    PrometheusMetrics(jobs, registry=registry)
    async with jobs:
        await send.defer(n=1)
        await send.defer(n=1)
        await jobs.defer_many([send.call(n=n) for n in range(1, 4)])
    scrape = Scrape(registry)
    assert scrape.value("pqrun_jobs_deferred_total", queue="mail", task="send", created="true") == 3
    assert scrape.value("pqrun_jobs_deferred_total", queue="mail", task="send", created="false") == 2


async def depth_in(registry: CollectorRegistry, state: str, queue: str = "default") -> float | None:
    return Scrape(registry).value("pqrun_queue_jobs", queue=queue, state=state)


@pytest.fixture
async def filled(connection: asyncpg.Connection) -> asyncpg.Connection:
    """Two jobs that nobody serves, one for later, one that lost its worker."""
    for priority in (0, 0, 5):
        await insert_job(connection, job_type="other", priority=priority)
    await insert_job(connection, job_type="other", lost=1)
    await insert_job(connection, job_type="other", status=Status.SCHEDULED)
    return connection


async def test_one_worker_of_all_exports_the_queues_and_another_takes_over_when_it_stops(
    dsn: str, filled: asyncpg.Connection
) -> None:
    registries = [CollectorRegistry(), CollectorRegistry()]
    async with PgJobStore(dsn) as one, PgJobStore(dsn) as two:
        stores = [one, two]
        workers = [made(store, registry, measure_every=1.0) for store, registry in zip(stores, registries, strict=True)]

        async def exporting() -> list[int]:
            return [n for n, registry in enumerate(registries) if await depth_in(registry, "ready") is not None]

        async with workers[0].lifespan():
            await wait_until(exporting)
            async with workers[1].lifespan():
                assert await exporting() == [0]
                scrape = Scrape(registries[0])
                assert [await depth_in(registries[0], state) for state in ("ready", "scheduled", "running")] == [
                    4,
                    1,
                    0,
                ]
                age = scrape.value("pqrun_queue_oldest_ready_age_seconds", queue="default")
                assert age is not None
                assert age > 0
                workers[0].stop()
                await wait_until(lambda: workers[0].vitals.state == "off")

                async def is_second() -> bool:
                    return await exporting() == [1]

                await wait_until(is_second)
                assert await filled.fetchval("SELECT count(*) FROM pqrun.turns") == 1


async def test_two_workers_in_one_process_share_a_registry_and_export_the_queues_once(
    store: PgJobStore, filled: asyncpg.Connection
) -> None:
    registry = CollectorRegistry()
    first, second = made(store, registry, measure_every=1.0), made(store, registry, measure_every=1.0)
    async with first.lifespan(), second.lifespan():
        await wait_until(lambda: Scrape(registry).named("pqrun_queue_jobs"))
        assert Scrape(registry).value("pqrun_worker_up") == 2
        assert await depth_in(registry, "ready") == 4
        await wait_finished(store, await store.enqueue("quick", {}))
        total = Scrape(registry).value("pqrun_job_starts_total", queue="default", task="quick")
        assert total == 1


async def test_a_turn_is_had_by_one_until_it_ends_or_is_left(link: Link, connection: asyncpg.Connection) -> None:
    assert await take_turn(link, "d", 1, seconds=60)
    assert not await take_turn(link, "d", 2, seconds=60)
    assert await take_turn(link, "other", 2, seconds=60)
    assert await take_turn(link, "d", 1, seconds=60)
    await leave_turn(link, "d", 2)  # not theirs
    assert not await take_turn(link, "d", 2, seconds=60)
    await leave_turn(link, "d", 1)
    assert await take_turn(link, "d", 2, seconds=60)
    await connection.execute("UPDATE pqrun.turns SET until = clock_timestamp() - interval '1 s'")
    assert await take_turn(link, "d", 1, seconds=60)


async def test_of_many_who_find_a_turn_free_at_once_one_has_it(dsn: str) -> None:
    async with PgJobStore(dsn) as store:
        links = [store.open_link("measure", kept=False) for _ in range(5)]
        for _ in range(5):
            had = await asyncio.gather(*(take_turn(link, "d", n, seconds=60) for n, link in enumerate(links)))
            assert sum(had) == 1
            await leave_turn(links[0], "d", had.index(True))
        await asyncio.gather(*(link.close() for link in links))


async def test_queues_are_counted_up_to_a_bound(
    link: Link, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pqrun.store.measuring.COUNT_MAX", 10)
    await connection.execute("INSERT INTO pqrun.jobs (job_type, queue) SELECT 't', 'many' FROM generate_series(1, 50)")
    await insert_job(connection, status=Status.RUNNING, queue="few")
    found = {depth.queue: depth for depth in await measure_queues(link)}
    assert (found["many"].ready, found["few"].running) == (10, 1)
    assert found["few"].oldest_ready_seconds is None


def test_queues_beyond_the_bound_are_added_up_and_those_that_became_empty_are_0(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(depths, "QUEUES_MAX", 2)
    registry = CollectorRegistry()
    gauges = QueueGauges(registry)
    gauges.show([QueueDepth(f"q{n}", n, 0, 0, float(n)) for n in range(4)], 1e12)
    scrape = Scrape(registry)
    assert [scrape.value("pqrun_queue_jobs", queue=q, state="ready") for q in ("q0", "q1", "(other)")] == [0, 1, 5]
    assert scrape.value("pqrun_queue_oldest_ready_age_seconds", queue="(other)") == 3
    gauges.show([QueueDepth("q1", 7, 0, 0, 1.0)], 1e12)
    scrape = Scrape(registry)
    assert [scrape.value("pqrun_queue_jobs", queue=q, state="ready") for q in ("q0", "q1", "(other)")] == [0, 7, 0]
    gauges.show([], 0.0)  # a turn that has ended
    assert not Scrape(registry).named("pqrun_queue_jobs")


async def test_labels_are_bounded(store: PgJobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "PAIRS_MAX", 3)
    registry = CollectorRegistry()
    worker = made(store, registry)
    for n in range(10):
        worker.events.emit(events.Done(make_job(queue=f"customer-{n}"), 1))
    labels = Scrape(registry).named("pqrun_job_starts_total")
    assert sorted(found["queue"] for found in labels) == ["(other)", "customer-0", "customer-1", "customer-2"]
    assert Scrape(registry).value("pqrun_job_outcomes_total", queue="(other)", task="(other)", outcome="done") == 7


async def test_errors_of_duties_schedules_and_the_loop_are_counted(store: PgJobStore) -> None:
    registry = CollectorRegistry()
    worker = made(store, registry)
    from datetime import UTC, datetime

    now = datetime.now(UTC)
    for event in (
        events.LoopFailed("fetch", "away", 1, 0.0),
        events.LoopBlocked(2.5, "", None, ()),
        events.Fired("nightly", now, 1, 7),
        events.FiringSkipped("nightly", now, "overlap"),
        events.ClaimLost(make_job()),
        events.Recovered(7, "t", "w", "SCHEDULED", "too long", "default", False),
    ):
        worker.events.emit(event)
    scrape = Scrape(registry)
    assert scrape.value("pqrun_worker_errors_total", duty="fetch") == 1
    assert scrape.value("pqrun_worker_loop_blocked_seconds_total") == 2.5
    assert scrape.value("pqrun_schedule_firings_total", schedule="nightly", outcome="skipped") == 1
    assert scrape.value("pqrun_job_claims_lost_total", queue="default", task="t") == 1
    assert scrape.value("pqrun_job_outcomes_total", queue="default", task="t", outcome="retrying") == 1
    assert scrape.value("pqrun_job_outcomes_total", queue="default", task="t", outcome="lost") == 0


async def test_a_database_that_does_not_answer_is_counted_and_the_gauges_go(
    store: PgJobStore, connection: asyncpg.Connection, filled: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = CollectorRegistry()
    monkeypatch.setattr(queues, "TURN_PERIODS", 1.0)
    async with made(store, registry, measure_every=1.0).lifespan():
        await wait_until(lambda: Scrape(registry).named("pqrun_queue_jobs"))
        await connection.execute("ALTER TABLE pqrun.turns RENAME TO turns_away")
        await wait_until(lambda: Scrape(registry).value("pqrun_queue_measurement_errors_total"))
        await wait_until(lambda: not Scrape(registry).named("pqrun_queue_jobs"))
        await connection.execute("ALTER TABLE pqrun.turns_away RENAME TO turns")
        await wait_until(lambda: Scrape(registry).named("pqrun_queue_jobs"))


@pytest.mark.parametrize("every", [0.5, -1.0, float("nan"), 1e9])
def test_an_impossible_period_is_refused(every: float) -> None:
    worker = Worker(store=PgJobStore("postgresql://localhost/x"), handlers={"quick": quick}, environ={})
    with pytest.raises(OptionError, match="measure_every: expected seconds from 1 to 3600"):
        PrometheusMetrics(worker, registry=CollectorRegistry(), measure_every=every)


def test_without_the_extra_the_import_says_what_to_install() -> None:
    code = "import sys; sys.modules['prometheus_client'] = None\nimport pqrun.contrib.prometheus"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "MissingExtraError" in done.stderr
    assert "pip install 'pqrun[prometheus]'" in done.stderr
