"""Event loops, processes and threads: one store belongs to one loop of one process, and says so; workers run wherever a loop runs."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import asyncpg
import pytest
import uvloop

from pqrun import App
from pqrun.cli.signals import heard
from pqrun.errors import NotOpenError, WrongLoopError
from pqrun.job.record import Job
from pqrun.job.state import Status
from pqrun.run import events
from pqrun.run.context import JobContext
from pqrun.store import PgJobStore
from pqrun.worker import Worker
from tests.faults.counted import Counted
from tests.run.working import wait_finished, working
from tests.support.leasing import Leases
from tests.support.waiting import DEADLINE_SECONDS

Context = JobContext[Any]
T = TypeVar("T")


def in_thread(function: Callable[[], T]) -> T:
    """Call in a thread without a loop, whose end is waited for; raise what it raises."""
    answers: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(function())
        except BaseException as error:  # noqa: BLE001  # raised below, in the test's own thread
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(2 * DEADLINE_SECONDS)
    assert not thread.is_alive()
    if errors:
        raise errors[0]
    return answers[0]


# Loops.


async def opened_and_used(store: PgJobStore) -> int:
    async with store:
        return await store.enqueue("t", {})


async def test_one_store_is_opened_in_one_loop_after_another(dsn: str) -> None:
    store = PgJobStore(dsn)
    ids = [in_thread(lambda: asyncio.run(opened_and_used(store))) for _ in range(3)]
    assert ids == [1, 2, 3]
    assert await opened_and_used(store) == 4


async def test_one_app_is_opened_in_one_loop_after_another(dsn: str) -> None:
    jobs = App(dsn=dsn)

    @jobs.task
    async def add(ctx: JobContext[Any], a: int) -> None: ...

    async def deferred() -> int:
        async with jobs:
            return (await add.defer(a=1)).id

    assert [in_thread(lambda: asyncio.run(deferred())) for _ in range(2)] == [1, 2]
    assert await deferred() == 3


async def test_a_store_that_is_open_elsewhere_says_so_at_once_and_stays_whole(store: PgJobStore) -> None:
    async def use() -> None:
        await store.enqueue("t", {})

    async def start() -> None:
        await store.start()

    for attempt in (use, start):
        with pytest.raises(WrongLoopError, match="another event loop"):
            in_thread(lambda attempt=attempt: asyncio.run(attempt()))  # type: ignore[misc]  # bound now, not later
    assert await store.enqueue("t", {}) == 1


async def test_a_store_whose_loop_is_gone_says_so_and_works_again_after_close_and_start(dsn: str) -> None:
    store = PgJobStore(dsn)
    in_thread(lambda: asyncio.run(store.start()))
    with pytest.raises(WrongLoopError, match="another event loop"):
        await store.enqueue("t", {})
    await store.close()
    with pytest.raises(NotOpenError):
        await store.enqueue("t", {})
    async with store:
        assert await store.enqueue("t", {}) == 1


# Forks.

FORKING = """
import asyncio, os, sys
from pqrun import PgJobStore
from pqrun.errors import PqrunError

store = PgJobStore(sys.argv[1])

async def defer():
    return await store.enqueue("t", {})

async def once():
    async with PgJobStore(sys.argv[1]) as own:
        return await own.enqueue("t", {})

def child():
    try:
        asyncio.run(defer())
    except PqrunError as error:
        print("child:", type(error).__name__, error, flush=True)
    print("child's own:", asyncio.run(once()), flush=True)

async def main():
    if sys.argv[2] == "after start":
        await store.start()
        print("parent:", await defer(), flush=True)
    pid = os.fork()
    if pid == 0:
        child()
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert status == 0, status
    async with store:
        print("parent:", await defer(), await defer(), flush=True)

asyncio.run(main())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ("after import", ["child: NotOpenError not open", "child's own: 1", "parent: 2 3"]),
        (
            "after start",
            ["parent: 1", "child: WrongLoopError opened in another process", "child's own: 2", "parent: 3 4"],
        ),
    ],
)
def test_a_forked_child_hears_a_clear_error_and_disturbs_nobody(leases: Leases, when: str, expected: list[str]) -> None:
    dsn = asyncio.run(leases.take())
    done = subprocess.run(
        [sys.executable, "-c", FORKING, dsn, when], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(expected), done.stdout
    for line, start in zip(lines, expected, strict=True):
        assert line.startswith(start)
    assert asyncio.run(leases.give_back(dsn)) == []


# Workers where loops run.


async def one_job(dsn: str) -> Job:
    counted = Counted()
    async with PgJobStore(dsn) as store, working(store, {"t": counted.quick}) as crew:
        job = await wait_finished(store, await store.enqueue("t", {}))
    assert crew.heard.of(events.WorkerStopped)[0].clean
    return job


async def test_a_worker_runs_in_another_thread_than_the_main_one(dsn: str) -> None:
    job = await asyncio.to_thread(lambda: asyncio.run(one_job(dsn)))
    assert (job.status, job.attempts) == (Status.DONE, 1)


async def test_a_worker_runs_on_uvloop(dsn: str) -> None:
    def run() -> Job:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(one_job(dsn))

    job = await asyncio.to_thread(run)
    assert (job.status, job.attempts) == (Status.DONE, 1)


async def test_several_workers_of_one_process_and_one_name_are_told_apart(
    dsn: str, store: PgJobStore, connection: asyncpg.Connection
) -> None:
    counted = Counted()
    async with (
        working(store, {"t": counted.quick}, worker_id="same", concurrency=3) as one,
        working(store, {"t": counted.quick}, worker_id="same", concurrency=3) as two,
        working(PgJobStore(dsn), {"t": counted.quick}, worker_id="same", concurrency=3) as three,
    ):
        for crew in (one, two, three):
            await crew.heard.wait_for(events.WorkerStarted)
        assert await connection.fetchval("SELECT count(*) FROM pqrun.workers WHERE dead_at IS NULL") == 3
        ids = [await store.enqueue("t", {}) for _ in range(200)]
        await one.stopped()
        ended = [await wait_finished(store, job_id) for job_id in ids]
    assert {job.status for job in ended} == {Status.DONE}
    assert {job.attempts for job in ended} == {1}
    assert set(counted.starts.values()) == {1}


async def test_two_workers_in_two_threads_share_the_work(dsn: str, store: PgJobStore) -> None:
    counts: list[int] = []
    ids = [await store.enqueue("t", {}) for _ in range(100)]

    async def work() -> None:
        counted = Counted()
        async with PgJobStore(dsn) as own, working(own, {"t": counted.quick}, concurrency=2):
            for job_id in ids:
                await wait_finished(own, job_id)
        counts.extend(counted.starts.values())

    await asyncio.gather(*(asyncio.to_thread(lambda: asyncio.run(work())) for _ in range(2)))
    assert counts == [1] * 100


async def test_a_worker_that_is_stopped_from_a_signal_handler_of_another_thread_stops(dsn: str) -> None:
    async with PgJobStore(dsn) as store, working(store, {"t": Counted().quick}) as crew:
        await crew.heard.wait_for(events.WorkerStarted)
        in_thread(crew.worker.stop)
        assert crew.run is not None
        await asyncio.wait_for(asyncio.shield(crew.run), DEADLINE_SECONDS)
    assert crew.heard.of(events.WorkerStopped)[0].clean


# Signals where the loop cannot hear them.


def _refuse(*_: object) -> None:
    raise NotImplementedError


async def test_without_signal_handlers_of_the_loop_a_signal_stops_the_worker_and_one_warning_says_so(
    dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "add_signal_handler", _refuse)
    worker = Worker(store=PgJobStore(dsn), handlers={"t": Counted().quick}, environ={})
    started = asyncio.Event()

    def note(event: events.Event) -> None:
        if isinstance(event, events.WorkerStarted):
            started.set()

    worker.events.subscribe(note)
    with caplog.at_level(logging.WARNING, logger="pqrun"), heard(loop, lambda _: worker.stop()):
        run = asyncio.create_task(worker.run())
        await asyncio.wait_for(started.wait(), DEADLINE_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(run, DEADLINE_SECONDS)
    warnings = [record.getMessage() for record in caplog.records if "signals" in record.getMessage()]
    assert warnings == ["this event loop cannot hear signals: plain handlers are used, and may be heard a little late"]


async def test_the_worker_itself_needs_no_signals(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio.get_running_loop(), "add_signal_handler", _refuse)
    assert (await one_job(dsn)).status is Status.DONE
