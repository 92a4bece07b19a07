"""Synchronous code: scripts and threads without a loop, handlers in threads, and what is refused."""

import asyncio
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from pydantic import BaseModel

from pqrun import (
    App,
    ArgumentsError,
    CancelOutcome,
    ConfigurationError,
    DatabaseUnavailableError,
    JobCancelled,
    JobContext,
    JobFailed,
    JobHandle,
    JobNotFound,
    NotOpenError,
    PayloadError,
    PgJobStore,
    ResultTimeout,
    RetryRefused,
    SchemaError,
    Status,
    Task,
    WrongLoopError,
    portal,
)
from tests.public.at_work import at_work, count_jobs
from tests.support.database import connected, run
from tests.support.waiting import wait_until

THREAD = "pqrun sync"

SECRET = "Sup3rSecret"


class Sent(BaseModel):
    message_id: str


class Shop:
    """An app with some tasks."""

    def __init__(self, jobs: App[None]) -> None:
        self.jobs = jobs

        @jobs.task(dedupe_key="send:{to}")
        async def send(ctx: JobContext, to: str) -> Sent:
            return Sent(message_id=f"m-{to}")

        @jobs.task
        async def count(ctx: JobContext, number: int, *, secret: str = "") -> dict[str, int]:
            return {"number": number}

        @jobs.task(max_attempts=1)
        async def fail(ctx: JobContext) -> None:
            raise ValueError("no luck")

        self.send: Task[..., Any, Sent, None] = send
        self.count: Task[..., Any, dict[str, int], None] = count
        self.fail: Task[..., Any, None, None] = fail


@pytest.fixture
def shop(jobs: App[None]) -> Iterator[Shop]:
    """Opened nowhere, as in a script."""
    yield Shop(jobs)
    jobs.close_sync()


@contextmanager
def worker_elsewhere(jobs: App[None]) -> Iterator[None]:
    """A worker of the app in a loop of another thread, with the app's store."""
    worker = jobs.worker(environ={})
    thread = threading.Thread(target=lambda: asyncio.run(worker.run()))
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join()


def names_of_connections(dsn: str) -> list[str]:
    """Who is connected to the test's database, this look excepted."""

    async def look() -> list[str]:
        query = (
            "SELECT application_name FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() ORDER BY 1"
        )
        async with connected(dsn) as connection:
            return [row[0] for row in await connection.fetch(query)]

    return run(look())


def is_thread_of_our_own() -> bool:
    return any(thread.name == THREAD for thread in threading.enumerate())


def test_a_script_without_any_loop_defers_and_looks_at_its_job(shop: Shop) -> None:
    job = shop.count.defer_sync(1)
    assert job.created
    assert job.status_sync() is Status.READY
    stored = job.job_sync()
    assert (stored.id, stored.job_type, stored.payload) == (job.id, "count", {"number": 1, "secret": ""})


def test_options_count_for_synchronous_calls_too(shop: Shop) -> None:
    job = shop.count.options(queue="mail", priority=3, run_after=timedelta(hours=1)).defer_sync(1)
    stored = job.job_sync()
    assert (stored.queue, stored.priority, stored.status) == ("mail", 3, Status.SCHEDULED)


def test_many_threads_at_once_each_get_the_handle_of_their_own_job_over_one_connection(shop: Shop, dsn: str) -> None:
    with ThreadPoolExecutor(20) as threads:
        handles = list(threads.map(shop.count.defer_sync, range(200)))
        payloads = list(threads.map(lambda handle: handle.job_sync().payload["number"], handles))
    assert len({handle.id for handle in handles}) == 200
    assert payloads == list(range(200))
    assert names_of_connections(dsn).count("pqrun enqueue") == 1
    assert [thread.name for thread in threading.enumerate()].count(THREAD) == 1


def test_threads_that_start_at_the_same_time_share_one_thread_of_ours(shop: Shop) -> None:
    barrier = threading.Barrier(8)

    def defer(number: int) -> int:
        barrier.wait()
        return shop.count.defer_sync(number).id

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(defer, range(8)))) == 8
    assert [thread.name for thread in threading.enumerate()].count(THREAD) == 1


def test_a_duplicate_gets_the_active_job(shop: Shop) -> None:
    first, second = shop.send.defer_sync("ada"), shop.send.defer_sync("ada")
    assert (first.created, second.created, second.id) == (True, False, first.id)


def test_many_jobs_of_any_mix_go_in_one_call_in_order(shop: Shop) -> None:
    calls = [shop.count.call(1), shop.send.call("ada"), shop.send.call("ada"), shop.fail.call()]
    handles: list[JobHandle[object]] = shop.jobs.defer_many_sync(calls)
    assert [handle.job_sync().job_type for handle in handles] == ["count", "send", "send", "fail"]
    assert handles[1].id == handles[2].id
    assert shop.jobs.defer_many_sync([]) == []


def test_what_is_no_call_is_refused_by_its_index(shop: Shop) -> None:
    with pytest.raises(ArgumentsError, match="defer_many_sync: item 1 must be"):
        shop.jobs.defer_many_sync([shop.count.call(1), 3])  # type: ignore[arg-type]  # what the checker says, too
    assert not is_thread_of_our_own()


def test_a_refused_payload_is_told_by_field_with_nothing_behind_it(shop: Shop, dsn: str) -> None:
    with pytest.raises(PayloadError, match="number") as caught:
        shop.count.defer_sync(SECRET)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert not names_of_connections(dsn)


@pytest.mark.parametrize("is_shared", [True, False], ids=["the app's worker", "a worker of its own"])
def test_a_result_arrives_as_its_type_while_a_worker_runs_in_another_thread(
    shop: Shop, dsn: str, is_shared: bool
) -> None:
    with worker_elsewhere(shop.jobs if is_shared else Shop(App(dsn=dsn)).jobs):
        assert shop.send.defer_sync("ada").result_sync(timeout=30) == Sent(message_id="m-ada")
        failed = shop.fail.defer_sync()
        with pytest.raises(JobFailed, match="no luck"):
            failed.result_sync(timeout=timedelta(seconds=30))
        assert failed.status_sync() is Status.FAILED


@pytest.mark.parametrize("timeout", [0, 0.02])
def test_a_result_that_does_not_come_in_time_is_a_timeout_and_the_job_goes_on(shop: Shop, timeout: float) -> None:
    job = shop.count.defer_sync(1)
    with pytest.raises(ResultTimeout, match=f"job {job.id} ") as caught:
        job.result_sync(timeout)
    assert isinstance(caught.value, TimeoutError)
    assert job.status_sync() is Status.READY


def test_a_job_is_cancelled_and_retried(shop: Shop) -> None:
    job = shop.count.defer_sync(1)
    assert job.cancel_sync() is CancelOutcome.CANCELLED
    with pytest.raises(JobCancelled):
        job.result_sync(timeout=5)
    job.retry_sync()
    assert job.status_sync() is Status.READY
    with pytest.raises(RetryRefused, match="READY"):
        job.retry_sync(force=True)


def test_a_job_that_never_was_is_told_so(shop: Shop) -> None:
    handle = shop.count.handle(77)
    for ask in (handle.status_sync, handle.job_sync, handle.result_sync, handle.retry_sync):
        with pytest.raises(JobNotFound):
            ask()
    assert handle.cancel_sync() is CancelOutcome.NOT_FOUND


REFUSED: dict[str, Callable[[Shop], object]] = {
    "await count.defer(...)": lambda shop: shop.count.defer_sync(1),
    "await jobs.defer_many(...)": lambda shop: shop.jobs.defer_many_sync([shop.count.call(1)]),
    "await job.result(...)": lambda shop: shop.count.handle(1).result_sync(),
    "await job.status()": lambda shop: shop.count.handle(1).status_sync(),
    "await job.job()": lambda shop: shop.count.handle(1).job_sync(),
    "await job.cancel()": lambda shop: shop.count.handle(1).cancel_sync(),
    "await job.retry(...)": lambda shop: shop.count.handle(1).retry_sync(),
}


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("instead", REFUSED)
async def test_a_synchronous_call_in_a_running_loop_is_refused_and_names_the_asynchronous_one(
    jobs: App[None], connection: asyncpg.Connection, instead: str, is_open: bool
) -> None:
    def call() -> None:
        with pytest.raises(WrongLoopError) as caught:
            REFUSED[instead](Shop(jobs))
        assert str(caught.value).endswith(f"use: {instead}")

    if is_open:
        async with jobs:
            call()
    else:
        call()
    assert await count_jobs(connection) == 0
    assert not is_thread_of_our_own()


async def test_a_plain_handler_defers_through_its_worker_without_connections_of_its_own(
    jobs: App[None], dsn: str
) -> None:
    shop = Shop(jobs)
    seen: list[list[str]] = []

    @jobs.task
    def fan_out(ctx: JobContext, count: int) -> dict[str, int]:
        handles = [shop.send.defer_sync(str(number)) for number in range(count)]
        handles += shop.jobs.defer_many_sync([shop.send.call("ada")])
        messages = {handle.result_sync(timeout=30).message_id for handle in handles}
        seen.append(names_of_connections(dsn))
        assert not is_thread_of_our_own()
        return {"messages": len(messages)}

    async with at_work(jobs, concurrency=2):
        assert await (await fan_out.defer(3)).result(timeout=30) == {"messages": 4}
    assert seen[0].count("pqrun enqueue") == 1
    assert seen[0].count("pqrun results") == 1


async def test_threads_of_an_open_app_go_through_its_loop(jobs: App[None]) -> None:
    shop = Shop(jobs)
    async with jobs:
        job = await asyncio.to_thread(shop.count.defer_sync, 1)
        assert await job.status() is Status.READY
        assert await asyncio.to_thread(job.status_sync) is Status.READY
    assert not is_thread_of_our_own()


async def test_an_app_over_a_pool_is_used_through_the_loop_that_it_is_open_in(dsn: str) -> None:
    async with asyncpg.create_pool(dsn, min_size=0) as pool:
        shop = Shop(App(pool=pool))
        async with shop.jobs:
            assert (await asyncio.to_thread(shop.count.defer_sync, 1)).created


@pytest.mark.parametrize("is_store", [True, False])
def test_a_pool_that_is_open_nowhere_cannot_serve_synchronous_calls(dsn: str, is_store: bool) -> None:
    pool = asyncpg.create_pool(dsn, min_size=0, loop=asyncio.new_event_loop())
    jobs = App(store=PgJobStore(pool=pool)) if is_store else App(pool=pool)
    with pytest.raises(NotOpenError, match=r"give dsn= instead .* or open the app"):
        Shop(jobs).count.defer_sync(1)
    pool._loop.close()  # type: ignore[attr-defined]  # the driver's own; pools want a loop when they are made


def test_a_store_with_a_dsn_serves_synchronous_calls_by_another_one_like_it(dsn: str) -> None:
    shop = Shop(App(store=PgJobStore(dsn)))
    assert shop.count.defer_sync(1).created
    assert not shop.jobs.store.is_open
    shop.jobs.close_sync()


def test_an_app_that_knows_no_database_names_all_ways_to_say_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PQRUN_DSN", raising=False)
    monkeypatch.delenv("DATABASE_URL", raising=False)
    with pytest.raises(ConfigurationError, match="PQRUN_DSN"):
        Shop(App()).count.defer_sync(1)


def test_an_app_without_a_dsn_finds_it_in_the_environment(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PQRUN_DSN", dsn)
    shop = Shop(App())
    assert shop.count.defer_sync(1).created
    shop.jobs.close_sync()


def test_an_app_that_is_open_in_a_loop_of_this_thread_that_rests_does_not_wait_for_it(shop: Shop) -> None:
    with asyncio.Runner() as runner:
        runner.run(shop.jobs.__aenter__())
        assert shop.count.defer_sync(1).created
        runner.run(shop.jobs.__aexit__(None, None, None))


def test_an_app_is_used_from_synchronous_code_and_from_loops_in_turn(shop: Shop) -> None:
    async def defer() -> int:
        async with shop.jobs:
            return (await shop.count.defer(1)).id

    ids = [shop.count.defer_sync(1).id, asyncio.run(defer()), shop.count.defer_sync(1).id, asyncio.run(defer())]
    assert len(set(ids)) == 4


def test_what_was_closed_is_made_anew_by_the_next_call(shop: Shop, dsn: str) -> None:
    shop.jobs.close_sync()  # nothing yet
    first = shop.count.defer_sync(1)
    shop.jobs.close_sync()
    shop.jobs.close_sync()
    assert not is_thread_of_our_own()
    assert first.status_sync() is Status.READY
    assert is_thread_of_our_own()
    shop.jobs.close_sync()
    assert not names_of_connections(dsn)


def test_closing_leaves_alone_what_a_loop_has_opened(shop: Shop) -> None:
    with worker_elsewhere(shop.jobs):
        run(wait_until(lambda: shop.jobs.store.is_open))
        shop.jobs.close_sync()
        assert shop.count.defer_sync(1).result_sync(timeout=30) == {"number": 1}


def test_a_database_error_shows_where_it_was_called_and_where_it_arose(empty_dsn: str) -> None:
    shop = Shop(App(dsn=empty_dsn))
    with pytest.raises(SchemaError, match="pqrun migrate") as caught:
        shop.count.defer_sync(1, secret=SECRET)
    assert caught.value.__context__ is None
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names[:2] == ["test_a_database_error_shows_where_it_was_called_and_where_it_arose", "defer_sync"]
    assert "enqueue_jobs" in names[2:]
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    shop.jobs.close_sync()


def test_a_database_that_cannot_be_reached_is_told_as_one(unused_tcp_port: int) -> None:
    shop = Shop(App(dsn=f"postgresql://u:{SECRET}@127.0.0.1:{unused_tcp_port}/x"))
    with pytest.raises(DatabaseUnavailableError, match="cannot connect to") as caught:
        shop.count.defer_sync(1)
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    shop.jobs.close_sync()


def test_a_process_that_can_have_no_more_threads_is_told_so(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(NotOpenError, match=r"no thread could be started .* can't start new thread"):
            shop.count.defer_sync(1)
    assert shop.count.defer_sync(1).created


def test_a_thread_that_the_server_never_lets_run_is_told_with_the_setting(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_run = threading.Event()
    run_really = threading.Thread.run

    def run_late(thread: threading.Thread) -> None:
        may_run.wait(30)
        run_really(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "run", run_late)
        patched.setattr(portal, "JOIN_SECONDS", 0.01)
        with pytest.raises(NotOpenError, match="enable-threads"):
            shop.count.defer_sync(1)
    (late,) = (thread for thread in threading.enumerate() if thread.name == THREAD)
    may_run.set()
    late.join(30)  # it ends as soon as it runs
    assert not late.is_alive()
    assert shop.count.defer_sync(1).created
