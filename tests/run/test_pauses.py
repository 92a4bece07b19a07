"""Pauses and whole workers: what is claimed goes back, what runs goes on, and nothing is lost. A real worker on a real database."""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from pqrun.job.outcome import Released
from pqrun.job.pause import Pauses
from pqrun.job.policy import IdlePollPolicy
from pqrun.job.state import Status
from pqrun.run import events
from pqrun.run.context import JobContext
from pqrun.store import PgJobStore
from pqrun.store.claiming import Claimer
from tests.run.making import Bench, claim_of, make_job
from tests.run.working import wait_finished, working
from tests.support import rows
from tests.support.jobs import NOW
from tests.support.pgbouncer import pgbouncer
from tests.support.waiting import wait_until

Context = JobContext[Any]

SLEEPY = IdlePollPolicy(3_600.0, 3_600.0)
"""Nothing but a hint or a beat wakes the worker."""


class Gate:
    """A handler that notes its starts and waits to be let go."""

    def __init__(self) -> None:
        self.started: list[int] = []
        self.go = asyncio.Event()

    async def __call__(self, ctx: Context) -> None:
        self.started.append(ctx.job.id)
        await self.go.wait()


@contextlib.contextmanager
def counting_claims(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[None]]:
    """Every claim statement of this process, noted."""
    claims: list[None] = []
    real = Claimer.claim

    async def claim(self: Claimer, *arguments: Any, **options: Any) -> Any:
        claims.append(None)
        return await real(self, *arguments, **options)

    monkeypatch.setattr(Claimer, "claim", claim)
    yield claims


async def test_a_running_job_goes_on_while_its_queue_is_paused_and_the_next_waits_for_the_resume(
    store: PgJobStore,
) -> None:
    gate = Gate()
    first, second = await store.enqueue("t", {}, queue="mail"), await store.enqueue("t", {}, queue="mail")
    async with working(store, {"t": gate}, idle_policy=SLEEPY):
        await wait_until(lambda: gate.started == [first])
        await store.pause(queue="mail")
        gate.go.set()
        assert (await wait_finished(store, first)).status is Status.DONE
        other = await store.enqueue("t", {})
        await wait_finished(store, other)
        assert gate.started == [first, other]
        await store.resume(queue="mail")
        assert (await wait_finished(store, second)).attempts == 1


async def test_claims_that_have_not_started_go_back_at_once() -> None:
    gate = Gate()
    bench = Bench(t=gate)
    jobs = [make_job(number, queue=queue, _locked_at=NOW) for number, queue in enumerate(("mail", "mail", "default"))]
    bench.executor.take(jobs)
    await wait_until(lambda: gate.started)
    bench.executor.pause(Pauses({"mail": NOW}, {}))
    assert bench.delivered == [(jobs[1], Released(claim_of(jobs[1]), started=False, counted=False))]
    assert bench.executor.claims() == [claim_of(jobs[2]), claim_of(jobs[0])]
    gate.go.set()
    await bench.outcomes(3)
    assert gate.started == [0, 2]


async def test_an_executor_starts_nothing_that_was_claimed_before_the_pause_it_knows_of() -> None:
    gate = Gate()
    bench = Bench(t=gate, concurrency=2)
    bench.executor.pause(Pauses({"mail": NOW}, {}))
    before = make_job(1, queue="mail", _locked_at=NOW - timedelta(seconds=1))
    after = make_job(2, queue="mail", _locked_at=NOW + timedelta(seconds=1))  # after a resume that is not known yet
    bench.executor.take([before, after])
    await wait_until(lambda: gate.started == [2])
    assert [job.id for job, _ in bench.delivered] == [1]
    assert bench.executor.claims() == [claim_of(after)]
    gate.go.set()
    await bench.wait_idle()


async def test_retries_snoozes_and_jobs_for_later_go_on_coming_into_a_paused_queue(store: PgJobStore) -> None:
    async def fail(ctx: Context) -> None:
        await store.pause(queue="mail")
        raise ValueError

    async with working(store, {"t": fail}, idle_policy=SLEEPY):
        job_id = await store.enqueue("t", {}, queue="mail")

        async def is_retrying() -> bool:
            job = await store.get(job_id)
            return job is not None and job.status is Status.SCHEDULED

        await wait_until(is_retrying)
        later = await store.enqueue("t", {}, queue="mail")
    (mail,) = [queue for queue in await store.queues() if queue.name == "mail"]
    assert (mail.ready, mail.failing) == (1, 1)
    assert (await store.get(later)) is not None


async def test_a_paused_queue_makes_no_worker_spin_or_report(
    store: PgJobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(20):
        await store.enqueue("t", {}, queue="mail")
    await store.pause(queue="mail")
    gate = Gate()
    gate.go.set()
    with counting_claims(monkeypatch) as claims:
        async with working(store, {"t": gate}, idle_policy=SLEEPY) as crew:
            await wait_finished(store, await store.enqueue("t", {}))
            fetcher = crew.worker._crew._fetcher  # type: ignore[union-attr]  # it runs
            await wait_until(lambda: fetcher._pauses)
            before = len(claims)
            for _ in range(20):
                await store.enqueue("t", {}, queue="mail")
            await wait_finished(store, await store.enqueue("t", {}, priority=1))
            assert len(claims) - before < 10
            assert not crew.heard.of(events.Unserved)
    assert len(gate.started) == 2


async def test_a_suspect_of_a_paused_queue_does_not_hold_up_others(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    suspect = await rows.make_job(connection, queue="mail", lost=1, attempts=1)
    await store.pause(queue="mail")
    gate = Gate()
    gate.go.set()
    async with working(store, {"t": gate}, idle_policy=SLEEPY):
        for _ in range(3):
            await wait_finished(store, await store.enqueue("t", {}))
        assert suspect not in gate.started
        await store.resume(queue="mail")
        assert (await wait_finished(store, suspect)).attempts == 2


async def test_a_task_is_paused_in_all_queues(store: PgJobStore) -> None:
    gate = Gate()
    gate.go.set()
    async with working(store, {"t": gate, "u": gate}, idle_policy=SLEEPY):
        await store.pause(task="t")
        held = [await store.enqueue("t", {}), await store.enqueue("t", {}, queue="mail", priority=9)]
        free = await store.enqueue("u", {})
        await wait_finished(store, free)
        assert gate.started == [free]
        await store.resume(task="t")
        for job_id in held:
            await wait_finished(store, job_id)


async def test_behind_a_pooler_a_beat_tells_of_pause_and_resume(dsn: str, connection: asyncpg.Connection) -> None:
    async with pgbouncer(dsn, pool_size=10) as pooler, PgJobStore(pooler.dsn) as store:
        gate = Gate()
        gate.go.set()
        async with working(store, {"t": gate}, idle_policy=IdlePollPolicy(0.05, 0.05)) as crew:
            await crew.heard.wait_for(events.WorkerStarted)
            await store.pause(queue="mail")
            fetcher = crew.worker._crew._fetcher  # type: ignore[union-attr]  # it runs
            await wait_until(lambda: fetcher._pauses)
            job_id = await store.enqueue("t", {}, queue="mail")
            await wait_finished(store, await store.enqueue("t", {}))
            assert len(gate.started) == 1
            await store.resume(queue="mail")
            await wait_finished(store, job_id)


async def test_a_paused_task_hides_no_other_however_many_of_its_jobs_wait_in_front(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    await connection.execute(
        "INSERT INTO pqrun.jobs (job_type, status) SELECT 'paused', 'READY' FROM generate_series(1, 25000)"
    )
    await store.pause(task="paused")
    gate = Gate()
    gate.go.set()
    async with working(store, {"paused": gate, "t": gate}) as crew:
        behind = await store.enqueue("t", {})
        await wait_finished(store, behind)
        # And one that comes back below the cursor, among them: the next scan gets through to it.
        fetcher = crew.worker._crew._fetcher  # type: ignore[union-attr]  # it runs
        await wait_until(lambda: fetcher._lanes.boundaries(time.monotonic(), from_start=False)[0][1] > 20_000)
        returned = await rows.make_job(connection, place=12_345)
        await wait_finished(store, returned)
    assert gate.started == [behind, returned]


async def test_a_row_that_somebody_holds_makes_no_worker_spin_and_leaves_no_slot_idle(
    store: PgJobStore, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, other, last = [await store.enqueue("t", {}) for _ in range(3)]
    gate = Gate()
    gate.go.set()
    with counting_claims(monkeypatch) as claims:
        async with connection.transaction():
            await connection.execute("SELECT FROM pqrun.jobs_active WHERE id = $1 FOR UPDATE", held)
            async with working(store, {"t": gate}, idle_policy=SLEEPY):
                await wait_finished(store, other)
                await wait_finished(store, last)
                later = await store.enqueue("t", {})
                await wait_finished(store, later)
    assert gate.started == [other, last, later]
    assert len(claims) < 50


async def test_a_paused_task_hides_no_higher_priority_behind_it_while_lower_ones_fill_every_claim(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    await connection.execute(
        "INSERT INTO pqrun.jobs (job_type, priority, status) SELECT 'paused', 10, 'READY' FROM generate_series(1, 3000)"
    )
    await store.pause(task="paused")
    is_over = False

    async def flood(ctx: Context) -> None:
        if not is_over:
            await store.enqueue("flood", {})

    await connection.execute(
        "INSERT INTO pqrun.jobs (job_type, status) SELECT 'flood', 'READY' FROM generate_series(1, 3000)"
    )
    gate = Gate()
    gate.go.set()
    async with working(store, {"paused": gate, "flood": flood, "t": gate}, idle_policy=SLEEPY) as crew:
        await crew.heard.wait_for(events.Done, count=100)
        behind = await store.enqueue("t", {}, priority=10)
        await wait_finished(store, behind)
        is_over = True
