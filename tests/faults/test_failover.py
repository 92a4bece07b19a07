"""Failovers for real: a primary and a standby, worker processes and producers with one DSN that names both, and nobody restarted."""

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

import asyncpg
import pytest

from pqrun import App, JobContext
from pqrun.errors import DatabaseUnavailableError, JobNotFound
from pqrun.handle import JobHandle
from pqrun.job.policy import IdlePollPolicy
from pqrun.job.state import Status
from pqrun.run import events
from pqrun.store import PgJobStore
from pqrun.store.connecting import open_connection
from tests.faults.counted import Counted
from tests.faults.town import Ledger, at_work, enqueue, finished
from tests.run.working import wait_finished, working
from tests.support.database import connected
from tests.support.replication import Replicated, replicated
from tests.support.waiting import wait_until

ENOUGH = 40
"""Acknowledged jobs before a failover, and again after it."""

SOON = 20.0
"""Seconds from the promotion until a worker has written to the new primary: below what a statement of the pool may take."""

UNFINISHED = "SELECT count(*) FROM pqrun.jobs WHERE status IN ('SCHEDULED', 'READY', 'RUNNING')"


@asynccontextmanager
async def migrated(how: Literal["synchronous", "asynchronous"]) -> AsyncIterator[Replicated]:
    """A pair with our schema."""
    async with replicated(synchronous=how == "synchronous") as pair:
        await PgJobStore(pair.dsn).migrate()
        await pair.wait_replayed()
        yield pair


class Producer:
    """Defers jobs one after another, some alone and some together, and notes which were acknowledged: outside of the database."""

    def __init__(self, dsn: str) -> None:
        self._jobs = App(dsn=dsn)
        self._work = self._jobs.task(name="work")(_work)
        self.acknowledged: dict[str, int] = {}
        """Key of the job → its id."""
        self.unavailable: list[DatabaseUnavailableError] = []

    async def run(self) -> None:
        """Defer until cancelled; any error but the one that is due ends it."""
        async with self._jobs:
            for number in itertools.count():
                keys = [f"single-{number}"] if number % 4 else [f"many-{number}-{place}" for place in range(5)]
                try:
                    handles = await self._defer(keys)
                except DatabaseUnavailableError as error:
                    self.unavailable.append(error)
                else:
                    self.acknowledged.update((key, handle.id) for key, handle in zip(keys, handles, strict=True))
                await asyncio.sleep(0.005)

    async def _defer(self, keys: list[str]) -> list[JobHandle[None]]:
        if len(keys) == 1:
            return [await self._work.defer(key=keys[0])]
        return await self._jobs.defer_many(self._work.call(key=key) for key in keys)


async def _work(ctx: JobContext, key: str, how: str = "sleep", seconds: float = 0.0) -> None:
    """Declared as in the shop, whose workers run it."""


@asynccontextmanager
async def producing(dsn: str) -> AsyncIterator[Producer]:
    """A producer, until the block ends; what has ended it before fails the block."""
    producer = Producer(dsn)
    task = asyncio.create_task(producer.run())
    try:
        yield producer
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task  # what has ended it before fails the test


async def acknowledges(producer: Producer, more: int) -> None:
    """Wait until so many more jobs were acknowledged."""
    enough = len(producer.acknowledged) + more
    await wait_until(lambda: len(producer.acknowledged) >= enough, seconds=120)


async def all_ended(dsn: str) -> list[asyncpg.Record]:
    """The rows of all jobs, once none waits or runs any more."""
    async with connected(dsn) as connection:

        async def is_empty() -> bool:
            return not await connection.fetchval(UNFINISHED)

        await wait_until(is_empty, seconds=60)
        return await connection.fetch(
            "SELECT id, status, attempts, max_attempts, claim_id, payload->>'key' AS key FROM pqrun.jobs"
        )


async def taken_for_dead(dsn: str) -> int:
    """How many workers were."""
    async with connected(dsn) as connection:
        return int(await connection.fetchval("SELECT count(*) FROM pqrun.workers WHERE dead_at IS NOT NULL"))


def assert_nothing_lost_nothing_twice(producer: Producer, rows: list[asyncpg.Record], ledger: Ledger) -> None:
    assert {(row["status"], row["attempts"]) for row in rows} == {("DONE", 1)}
    for field in ("id", "claim_id", "key"):
        assert max(Counter(row[field] for row in rows).values()) == 1, f"a {field} was handed out twice"
    by_key = {row["key"]: row["id"] for row in rows}
    assert producer.acknowledged.items() <= by_key.items()
    for what in ("start", "end"):
        assert Counter(line.key for line in ledger.lines(what)) == Counter(by_key.keys())


async def test_with_synchronous_replication_no_acknowledged_job_is_lost_and_none_is_stuck(ledger: Ledger) -> None:
    """There and back again, under load: two failovers, and the one who was killed follows as a standby in between."""
    async with (
        migrated("synchronous") as pair,
        at_work(pair.dsn, ledger, "--concurrency", "4"),
        at_work(pair.dsn, ledger, "--concurrency", "4"),
        PgJobStore(pair.dsn) as store,
    ):
        async with producing(pair.dsn) as producer:
            for turn in range(2):
                await acknowledges(producer, ENOUGH)
                await enqueue(store, f"across-{turn}", seconds=4.0)
                await ledger.wait_for("start", f"across-{turn}")
                pair.kill_primary()
                await pair.promote()
                await acknowledges(producer, ENOUGH)
                await pair.rebuild()
        rows = await all_ended(pair.dsn)
        dead = await taken_for_dead(pair.dsn)
    assert_nothing_lost_nothing_twice(producer, rows, ledger)
    assert producer.unavailable
    assert not dead


# A primary that is not dead.


async def started(dsn: str, ledger: Ledger, key: str, seconds: float) -> int:
    """A job that runs now."""
    async with PgJobStore(dsn) as store:
        job_id = await enqueue(store, key, seconds=seconds)
        await ledger.wait_for("start", key)
        return job_id


async def test_a_primary_that_stands_still_is_left_for_the_promoted_standby(ledger: Ledger) -> None:
    """Its connections stand, and it is named first in the DSN: every new connection asks it first."""
    async with migrated("synchronous") as pair, at_work(pair.dsn, ledger), at_work(pair.dsn, ledger):
        running = await started(pair.dsn, ledger, "across", seconds=3.0)
        pair.pause_primary()
        await pair.promote()
        async with asyncio.timeout(SOON), PgJobStore(pair.dsn) as store:
            ended = [await finished(store, job_id) for job_id in (running, await enqueue(store, "later"))]
        dead = await taken_for_dead(pair.primary_dsn)
    assert {(job.status, job.attempts) for job in ended} == {(Status.DONE, 1)}
    assert ledger.starts() == 2
    assert not dead


@pytest.mark.slow  # a producer waits 10 s for a single job, and 30 s for many
async def test_a_producer_of_a_primary_that_stands_still_hears_a_named_error_and_goes_on(ledger: Ledger) -> None:
    async with migrated("synchronous") as pair, at_work(pair.dsn, ledger):
        async with producing(pair.dsn) as producer:
            await acknowledges(producer, ENOUGH)
            pair.pause_primary()
            await pair.promote()
            await acknowledges(producer, ENOUGH)
        rows = await all_ended(pair.primary_dsn)
    assert_nothing_lost_nothing_twice(producer, rows, ledger)
    assert producer.unavailable


async def test_an_old_primary_that_comes_back_is_not_told_apart_and_acknowledges_nothing_without_its_standby() -> None:
    """Both take writes, and the one that is named first is connected to: to keep it away is the operator's matter."""
    async with migrated("synchronous") as pair, PgJobStore(pair.dsn) as store:
        pair.pause_primary()
        await pair.promote()
        pair.resume_old_primary()
        async with connected(pair.standby_dsn) as old:
            assert not await old.fetchval("SELECT pg_is_in_recovery()")
            found = await open_connection(pair.dsn)
            where = "SELECT system_identifier, pg_postmaster_start_time() FROM pg_control_system()"
            assert await found.fetchrow(where) == await old.fetchrow(where)
            await found.close()
        unheard = await asyncpg.connect(pair.standby_dsn, command_timeout=2.0)
        with pytest.raises(DatabaseUnavailableError, match="did not answer in time"):
            await store.enqueue("work", {}, connection=unheard)
        unheard.terminate()


# Finding the primary.


async def deferred(store: PgJobStore) -> int:
    """Enqueue, again where it is still refused: for a moment a store repeats what it heard last."""
    async with asyncio.timeout(SOON):
        while True:
            with contextlib.suppress(DatabaseUnavailableError):
                return await store.enqueue("t", {})
            await asyncio.sleep(0.02)


async def test_a_dsn_that_does_not_say_so_leads_to_the_primary_all_the_same() -> None:
    counted = Counted()
    async with migrated("asynchronous") as pair:
        hosts = ",".join(dsn.partition("host=")[2].partition("&")[0] for dsn in (pair.standby_dsn, pair.primary_dsn))
        dsn = f"postgresql://postgres@/postgres?host={hosts}&port=5432"
        async with PgJobStore(dsn) as store, working(PgJobStore(dsn), {"t": counted.quick}) as crew:
            job = await wait_finished(store, await store.enqueue("t", {}))
    assert (job.status, job.attempts) == (Status.DONE, 1)
    assert not crew.heard.of(events.LoopFailed)


async def test_between_the_death_of_the_primary_and_the_promotion_the_reason_is_named() -> None:
    async with migrated("synchronous") as pair, PgJobStore(pair.dsn) as store:
        pair.kill_primary()
        with pytest.raises(DatabaseUnavailableError, match="target_session_attrs"):
            await store.enqueue("t", {})
        await pair.promote()
        assert await deferred(store)


async def test_a_connection_that_waits_for_a_silent_primary_finds_the_standby_that_is_promoted_meanwhile() -> None:
    async with migrated("synchronous") as pair:
        pair.pause_primary()
        opening = asyncio.create_task(open_connection(pair.dsn))
        await asyncio.wait([opening], timeout=0.1)
        assert not opening.done()
        await pair.promote()
        connection = await asyncio.wait_for(opening, SOON / 4)
        assert not await connection.fetchval("SELECT pg_is_in_recovery()")
        await connection.close()


# What asynchronous replication loses.

POLLING = IdlePollPolicy(0.1, 0.5)
QUIET = IdlePollPolicy(600.0, 600.0)
"""A worker that asks for nothing while there is no primary, and so meets no error there."""


@pytest.mark.parametrize("idle", [POLLING, QUIET], ids=["polling", "quiet"])
async def test_what_asynchronous_replication_did_not_bring_over_is_gone_or_runs_again_and_nothing_hangs(
    idle: IdlePollPolicy,
) -> None:
    """Written after the cut, and acknowledged: the ends of three jobs that the standby knows of, and all of eighty others."""
    counted, staying = Counted(), Counted()
    handlers = {"t": counted.quick, "hang": counted.hang, "stay": staying.hang}
    async with (
        migrated("asynchronous") as pair,
        PgJobStore(pair.dsn) as store,
        working(PgJobStore(pair.dsn), handlers, concurrency=2, idle_policy=idle) as crew,
    ):
        again = [await store.enqueue("hang", {}) for _ in range(2)]
        for job_id in again:
            await counted.wait_started(job_id)
        again.append(await store.enqueue("t", {}))
        await pair.wait_replayed()
        await pair.cut_replication()
        counted.go.set()
        lost = [await store.enqueue("t", {}) for _ in range(79)]
        for job_id in (*again, *lost):
            assert (await wait_finished(store, job_id)).status is Status.DONE
        lost.append(await store.enqueue("stay", {}))
        await staying.wait_started(lost[-1])
        waiter = asyncio.create_task(store.wait_end(lost[-1]))

        pair.kill_primary()
        await pair.promote()
        with pytest.raises(JobNotFound):
            await asyncio.wait_for(waiter, SOON)
        with pytest.raises(JobNotFound):
            await store.wait_end(lost[0])
        await crew.heard.wait_for(events.ClaimLost)
        async with asyncio.timeout(SOON):
            repeated = [await wait_finished(store, job_id) for job_id in again]
            later = await wait_finished(store, await deferred(store))
    assert {(job.status, counted.starts[job.id]) for job in repeated} == {(Status.DONE, 2)}
    assert {event.job.id for event in crew.heard.of(events.ClaimLost)} == {lost[-1]}
    assert later.status is Status.DONE
    assert later.id in lost  # its number had been handed out
