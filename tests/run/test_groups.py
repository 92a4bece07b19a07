"""Queues with slots of their own: a slow one holds up no other; changed while the worker runs. Real workers on a real database."""

import asyncio
import logging
from typing import Any

import asyncpg
import pytest

from pqrun.errors import OptionError
from pqrun.job.outcome import Released
from pqrun.job.policy import IdlePollPolicy
from pqrun.job.serving import Serving
from pqrun.job.state import Status
from pqrun.run import events
from pqrun.run.context import JobContext
from pqrun.run.prefetch import PROVEN_ENDS
from pqrun.store import PgJobStore, workers
from pqrun.store.claiming import Claimer
from pqrun.workers import Workers
from tests.run.making import Bench, claim_of, make_job
from tests.run.working import wait_finished, working
from tests.support import rows
from tests.support.waiting import wait_until

Context = JobContext[Any]

SLEEPY = IdlePollPolicy(3_600.0, 3_600.0)
"""Nothing but a hint or a beat wakes the worker."""

MAIL_AND_DEFAULT = Serving(("default", "mail"), 5, {"default": 3, "mail": 2})


class Gate:
    """A handler that notes its starts and waits to be let go."""

    def __init__(self) -> None:
        self.started: list[int] = []
        self.go = asyncio.Event()

    async def __call__(self, ctx: Context) -> None:
        self.started.append(ctx.job.id)
        await self.go.wait()


async def quick(ctx: Context) -> None:
    return None


# The executor.


async def test_each_queue_has_its_own_slots_and_its_own_claims_that_wait() -> None:
    gate = Gate()
    bench = Bench(t=gate, serving=MAIL_AND_DEFAULT)
    assert set(bench.executor.groups) == {"default", "mail"}
    bench.executor.take([make_job(number, queue="mail") for number in range(5)])
    assert (bench.executor.capacity("mail"), bench.executor.capacity("default")) == ((0, 0), (3, 0))
    bench.executor.take([make_job(number) for number in range(10, 12)])
    await wait_until(lambda: gate.started == [0, 1, 10, 11])
    assert bench.executor.capacity("default") == (1, 0)
    assert bench.executor.has_unstarted
    gate.go.set()
    await bench.outcomes(7)


async def test_a_slow_queue_does_not_fill_what_is_fetched_ahead_of_another() -> None:
    gate = Gate()
    bench = Bench(t=gate, quick=quick, serving=MAIL_AND_DEFAULT)
    bench.executor.take([make_job(number, queue="mail") for number in range(2)])
    for number in range(10, 10 + PROVEN_ENDS):
        bench.executor.take([make_job(number, job_type="quick")])
        await bench.outcomes(number - 9)
    assert bench.executor.capacity("mail") == (0, 0)
    free, room = bench.executor.capacity("default")
    assert free == 3
    assert room > 100
    gate.go.set()
    await bench.wait_idle()


async def test_other_numbers_let_what_runs_go_on_and_start_what_fits_now() -> None:
    gate = Gate()
    bench = Bench(t=gate, serving=MAIL_AND_DEFAULT)
    bench.executor.take([make_job(number, queue="mail") for number in range(4)])
    await wait_until(lambda: gate.started == [0, 1])
    bench.executor.serve(Serving(("default", "mail"), 6, {"default": 3, "mail": 3}))
    await wait_until(lambda: gate.started == [0, 1, 2])
    bench.executor.serve(Serving(("default", "mail"), 4, {"default": 3, "mail": 1}))
    assert bench.executor.capacity("mail") == (0, 0)
    assert bench.executor.running == 3
    gate.go.set()
    await bench.outcomes(4)
    assert gate.started == [0, 1, 2, 3]
    assert bench.executor.capacity("mail").free == 1


async def test_claims_of_a_queue_that_is_served_no_more_go_back() -> None:
    gate = Gate()
    bench = Bench(t=gate, serving=MAIL_AND_DEFAULT)
    jobs = [make_job(number, queue="mail") for number in range(3)]
    bench.executor.take(jobs)
    bench.executor.serve(Serving(("default",), 3, {"default": 3}))
    late = make_job(9, queue="mail")  # of a claim that was under way
    bench.executor.take([late])
    expected = [Released(claim_of(job), started=False, counted=False) for job in (jobs[2], late)]
    assert [outcome for _, outcome in bench.delivered] == expected
    assert bench.executor.running == 2
    gate.go.set()
    await bench.outcomes(4)


# Whole workers.


async def test_a_queue_that_hangs_holds_no_other_up(store: PgJobStore, connection: asyncpg.Connection) -> None:
    await connection.execute(
        "INSERT INTO pqrun.jobs (job_type, queue, priority) SELECT 'slow', 'mail', 9 FROM generate_series(1, 1000)"
    )
    gate = Gate()
    async with working(
        store, {"slow": gate, "t": quick}, queues={"default": 3, "mail": 2}, idle_policy=SLEEPY, shutdown_grace=0.1
    ) as crew:
        assert crew.worker.settings.concurrency == 5
        await wait_until(lambda: len(gate.started) == 2)
        ids = [await store.enqueue("t", {}) for _ in range(100)]
        for job_id in ids:
            assert (await wait_finished(store, job_id)).status is Status.DONE
        ids = [await store.enqueue("t", {}) for _ in range(100)]
        for job_id in ids:
            await wait_finished(store, job_id)
        assert len(gate.started) == 2
        running = await connection.fetchval(
            "SELECT count(*) FROM pqrun.jobs WHERE status = 'RUNNING' AND queue = 'mail'"
        )
        assert running == 2  # nothing of it is held ahead


async def test_the_registry_and_queues_say_what_is_served(store: PgJobStore) -> None:
    async with working(store, {"t": quick}, queues={"default": 3, "mail": 2, "a": None}, concurrency=10) as crew:
        await crew.heard.wait_for(events.WorkerStarted)
        (worker,) = await Workers(store).list()
        assert (worker.queues, worker.concurrency) == (["a", "default", "mail"], 10)
        assert worker.slots == {"default": 3, "mail": 2}
        assert [(one.name, one.slots, one.workers) for one in await store.queues()] == [
            ("a", 5, 1),
            ("default", 3, 1),
            ("mail", 2, 1),
        ]


async def test_a_running_worker_takes_up_another_queue_and_leaves_one(store: PgJobStore) -> None:
    gate = Gate()
    async with working(store, {"t": gate}, queues=["default"], idle_policy=SLEEPY) as crew:
        await crew.heard.wait_for(events.WorkerStarted)
        mail = [await store.enqueue("t", {}, queue="mail") for _ in range(3)]
        await asyncio.to_thread(crew.worker.set_queues, {"mail": 2})  # from any thread
        await wait_until(lambda: gate.started == mail[:2])
        gate.go.set()
        await wait_finished(store, mail[2])
        default = await store.enqueue("t", {})

        async def is_told() -> bool:
            (worker,) = await Workers(store).list()
            return (worker.queues, worker.concurrency, worker.slots) == (["mail"], 2, {"mail": 2})

        await wait_until(is_told)
        assert default not in gate.started
        crew.worker.set_queues(None)
        await wait_finished(store, default)


async def test_a_running_worker_runs_more_at_once_and_fewer(store: PgJobStore) -> None:
    gate = Gate()
    async with working(store, {"t": gate}, idle_policy=SLEEPY) as crew:
        ids = [await store.enqueue("t", {}) for _ in range(5)]
        await wait_until(lambda: len(gate.started) == 1)
        crew.worker.set_concurrency(4)
        await wait_until(lambda: len(gate.started) == 4)
        crew.worker.set_concurrency(1)
        assert crew.worker.settings.concurrency == 1
        gate.go.set()
        for job_id in ids:
            await wait_finished(store, job_id)


async def test_impossible_numbers_are_refused_and_change_nothing(store: PgJobStore) -> None:
    async with working(store, {"t": quick}, queues={"default": 3}, concurrency=1) as crew:
        with pytest.raises(OptionError, match="concurrency"):
            crew.worker.set_concurrency(0)
        with pytest.raises(OptionError, match="queues must be"):
            crew.worker.set_queues([])
        with pytest.raises(OptionError, match="cannot be shared out"):
            crew.worker.set_queues({"a": 1, "b": 1})
        await wait_finished(store, await store.enqueue("t", {}))


async def test_an_operator_changes_a_worker_from_outside(store: PgJobStore, caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    with caplog.at_level(logging.INFO, "pqrun"):
        async with working(store, {"t": gate}, queues=["default"], worker_id="web-1", idle_policy=SLEEPY) as crew:
            await crew.heard.wait_for(events.WorkerStarted)
            mail = [await store.enqueue("t", {}, queue="mail") for _ in range(3)]
            outside = Workers(store)
            (worker,) = await outside.list()
            assert await outside.set("nobody", concurrency=2) == ()
            assert await outside.set("web-1", queues={"mail": 2}) == (worker.id,)
            await wait_until(lambda: gate.started == mail[:2])
            await outside.set(worker.id, concurrency=None, queues={"mail": 3})
            await wait_until(lambda: gate.started == mail)
            assert (await outside.list())[0].wanted == {"concurrency": None, "queues": {"mail": 3}}
            await workers.want(store, [worker.id], '{"concurrency": -1}')  # written by hand
            await wait_until(lambda: "stays as it is: concurrency" in caplog.text)
            gate.go.set()
    assert "worker web-1 now serves mail, 2 jobs at once" in caplog.text


async def test_a_suspect_waits_for_a_slot_of_its_own_queue_and_holds_no_other_up(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    gate = Gate()
    async with working(store, {"slow": gate, "t": quick}, queues={"default": 2, "mail": 1}, idle_policy=SLEEPY) as crew:
        blocking = await store.enqueue("slow", {}, queue="mail")
        await wait_until(lambda: gate.started == [blocking])
        suspect = await rows.make_job(connection, job_type="slow", queue="mail", lost=1, attempts=1)
        crew.worker._crew._fetcher.on_suspect()  # type: ignore[union-attr]  # it runs
        for _ in range(5):
            await wait_finished(store, await store.enqueue("t", {}))
        assert gate.started == [blocking]
        gate.go.set()
        assert (await wait_finished(store, suspect)).attempts == 2


async def test_what_lies_below_the_cursor_of_a_full_queue_is_found_when_it_has_room(
    store: PgJobStore, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scan from the start that comes while a queue has no slot free is made up for by that queue's next claim."""
    monkeypatch.setattr("pqrun.run.cursor.SCAN_LEAST_SECONDS", 0.1)
    gate = Gate()
    async with working(store, {"slow": gate, "t": quick}, queues={"default": 2, "mail": 1}) as crew:
        await wait_finished(store, await store.enqueue("t", {}, queue="mail"))
        blocking = await store.enqueue("slow", {}, queue="mail")
        await wait_until(lambda: gate.started == [blocking])
        late = await rows.make_job(connection, queue="mail", place=1)
        fetcher = crew.worker._crew._fetcher  # type: ignore[union-attr]  # it runs
        fetcher._unscanned.clear()
        fetcher.on_reconnect()
        await wait_finished(store, await store.enqueue("t", {}))
        await wait_until(lambda: fetcher._unscanned == {"mail"})
        monkeypatch.setattr("pqrun.run.cursor.SCAN_LEAST_SECONDS", 3_600.0)
        gate.go.set()
        await wait_finished(store, late)


async def test_a_suspect_of_a_queue_that_is_not_served_any_more_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pqrun.run.execute.ALONE_SECONDS", 0.05)
    gate = Gate()
    bench = Bench(t=gate, serving=Serving(("default", "mail"), 2, shared=2))
    bench.executor.take([make_job(1)])
    suspect = make_job(9, queue="mail", lost=2)
    alone = asyncio.create_task(bench.executor.take_alone(suspect))  # it waits for the other one
    await wait_until(lambda: gate.started)
    bench.executor.serve(Serving(("default",), 2, shared=2))
    gate.go.set()
    await asyncio.wait_for(alone, 30)
    assert (suspect, Released(claim_of(suspect), started=False, counted=False)) in bench.delivered
    assert gate.started == [1]


async def test_vitals_tell_the_slots_that_there_are_now(store: PgJobStore) -> None:
    async with working(store, {"t": quick}, concurrency=2) as crew:
        await crew.heard.wait_for(events.WorkerStarted)
        assert crew.worker.vitals.slots == 2
        crew.worker.set_concurrency(5)
        await wait_until(lambda: crew.worker.vitals.slots == 5, seconds=5)


async def test_a_suspect_of_a_queue_without_a_free_slot_is_looked_for_when_one_is_free_there(
    store: PgJobStore, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[object] = []
    real = Claimer.claim_suspect

    async def claim_suspect(self: Claimer, queues: Any, *arguments: Any) -> Any:
        looks.append(queues)
        return await real(self, queues, *arguments)

    monkeypatch.setattr(Claimer, "claim_suspect", claim_suspect)
    gate = Gate()
    async with working(store, {"t": gate, "q": quick}, queues={"default": 1, "mail": 1}, idle_policy=SLEEPY) as crew:
        first = await store.enqueue("t", {}, queue="mail")
        await wait_until(lambda: gate.started == [first])
        suspect = await rows.make_job(connection, queue="mail", lost=1, attempts=1)
        fetcher = crew.worker._crew._fetcher  # type: ignore[union-attr]  # it runs
        fetcher.on_suspect()
        await wait_until(lambda: ("default",) in looks)
        before = len(looks)
        for _ in range(50):
            await wait_finished(store, await store.enqueue("q", {}))
        assert len(looks) - before < 10  # a scan looks for suspects too; not each end of a job elsewhere
        gate.go.set()
        await wait_finished(store, suspect)
