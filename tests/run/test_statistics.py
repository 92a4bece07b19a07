"""Statistics: what is counted of real jobs, when it is added, and what becomes of it while the database is away."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from pqrun import Abort, JobContext, PgJobStore, Snooze
from pqrun.errors import DatabaseUnavailableError
from pqrun.job.policy import LoopErrorPolicy
from pqrun.job.state import Status
from pqrun.job.statistics import StatisticsRow
from pqrun.run import events, statistics
from pqrun.run.events import Events
from pqrun.run.statistics import StatisticsWriter
from pqrun.store.statistics import Minute
from tests.run.making import Bench, make_job
from tests.run.working import AtOnce, wait_finished, working
from tests.support.proxy import proxied
from tests.support.rows import make_job as insert_job
from tests.support.rows import make_worker
from tests.support.waiting import Recorder, wait_until


async def all_rows(store: PgJobStore, by: str = "all") -> list[StatisticsRow]:
    now = datetime.now(UTC)
    hours = timedelta(hours=2)
    return await store.statistics(now - hours, now + hours, step=2 * hours, by=by)  # type: ignore[arg-type]


async def quick(ctx: JobContext) -> None:
    return None


async def test_every_kind_of_end_is_counted_where_its_write_held(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    tries: list[int] = []

    async def flaky(ctx: JobContext) -> None:
        tries.append(ctx.job.id)
        if len(tries) == 1:
            raise ValueError
        if len(tries) == 2:
            raise Snooze(timedelta(0))

    async def hopeless(ctx: JobContext) -> None:
        raise Abort("no")

    async def completes(ctx: JobContext) -> None:
        async with ctx.store.transaction() as transaction:
            await ctx.complete(connection=transaction)

    async def endless(ctx: JobContext) -> None:
        await asyncio.sleep(3600)

    handlers = {"quick": quick, "flaky": flaky, "hopeless": hopeless, "completes": completes, "endless": endless}
    dead = await make_worker(connection, dead=True)
    lost = await insert_job(connection, status=Status.RUNNING, job_type="quick", worker=dead, queue="mail")
    async with working(store, handlers, backoff=AtOnce(), concurrency=5, shutdown_grace=0) as crew:
        for name in ("quick", "flaky", "hopeless", "completes"):
            await wait_finished(store, await store.enqueue(name, {}))
        await wait_finished(store, lost)
        cancelled = await store.enqueue("endless", {})
        await crew.heard.wait_for(events.Picked, count=8)
        await store.cancel(cancelled)
        await wait_finished(store, cancelled)
        await store.enqueue("endless", {})  # given back at the stop
        await crew.heard.wait_for(events.Picked, count=9)
    found = {row.key: row for row in await all_rows(store, "task")}
    assert {key: (row.started, row.arrived, row.run.count) for key, row in found.items()} == {
        "quick": (2, 1, 2),
        "flaky": (3, 1, 2),  # the time of a snooze is not counted
        "hopeless": (1, 1, 1),
        "completes": (1, 1, 1),
        "endless": (2, 2, 1),
    }
    ends = {key: (r.done, r.failed, r.retrying, r.snoozed, r.cancelled, r.lost, r.released) for key, r in found.items()}
    assert ends == {
        "quick": (2, 0, 0, 0, 0, 1, 0),
        "flaky": (1, 0, 1, 1, 0, 0, 0),
        "hopeless": (0, 1, 0, 0, 0, 0, 0),
        "completes": (1, 0, 0, 0, 0, 0, 0),
        "endless": (0, 0, 0, 0, 1, 0, 1),
    }
    assert [row.key for row in await all_rows(store, "queue")] == ["default", "mail"]


async def test_the_wait_is_counted_from_when_a_job_was_due(store: PgJobStore, connection: asyncpg.Connection) -> None:
    past = datetime.now(UTC) - timedelta(minutes=10)
    first = await insert_job(connection, job_type="quick", run_after=past, created_at=past)
    second = await insert_job(connection, job_type="quick", run_after=datetime(1990, 1, 1, tzinfo=UTC))
    async with working(store, {"quick": quick}) as crew:
        await wait_finished(store, first)
        await wait_finished(store, second)
    (row,) = await all_rows(store)
    assert row.wait.count == 2
    assert 600 <= row.wait.total_seconds < 700  # the second has waited since it was written, not since 1990
    assert [told.waited_seconds is not None for told in crew.heard.of(events.Picked)] == [True, True]


async def test_the_time_in_the_worker_before_a_slot_is_free_counts_as_waiting_too() -> None:
    gate = asyncio.Event()

    async def gated(ctx: JobContext) -> None:
        await gate.wait()

    bench = Bench(t=gated)
    times = {"_locked_at": 101.0, "_run_after": 100.0, "_created_at": 99.0}
    bench.executor.take([make_job(1, **times), make_job(2, **times)])
    taken = time.monotonic()
    await bench.heard.wait_for(events.Picked)
    await asyncio.sleep(0)
    held = time.monotonic() - taken
    gate.set()
    second = await bench.heard.wait_for(events.Picked, count=2)
    assert second.waited_seconds is not None
    assert second.waited_seconds >= 1.0 + held
    await bench.wait_idle()


async def test_statistics_none_counts_and_writes_nothing(store: PgJobStore) -> None:
    async with working(store, {"quick": quick}, statistics=None):
        await wait_finished(store, await store.enqueue("quick", {}))
    assert await all_rows(store) == []


@asynccontextmanager
async def minutes_of(monkeypatch: pytest.MonkeyPatch, seconds: float) -> AsyncIterator[None]:
    monkeypatch.setattr(statistics, "MINUTE_SECONDS", seconds)
    monkeypatch.setattr(statistics, "JITTER_SECONDS", seconds / 10)
    yield


async def test_a_running_worker_adds_its_minutes_as_they_end(
    store: PgJobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with minutes_of(monkeypatch, 0.1), working(store, {"quick": quick}):
        await wait_finished(store, await store.enqueue("quick", {}))

        async def is_added() -> bool:
            return sum(row.done for row in await all_rows(store)) == 1

        await wait_until(is_added)
        await wait_finished(store, await store.enqueue("quick", {}))
    (row,) = await all_rows(store)
    assert row.done == 2


async def test_minutes_are_kept_while_the_database_is_away_and_added_once_when_it_is_back(
    dsn: str, store: PgJobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        minutes_of(monkeypatch, 0.1),
        proxied(dsn) as proxy,
        PgJobStore(proxy.dsn) as through,
        working(through, {"quick": quick}) as crew,
    ):
        await wait_finished(store, await store.enqueue("quick", {}))
        told = Recorder(crew.worker.events)
        proxy.is_unreachable = True
        proxy.each(lambda one: one.reset())
        crew.worker.events.emit(events.Released(make_job(), False))  # what happens while it is away
        await wait_until(lambda: any(f.duty == "statistics" for f in told.of(events.LoopFailed)))
        proxy.is_unreachable = False
        await wait_until(lambda: any(f.duty == "statistics" for f in told.of(events.LoopResumed)))
        await wait_finished(store, await store.enqueue("quick", {}))
    (row,) = await all_rows(store)
    assert (row.done, row.released) == (2, 1)


async def test_two_workers_of_one_minute_write_rows_of_their_own(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    for _ in range(2):
        async with working(store, {"quick": quick}, worker_id="same"):
            await wait_finished(store, await store.enqueue("quick", {}))
    assert await connection.fetchval("SELECT count(DISTINCT worker) FROM pqrun.statistics") == 2


class Table:
    """Stands for the store: it fails as often as it is told to, and remembers what it took."""

    def __init__(self) -> None:
        self.worker = 7
        self.failures = 0
        self.epoch = 6_000_000.0 - time.monotonic()
        self.taken: list[Minute] = []
        self.prunes = 0

    async def add_statistics(self, minutes: Sequence[Minute]) -> float:
        if self.failures:
            self.failures -= 1
            raise DatabaseUnavailableError("away")
        self.taken += minutes
        return self.epoch + time.monotonic()

    async def prune_statistics(self, *, age_seconds: float) -> bool:
        self.prunes += 1
        return self.prunes < 3


def writer(table: Table) -> StatisticsWriter:
    return StatisticsWriter(table, keep_seconds=3600.0, events=Events(), policy=LoopErrorPolicy())


async def test_what_is_beyond_the_bound_is_dropped_oldest_first_and_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(statistics, "ROWS_MAX", 3)
    monkeypatch.setattr(statistics, "JITTER_SECONDS", 0.0)
    table = Table()
    one = writer(table)
    await one._tick()
    for number in range(5):
        one.tally.done(make_job(job_type=f"t{number}"), 1)
        table.failures = 1
        table.epoch += 60.0
        one._clock = table.epoch
        with pytest.raises(DatabaseUnavailableError):
            await one._tick()
    await one._tick()
    assert [row.job_type for row in table.taken] == ["t2", "t3", "t4"]
    assert len({row.minute for row in table.taken}) == 3
    assert "the oldest 1 rows of statistics are dropped" in caplog.text


async def test_a_clock_that_is_set_back_makes_a_minute_long_but_no_second_row_of_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(statistics, "JITTER_SECONDS", 0.0)
    table = Table()
    one = writer(table)
    await one._tick()
    for step in (60.0, -120.0, 60.0, 60.0, 60.0):
        one.tally.done(make_job(), 1)
        one._clock = table.epoch = table.epoch + step
        await one._tick()
    assert [row.counts.done for row in table.taken] == [1, 4]
    assert len({row.minute for row in table.taken}) == 2


async def test_queues_without_bound_end_in_one_row_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "PAIRS_MAX", 2)
    table = Table()
    one = writer(table)
    await one._tick()
    for number in range(5):
        one.tally.done(make_job(queue=f"q{number}"), 1)
    await one.stop(5.0)
    assert {row.queue: row.counts.done for row in table.taken} == {"q0": 1, "q1": 1, "(other)": 3}


async def test_an_end_without_database_loses_the_minute_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    table = Table()
    one = writer(table)
    await one._tick()
    one.tally.done(make_job(), 1)
    table.failures = 1
    await one.stop(5.0)
    assert "1 rows of statistics could not be written at the end, and are lost" in caplog.text


async def test_old_rows_are_looked_for_in_pieces_until_there_are_none() -> None:
    table = Table()
    one = writer(table)
    assert await one._tick() < 0.1
    assert await one._tick() < 0.1
    await one._tick()
    assert table.prunes == 3
    await one._tick()
    assert table.prunes == 3  # not again for ten minutes
