"""Running workers steered through the registry: they claim nothing, go on, end, and say where their handlers are."""

import asyncio
import threading
import time
from collections.abc import Mapping
from typing import Any

import asyncpg
import pytest

from pqrun import App
from pqrun.errors import ArgumentsError, NotOpenError, OptionError
from pqrun.installed import installed_version
from pqrun.job.registered import RegisteredWorker
from pqrun.job.state import Status
from pqrun.run import events, stacks
from pqrun.run.context import JobContext
from pqrun.store import PgJobStore
from pqrun.workers import Workers
from tests.run.working import stored, wait_finished, working
from tests.support.waiting import wait_until

SECRET = "no-one-may-read-this"


class Gate:
    """Handlers that wait to be let go."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.open = asyncio.Event()
        self.thread_started = threading.Event()
        self.thread_open = threading.Event()

    async def hold(self, ctx: JobContext[Any]) -> None:
        secret_local = SECRET
        self.started.set()
        await self.deeper()
        assert secret_local

    async def deeper(self) -> None:
        await self.open.wait()

    def hold_thread(self, ctx: JobContext[Any]) -> None:
        self.thread_started.set()
        self.thread_open.wait(60)

    async def block(self, ctx: JobContext[Any]) -> None:
        self.thread_started.set()
        await self.block_deeper()

    async def block_deeper(self) -> None:
        self.thread_open.wait(60)

    async def quick(self, ctx: JobContext[Any]) -> None: ...

    @property
    def handlers(self) -> Mapping[str, Any]:
        return {"hold": self.hold, "thread": self.hold_thread, "block": self.block, "quick": self.quick}

    def let_go(self) -> None:
        self.open.set()
        self.thread_open.set()


async def the_worker(store: PgJobStore) -> RegisteredWorker:
    (one,) = await store.list_workers()
    return one


async def says_fetching(store: PgJobStore, fetching: bool) -> None:
    async def is_so() -> bool:
        return (await the_worker(store)).fetching is fetching

    await wait_until(is_so)


async def test_a_worker_says_its_version(store: PgJobStore) -> None:
    async with working(store, Gate().handlers):
        await wait_until(store.list_workers)
        one = await the_worker(store)
        assert (one.version, one.fetching, one.is_draining) == (installed_version(), True, False)


async def test_a_paused_worker_claims_nothing_until_it_is_resumed(
    store: PgJobStore, caplog: pytest.LogCaptureFixture
) -> None:
    """What runs goes on, what has not started goes back, and the registry, the queues and `why` tell of it."""
    caplog.set_level("INFO", "pqrun")
    gate, workers = Gate(), Workers(store)
    async with working(store, gate.handlers, worker_id="web-1", concurrency=1) as crew:
        running = await store.enqueue("hold", {})
        await gate.started.wait()
        waiting = await store.enqueue("quick", {})
        (number,) = await workers.set("web-1", fetching=False)
        await says_fetching(store, fetching=False)
        (queue,) = await store.queues()
        assert (queue.workers, queue.paused_workers, queue.slots) == (1, 1, 0)
        assert [reason.why for reason in (await store.explain(waiting)).reasons] == ["workers_paused"]
        gate.let_go()
        assert (await wait_finished(store, running)).status is Status.DONE
        await store.enqueue("quick", {})  # it is announced, and heard
        one = await the_worker(store)
        await beaten(store, one, 3)
        assert [(await stored(store, waiting)).status, (await the_worker(store)).running] == [Status.READY, 0]
        assert await workers.set(number, fetching=True) == (number,)
        assert (await wait_finished(store, waiting)).status is Status.DONE
        await says_fetching(store, fetching=True)
        assert crew.worker.vitals.state == "working"
    told = [record.message for record in caplog.records if "now claims" in record.message]
    assert told == ["worker web-1 now claims nothing, until resumed", "worker web-1 now claims jobs again"]


async def beaten(store: PgJobStore, before: RegisteredWorker, times: int) -> None:
    """Wait until the worker has given that many signs of life more: what it wanted to do, it has done."""
    seen = {before.beat_at}

    async def is_more() -> bool:
        seen.add((await the_worker(store)).beat_at)
        return len(seen) > times

    await wait_until(is_more)


async def test_claims_that_have_not_started_go_back_and_a_lost_job_too(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    gate = Gate()
    async with working(store, gate.handlers, concurrency=1) as crew:
        await store.enqueue("hold", {})
        await gate.started.wait()
        suspect = await store.enqueue("quick", {})
        await connection.execute("UPDATE pqrun.jobs_active SET lost = 1 WHERE id = $1", suspect)
        await Workers(store).set(crew.worker.worker_id, fetching=False)
        await says_fetching(store, fetching=False)
        gate.let_go()
        await beaten(store, await the_worker(store), 3)
        job = await stored(store, suspect)
        assert (job.status, job.attempts) == (Status.READY, 0)


async def test_a_pause_holds_when_the_worker_registers_anew_and_ends_with_its_run(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    """It was taken for dead, wrongly: the new row says what is so, and nothing is wanted of it yet."""
    gate = Gate()
    async with working(store, gate.handlers) as crew:
        await wait_until(store.list_workers)
        (number,) = await Workers(store).set(crew.worker.worker_id, fetching=False)
        await says_fetching(store, fetching=False)
        await connection.execute("DELETE FROM pqrun.workers")
        await wait_until(store.list_workers)
        one = await the_worker(store)
        assert (one.id > number, one.fetching, one.wanted) == (True, False, {})
        job = await store.enqueue("quick", {})
        await Workers(store).set(one.id, fetching=True)
        await wait_finished(store, job)
        await Workers(store).set(one.id, fetching=False)
        await says_fetching(store, fetching=False)
        await crew.stopped()
        crew.run = asyncio.create_task(crew.worker.run())
        await wait_finished(store, await store.enqueue("quick", {}))


async def test_what_is_wanted_of_the_dead_does_no_harm(store: PgJobStore, connection: asyncpg.Connection) -> None:
    async with working(store, Gate().handlers, worker_id="web-1"):
        await wait_until(store.list_workers)
        dead = await connection.fetchval(
            "INSERT INTO pqrun.workers (worker_id, dead_at, wanted)"
            " VALUES ('web-1', clock_timestamp(), '{\"drain\": true}') RETURNING id"
        )
        assert await Workers(store).drain(dead) == ()
        assert await Workers(store).stacks(dead) == []
        told = await Workers(store).set("web-1", fetching=True)
        assert dead not in told
        await wait_finished(store, await store.enqueue("quick", {}))


async def test_a_drained_worker_ends_as_by_sigterm(store: PgJobStore) -> None:
    """Told twice, and something else after that: the grace of its running job is not cut short, and it says that it claims nothing."""
    gate = Gate()
    async with working(store, gate.handlers) as crew:
        running = await store.enqueue("hold", {})
        await gate.started.wait()
        (number,) = await Workers(store).drain(crew.worker.worker_id)
        await says_fetching(store, fetching=False)
        assert (await the_worker(store)).is_draining
        left = await store.enqueue("quick", {})
        await Workers(store).drain([number])
        await Workers(store).set(number, concurrency=7, fetching=True)
        await beaten(store, await the_worker(store), 3)
        assert (await the_worker(store)).fetching is False
        assert (await stored(store, running)).status is Status.RUNNING
        gate.let_go()
        assert crew.run is not None
        await asyncio.wait_for(asyncio.shield(crew.run), 30)
        assert (await stored(store, running)).status is Status.DONE
        assert (await stored(store, left)).status is Status.READY
        assert [one.dead_at is None for one in await store.list_workers()] == [False]
        (stopped,) = crew.heard.of(events.WorkerStopped)
        assert stopped.clean


async def test_a_drained_worker_leaves_its_application_running(dsn: str) -> None:
    jobs = App(dsn=dsn)
    worker = jobs.worker(environ={})
    async with jobs, worker.lifespan():
        await jobs.workers.drain(worker.worker_id)
        await wait_until(lambda: worker.vitals.state == "off")
        assert not [one for one in await jobs.workers.list() if one.is_alive]
        async with worker.lifespan():  # and it can be started again
            assert worker.vitals.state == "working"


async def test_stacks_show_where_coroutines_and_threads_are_and_no_values(store: PgJobStore) -> None:
    gate, workers = Gate(), Workers(store)
    async with working(store, gate.handlers, worker_id="web-1", concurrency=5):
        jobs = [await store.enqueue(kind, {"token": SECRET}) for kind in ("hold", "thread")]
        await gate.started.wait()
        await wait_until(gate.thread_started.is_set)
        (one,) = await workers.stacks("web-1", timeout=30)
        gate.let_go()
    assert one.text is not None
    assert one.taken_at is not None
    first, coroutine, thread = one.text.split("\n\n")
    assert first == "2 running"
    assert coroutine.startswith(f"job {jobs[0]} hold, attempt 1, for ")
    assert ", coroutine\n" in coroutine
    assert coroutine.index(", in hold\n    await self.deeper()") < coroutine.index(", in deeper\n")
    assert f"job {jobs[1]} thread, attempt 1" in thread
    assert ", in hold_thread\n    self.thread_open.wait(60)" in thread
    assert SECRET not in one.text
    assert "attempt.py" not in one.text


async def test_stacks_are_told_while_the_event_loop_is_blocked(dsn: str) -> None:
    """The keeper's thread looks from outside; this test asks from a thread of its own, as its loop is the one that is blocked."""
    gate = Gate()
    found: list[str | None] = []

    def ask() -> None:
        async def act() -> None:
            assert gate.thread_started.wait(60)
            async with PgJobStore(dsn) as store:
                found.extend(one.text for one in await Workers(store).stacks("web-1", timeout=30))

        try:
            asyncio.run(act())
        finally:
            gate.thread_open.set()

    async with PgJobStore(dsn) as store, working(store, gate.handlers, worker_id="web-1"):
        asking = threading.Thread(target=ask)
        asking.start()
        await wait_finished(store, await store.enqueue("block", {}))
        await asyncio.to_thread(asking.join)
    (text,) = found
    assert text is not None
    assert text.startswith("1 running; the event loop is blocked\n")
    assert text.index(", in block\n    await self.block_deeper()") < text.index(", in block_deeper\n")


async def test_stacks_of_many_handlers_are_bounded(store: PgJobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "STACKS_BYTES", 300)
    gate = Gate()
    async with working(store, gate.handlers, concurrency=5) as crew:
        for _ in range(5):
            await store.enqueue("hold", {})
        await wait_until(lambda: crew.worker.vitals.running == 5)
        (one,) = await Workers(store).stacks(crew.worker.worker_id, timeout=30)
        gate.let_go()
    assert one.text is not None
    assert one.text.startswith("5 running\n")
    assert one.text.endswith("cut here: there is more than fits\n")
    assert len(one.text.encode()) <= 300


async def test_who_does_not_answer_in_time_is_told_without_text(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    old = await connection.fetchval(
        "INSERT INTO pqrun.workers (worker_id, stacks, stacks_at) VALUES ('old', 'x', now()) RETURNING id"
    )
    before = time.monotonic()
    (one,) = await Workers(store).stacks("old", timeout=0)
    assert (one.id, one.worker_id, one.taken_at, one.text) == (old, "old", None, None)
    assert time.monotonic() - before < 30


async def test_orders_that_make_no_sense_are_refused(store: PgJobStore) -> None:
    workers = Workers(store)
    with pytest.raises(ArgumentsError, match="give queues=, concurrency=, fetching= or several"):
        await workers.set("w")
    with pytest.raises(OptionError, match="fetching: expected True or False; got 'no'"):
        await workers.set("w", fetching="no")  # type: ignore[arg-type]  # refused by checkers too
    with pytest.raises(OptionError, match="timeout: expected seconds"):
        await workers.stacks("w", timeout=-1)
    with pytest.raises(NotOpenError, match="synchronous calls need an app"):
        workers.drain_sync("w")


async def test_synchronous_code_steers_too(dsn: str) -> None:
    gate = Gate()
    jobs = App(dsn=dsn)
    async with PgJobStore(dsn) as store, working(store, gate.handlers, worker_id="web-1") as crew:
        await wait_until(store.list_workers)

        def script() -> None:
            (one,) = jobs.workers.list_sync()
            assert jobs.workers.set_sync(one.id, fetching=False) == (one.id,)
            (answer,) = jobs.workers.stacks_sync("web-1", timeout=30)
            assert answer.text == "0 running\n"
            assert jobs.workers.drain_sync(["web-1", one.id]) == (one.id,)
            jobs.close_sync()

        await asyncio.to_thread(script)
        assert crew.run is not None
        await asyncio.wait_for(asyncio.shield(crew.run), 30)
