"""Connections that break in every way a network knows: nothing is lost, nothing runs twice, and nobody waits for a dead peer for long."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from pqrun.errors import DatabaseUnavailableError
from pqrun.job.policy import IdlePollPolicy
from pqrun.job.state import Status
from pqrun.run import events
from pqrun.run.context import JobContext
from pqrun.store import PgJobStore
from tests.faults.counted import Counted
from tests.run.working import Crew, stored, wait_finished, working
from tests.support.database import connected
from tests.support.proxy import Proxied, Proxy, proxied
from tests.support.waiting import wait_until

Context = JobContext[Any]

SOON = 20.0
"""Seconds. Well below what the driver itself would wait for a statement, well above what anything here takes."""

TRIES_PER_SECOND = 20
"""More attempts to connect would be a hot loop."""


@pytest.fixture
async def proxy(dsn: str) -> AsyncIterator[Proxy]:
    """A network of its own between the worker and the test's database."""
    async with proxied(dsn) as opened:
        yield opened


@asynccontextmanager
async def working_through(
    proxy: Proxy, counted: Counted, *, concurrency: int = 2, idle: IdlePollPolicy | None = None
) -> AsyncIterator[Crew]:
    """A worker behind the proxy, all of whose connections stand."""
    async with working(
        PgJobStore(proxy.dsn),
        {"t": counted.quick, "late": counted.quick, "hang": counted.hang},
        concurrency=concurrency,
        idle_policy=idle or IdlePollPolicy(0.1, 0.5),
    ) as crew:
        await crew.heard.wait_for(events.WorkerStarted)
        await wait_until(lambda: all(proxy.open(name) for name in ("claim", "keeper", "maintain")))
        yield crew


async def warm_up(store: PgJobStore, proxy: Proxy) -> None:
    """Have a job settled, so that the settling connection stands too."""
    assert (await wait_finished(store, await store.enqueue("t", {}))).status is Status.DONE
    assert proxy.open("settle")


async def status_is(connection: asyncpg.Connection, job_id: int, status: Status) -> bool:
    return bool(await connection.fetchval("SELECT status = $2 FROM pqrun.jobs WHERE id = $1", job_id, status.value))


def stall(one: Proxied) -> None:
    one.stall()


def half_close(one: Proxied) -> None:
    one.half_close()


def reset(one: Proxied) -> None:
    one.reset()


def stall_answers(one: Proxied) -> None:
    one.to_client.stall()


BREAKS = [
    pytest.param(stall, id="cut without a FIN"),
    pytest.param(stall_answers, id="answers stalled", marks=pytest.mark.slow),
    pytest.param(half_close, id="half-closed"),
    pytest.param(reset, id="reset"),
]


@pytest.mark.parametrize("break_it", BREAKS)
async def test_all_connections_break_while_a_handler_runs_and_its_outcome_is_written(
    store: PgJobStore, proxy: Proxy, break_it: Callable[[Proxied], None]
) -> None:
    counted = Counted()
    async with working_through(proxy, counted) as crew:
        await warm_up(store, proxy)
        running = await store.enqueue("hang", {})
        await counted.wait_started(running)
        assert proxy.each(break_it) >= 4
        counted.go.set()
        waiting = await store.enqueue("t", {})
        async with asyncio.timeout(SOON):
            ended = [await wait_finished(store, job_id) for job_id in (running, waiting)]
    assert {(job.status, job.attempts) for job in ended} == {(Status.DONE, 1)}
    assert counted.starts == {1: 1, running: 1, waiting: 1}
    assert not crew.heard.of(events.ClaimLost)
    assert not crew.heard.of(events.Retrying)
    assert crew.heard.of(events.WorkerStopped)[0].clean


@pytest.mark.parametrize("break_it", BREAKS)
async def test_a_claim_that_was_written_and_whose_answer_was_lost_is_run(
    store: PgJobStore, connection: asyncpg.Connection, proxy: Proxy, break_it: Callable[[Proxied], None]
) -> None:
    counted = Counted()
    async with working_through(proxy, counted) as crew:
        await warm_up(store, proxy)
        proxy.each(stall_answers, "claim")
        job_id = await store.enqueue("t", {}, max_attempts=1)
        await wait_until(lambda: status_is(connection, job_id, Status.RUNNING))
        proxy.each(break_it, "claim")
        async with asyncio.timeout(SOON):
            job = await wait_finished(store, job_id)
    assert (job.status, job.attempts, counted.starts[job_id]) == (Status.DONE, 1, 1)
    assert not crew.heard.of(events.ClaimLost)


async def test_a_claim_that_never_arrived_is_made_again(store: PgJobStore, proxy: Proxy) -> None:
    counted = Counted()
    async with working_through(proxy, counted):
        await warm_up(store, proxy)
        (claim,) = proxy.open("claim")
        claim.to_server.stall()
        job_id = await store.enqueue("t", {})
        await claim.to_server.held.wait()
        claim.reset()
        job = await wait_finished(store, job_id)
    assert (job.status, job.attempts, counted.starts[job_id]) == (Status.DONE, 1, 1)


async def test_a_claim_that_arrives_long_after_it_was_given_up_is_found(
    store: PgJobStore, connection: asyncpg.Connection, proxy: Proxy
) -> None:
    """The network holds the statement back until the worker has reconnected and looked; then the server executes it for nobody."""
    counted = Counted()
    async with working_through(proxy, counted, concurrency=1) as crew:
        await warm_up(store, proxy)
        (late,) = proxy.open("claim")
        late.to_server.stall()
        await late.to_server.held.wait()
        running = await store.enqueue("hang", {})
        await counted.wait_started(running)  # over a new connection; now the slot is taken, and nothing else is claimed
        job_id = await store.enqueue("late", {}, max_attempts=1)
        late.to_server.resume()
        await wait_until(lambda: status_is(connection, job_id, Status.RUNNING))
        counted.go.set()
        job = await wait_finished(store, job_id)
    assert (job.status, job.attempts, counted.starts[job_id]) == (Status.DONE, 1, 1)
    assert len(crew.heard.of(events.Done)) == 3


@pytest.mark.parametrize("break_it", BREAKS)
async def test_a_settle_that_was_written_and_whose_answer_was_lost_is_told_as_written(
    store: PgJobStore, connection: asyncpg.Connection, proxy: Proxy, break_it: Callable[[Proxied], None]
) -> None:
    counted = Counted()
    async with working_through(proxy, counted) as crew:
        await warm_up(store, proxy)
        running = await store.enqueue("hang", {})
        await counted.wait_started(running)
        proxy.each(stall_answers, "settle")
        counted.go.set()
        await wait_until(lambda: status_is(connection, running, Status.DONE))
        proxy.each(break_it, "settle")
        await crew.heard.wait_for(events.Done, count=2, seconds=SOON)
    assert [event.job.id for event in crew.heard.of(events.Done)] == [1, running]
    assert not crew.heard.of(events.ClaimLost)
    assert (await stored(store, running)).attempts == 1


async def test_a_settle_that_never_arrived_is_written_when_there_is_a_connection(
    store: PgJobStore, proxy: Proxy
) -> None:
    counted = Counted()
    async with working_through(proxy, counted) as crew:
        await warm_up(store, proxy)
        (settle,) = proxy.open("settle")
        settle.to_server.stall()
        job_id = await store.enqueue("t", {})
        await settle.to_server.held.wait()
        proxy.is_unreachable = True
        since = time.monotonic()
        settle.reset()
        await wait_until(lambda: proxy.tries_since(since) >= 4)
        assert (await stored(store, job_id)).status is Status.RUNNING
        proxy.is_unreachable = False
        job = await wait_finished(store, job_id)
        await crew.heard.wait_for(events.Done, count=2)
    assert (job.status, job.attempts, counted.starts[job_id]) == (Status.DONE, 1, 1)


@pytest.mark.parametrize("how", ["refused", pytest.param("deaf", marks=pytest.mark.slow)])
async def test_a_network_that_is_away_for_seconds_is_not_stormed(store: PgJobStore, proxy: Proxy, how: str) -> None:
    counted = Counted()
    async with working_through(proxy, counted, concurrency=3) as crew:
        await warm_up(store, proxy)
        running = [await store.enqueue("hang", {}) for _ in range(2)]
        for job_id in running:
            await counted.wait_started(job_id)
        since = time.monotonic()
        if how == "refused":
            proxy.is_unreachable = True
            proxy.each(reset)
        else:
            proxy.is_deaf = True
            proxy.each(stall)
        counted.go.set()
        later = await store.enqueue("t", {})
        await wait_until(lambda: time.monotonic() - since > 3)
        assert (await stored(store, running[0])).status is Status.RUNNING
        assert 1 <= proxy.most_tries_per_second(since) < TRIES_PER_SECOND
        failures = len(crew.heard.of(events.LoopFailed))
        assert failures < TRIES_PER_SECOND * 3
        proxy.is_unreachable = proxy.is_deaf = False
        ended = [await wait_finished(store, job_id) for job_id in (*running, later)]
    assert {(job.status, job.attempts) for job in ended} == {(Status.DONE, 1)}
    assert set(counted.starts.values()) == {1}


async def test_a_slow_network_makes_everything_late_and_nothing_wrong(store: PgJobStore, proxy: Proxy) -> None:
    counted = Counted()

    def delay(one: Proxied) -> None:
        one.to_server.delay_seconds = one.to_client.delay_seconds = 0.1

    async with working_through(proxy, counted) as crew:
        await warm_up(store, proxy)
        proxy.each(delay)
        ended = [await wait_finished(store, await store.enqueue("t", {})) for _ in range(3)]
    assert {(job.status, job.attempts) for job in ended} == {(Status.DONE, 1)}
    assert not crew.heard.of(events.LoopFailed)


class Switched(IdlePollPolicy):
    """Polls often, until it is told not to at all."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.2

    def next_sleep(self, empty_streak: int) -> float:
        return self.seconds


async def test_a_listener_that_is_dead_without_a_word_is_replaced_and_polling_helps_meanwhile(
    store: PgJobStore, proxy: Proxy
) -> None:
    counted, idle = Counted(), Switched()
    async with working_through(proxy, counted, idle=idle) as crew:
        await warm_up(store, proxy)
        (dead,) = proxy.open("keeper")
        dead.stall()
        polled = await wait_finished(store, await store.enqueue("t", {}))
        await wait_until(lambda: any(one is not dead for one in proxy.open("keeper")), seconds=SOON)
        idle.seconds = 3600.0
        # The reconnect itself wakes the fetcher, which then sleeps for an hour: only a notification ends that.
        (listening,) = [one for one in proxy.open("keeper") if one is not dead]
        passed = listening.to_client.passed
        await wait_until(lambda: listening.to_client.passed > passed)  # it beats, so it listens
        notified = [await wait_finished(store, await store.enqueue("t", {})) for _ in range(3)]
    assert {(job.status, job.attempts) for job in (polled, *notified)} == {(Status.DONE, 1)}
    assert not crew.heard.of(events.ClaimLost)


def hold_listen(one: Proxied) -> None:
    one.to_server.stop_before = b"LISTEN"


async def test_a_listen_that_is_not_answered_does_not_keep_the_worker_from_beating(
    connection: asyncpg.Connection, proxy: Proxy
) -> None:
    async with working_through(proxy, Counted()):
        proxy.on_open = hold_listen
        proxy.each(reset, "keeper")
        await wait_until(lambda: proxy.open("keeper"))
        (silent,) = proxy.open("keeper")
        proxy.on_open = lambda _: None
        await asyncio.wait_for(silent.to_server.held.wait(), SOON)
        before = await connection.fetchval("SELECT beat FROM pqrun.workers")

        async def beats_again() -> bool:
            return bool(await connection.fetchval("SELECT beat > $1 FROM pqrun.workers", before))

        await wait_until(beats_again, seconds=SOON)


@pytest.mark.parametrize("break_it", BREAKS)
async def test_a_result_is_seen_although_every_connection_of_its_waiter_broke(
    dsn: str, store: PgJobStore, proxy: Proxy, break_it: Callable[[Proxied], None]
) -> None:
    counted = Counted()
    async with PgJobStore(proxy.dsn) as waiting, working(store, {"hang": counted.hang}):
        job_id = await store.enqueue("hang", {})
        await counted.wait_started(job_id)
        waiter = asyncio.create_task(waiting.wait_end(job_id, 60))
        await wait_until(lambda: proxy.open("pqrun results") and len(proxy.open("pqrun")) >= 2)
        proxy.each(break_it)
        counted.go.set()
        end = await asyncio.wait_for(waiter, SOON)
    assert end.status is Status.DONE


@pytest.mark.parametrize(
    "break_it",
    [
        pytest.param(stall, id="cut without a FIN", marks=pytest.mark.slow),  # the limit of any statement is 30 s
        pytest.param(half_close, id="half-closed"),
        pytest.param(reset, id="reset"),
    ],
)
async def test_a_producer_whose_connection_broke_hears_a_named_error_or_is_served(
    dsn: str, proxy: Proxy, break_it: Callable[[Proxied], None]
) -> None:
    async with PgJobStore(proxy.dsn) as producing, connected(dsn) as connection:
        await producing.enqueue("t", {})
        proxy.each(break_it)
        with contextlib.suppress(DatabaseUnavailableError):  # it may be that it was written
            await asyncio.wait_for(producing.enqueue("t", {}), 60)
        await producing.enqueue("t", {})
        assert await connection.fetchval("SELECT count(*) FROM pqrun.jobs") in (2, 3)


@pytest.mark.parametrize("break_it", BREAKS)
async def test_a_worker_with_a_pool_that_limits_nothing_itself_waits_for_no_dead_peer(
    store: PgJobStore, proxy: Proxy, break_it: Callable[[Proxied], None]
) -> None:
    counted = Counted()
    async with asyncpg.create_pool(proxy.dsn, min_size=0, max_size=6) as pool:
        handlers = {"t": counted.quick, "hang": counted.hang}
        idle = IdlePollPolicy(0.1, 0.5)
        async with working(PgJobStore(pool=pool), handlers, concurrency=2, idle_policy=idle) as crew:
            await crew.heard.wait_for(events.WorkerStarted)
            await wait_finished(store, await store.enqueue("t", {}))
            running = await store.enqueue("hang", {})
            await counted.wait_started(running)
            proxy.each(break_it)
            counted.go.set()
            waiting = await store.enqueue("t", {})
            async with asyncio.timeout(SOON):
                ended = [await wait_finished(store, job_id) for job_id in (running, waiting)]
        proxy.each(Proxied.reset)  # what the pool still holds does not answer its goodbye
    assert {(job.status, job.attempts) for job in ended} == {(Status.DONE, 1)}
    assert not crew.heard.of(events.ClaimLost)
