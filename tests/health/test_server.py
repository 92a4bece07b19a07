"""Probes about a real worker: while it starts and stops, while its database is away, while its loop is blocked."""

import asyncio
import http.client
import json
import threading
import time
from typing import Any, NamedTuple

import pytest

from pqrun import App, JobContext, OptionError, PgJobStore
from pqrun.health import HealthServer
from pqrun.run import events
from pqrun.worker import Worker
from tests.support.proxy import proxied
from tests.support.waiting import Recorder, wait_until


class Answer(NamedTuple):
    status: int
    body: dict[str, Any]


def get(port: int, path: str) -> Answer:
    """Ask as a kubelet does; blocking, for any thread."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return Answer(answer.status, json.loads(text) if answer.getheader("Content-Type") == "application/json" else {})


async def probe(health: HealthServer, path: str) -> Answer:
    return await asyncio.to_thread(get, health.port, path)


async def quick(ctx: JobContext) -> None:
    return None


def made(store: PgJobStore, **options: Any) -> Worker:
    return Worker(store=store, handlers={"quick": quick}, environ={}, worker_id="till", **options)


async def test_a_worker_is_live_all_the_time_and_ready_while_it_works(store: PgJobStore) -> None:
    worker = made(store, concurrency=3)
    async with HealthServer(worker, port=0) as health:
        before = await probe(health, "/readyz")
        assert (before.status, before.body["reasons"]) == (503, ["the worker does not run"])
        async with worker.lifespan():
            assert (await probe(health, "/livez")).status == 200
            ready = await probe(health, "/readyz")
            assert (ready.status, ready.body["status"], ready.body["reasons"]) == (200, "ready", [])
            assert ready.body["worker_id"] == "till"
            assert ready.body["worker"] == {"state": "working", "slots": 3, "running": 0, "held": 0, "unwritten": 0}
        assert (await probe(health, "/readyz")).status == 503
        assert (await probe(health, "/livez")).status == 200
        assert (await probe(health, "/metrics")).status == 404


async def test_a_worker_that_stops_is_not_ready_while_its_jobs_end(store: PgJobStore) -> None:
    gate = asyncio.Event()

    async def gated(ctx: JobContext) -> None:
        await gate.wait()

    worker = Worker(store=store, handlers={"gated": gated}, environ={})
    heard = Recorder(worker.events)
    async with HealthServer(worker, port=0) as health, worker.lifespan():
        await store.enqueue("gated", {})
        await heard.wait_for(events.Picked)
        worker.stop()
        await wait_until(lambda: worker.vitals.state == "stopping")
        assert (await probe(health, "/readyz")).body["reasons"] == ["the worker stops"]
        assert (await probe(health, "/livez")).status == 200
        gate.set()


async def test_a_database_that_is_away_fails_readiness_and_never_liveness(dsn: str) -> None:
    async with proxied(dsn) as proxy, PgJobStore(proxy.dsn) as store:
        worker = made(store)
        async with HealthServer(worker, port=0, blocked_after=2.0) as health, worker.lifespan():
            assert (await probe(health, "/readyz")).status == 200
            proxy.is_unreachable = True
            proxy.each(lambda one: one.reset())

            async def is_unready() -> bool:
                answer = await probe(health, "/readyz")
                return answer.status == 503 and any("sign of life fails" in why for why in answer.body["reasons"])

            await wait_until(is_unready)
            assert (await probe(health, "/livez")).status == 200
            assert "@" not in json.dumps((await probe(health, "/readyz")).body)  # no DSN
            proxy.is_unreachable = False

            async def is_ready() -> bool:
                return (await probe(health, "/readyz")).status == 200

            await wait_until(is_ready)


async def test_a_database_that_says_nothing_fails_readiness_too(dsn: str) -> None:
    async with proxied(dsn) as proxy, PgJobStore(proxy.dsn) as store:
        worker = made(store, shutdown_timeout=2.0)
        async with HealthServer(worker, port=0) as health, worker.lifespan():
            proxy.is_deaf = True
            proxy.each(lambda one: one.stall())

            async def is_unready() -> bool:
                return (await probe(health, "/readyz")).status == 503

            await wait_until(is_unready)
            proxy.is_deaf = False
            proxy.each(lambda one: one.reset())


async def test_a_blocked_loop_fails_liveness_after_the_time_that_was_said_and_recovers(store: PgJobStore) -> None:
    found: list[tuple[int, int]] = []
    over = threading.Event()

    async def blocking(ctx: JobContext) -> None:
        over.wait(30)  # not awaited: it holds the loop

    worker = Worker(store=store, handlers={"blocking": blocking}, environ={})
    async with HealthServer(worker, port=0, blocked_after=0.5) as health, worker.lifespan():
        port = health.port

        def ask() -> None:
            until = time.monotonic() + 30
            while time.monotonic() < until and not over.is_set():
                live, ready = get(port, "/livez"), get(port, "/readyz")
                found.append((live.status, ready.status))
                if live.status == 503:
                    over.set()

        thread = threading.Thread(target=ask)
        thread.start()
        job_id = await store.enqueue("blocking", {})
        await store.wait_end(job_id, 60)
        thread.join()
        assert (await probe(health, "/livez")).status == 200
    assert found[0] == (200, 200)
    assert found[-1] == (503, 503)


async def test_an_error_of_a_duty_is_forgotten_when_nothing_repeats_it(
    store: PgJobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = made(store)
    async with HealthServer(worker, port=0) as health, worker.lifespan():
        worker.events.emit(events.LoopFailed("prune", "no rights", 1, 0.0))
        assert (await probe(health, "/readyz")).status == 200  # nothing that it needs to run jobs
        worker.events.emit(events.LoopFailed("settle", "no outcome of job 7 can be stored", 1, 0.0))
        assert (await probe(health, "/readyz")).body["reasons"] == [
            "writing outcomes fails: no outcome of job 7 can be stored"
        ]
        monkeypatch.setattr("pqrun.health.pulse.FAILING_SECONDS", 0.0)
        assert (await probe(health, "/readyz")).status == 200


async def test_metrics_are_served_where_they_are_given(store: PgJobStore) -> None:
    worker = made(store)
    async with HealthServer(worker, port=0, metrics=lambda accept: ("text/plain", b"up 1\n")) as health:
        assert (await probe(health, "/metrics")).status == 200


@pytest.mark.parametrize(
    ("options", "named"), [({"port": 70_000}, "port"), ({"port": 1, "blocked_after": float("nan")}, "blocked_after")]
)
def test_impossible_options_are_refused(options: dict[str, Any], named: str) -> None:
    worker = App(dsn="postgresql://localhost/x").worker(environ={})
    with pytest.raises(OptionError, match=f"^{named}: "):
        HealthServer(worker, **options)


async def test_it_may_be_entered_again_as_a_worker_may_run_again(store: PgJobStore) -> None:
    health = HealthServer(made(store), port=0)
    for _ in range(10):
        async with health:
            assert (await probe(health, "/livez")).status == 200
