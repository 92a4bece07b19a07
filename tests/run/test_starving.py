"""Ageing, with a real worker on a real database: what higher priorities keep waiting starts within the bound."""

import itertools
from typing import Any

import asyncpg
import pytest

from pqrun.job.policy import IdlePollPolicy
from pqrun.run import ageing
from pqrun.run.ageing import AGEING_SHARE
from pqrun.run.context import JobContext
from pqrun.store import PgJobStore
from pqrun.store.claiming import Claimer, Lane
from tests.run.working import wait_finished, working
from tests.support.database import connected
from tests.support.waiting import wait_until

Context = JobContext[Any]

SLEEPY = IdlePollPolicy(3_600.0, 3_600.0)
BACKLOG = 50
"""Jobs of the high priority that wait, always: each that starts adds another."""


class Flood:
    """A handler of the high priority that adds a job for each that it runs, until told to stop."""

    def __init__(self, store: PgJobStore, order: list[str]) -> None:
        self._store = store
        self._order = order
        self.is_over = False

    async def __call__(self, ctx: Context) -> None:
        self._order.append("high")
        if not self.is_over:
            await self._store.enqueue("high", {}, priority=10)


class Noted:
    """Each claim of this process: the lanes it looked into, and what came."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.claims: list[list[Lane]] = []
        real = Claimer.claim

        async def claim(claimer: Claimer, lanes: Any, *arguments: Any, **options: Any) -> Any:
            self.claims.append([lane for lane, _ in lanes])
            return await real(claimer, lanes, *arguments, **options)

        monkeypatch.setattr(Claimer, "claim", claim)

    def of(self, lane: Lane) -> int:
        """How many claims looked for this lane before any of a higher priority."""
        return sum(lanes[:1] == [lane] for lanes in self.claims)


def noting(order: list[str], name: str) -> Any:
    async def handler(ctx: Context) -> None:
        order.append(name)

    return handler


async def fill(store: PgJobStore) -> None:
    for _ in range(BACKLOG):
        await store.enqueue("high", {}, priority=10)


@pytest.mark.parametrize("concurrency", [1, 4])
async def test_the_lowest_priority_gets_its_part_of_the_starts_under_constant_load(
    store: PgJobStore, monkeypatch: pytest.MonkeyPatch, concurrency: int
) -> None:
    monkeypatch.setattr(ageing, "AGEING_SECONDS", 0.3)
    order: list[str] = []
    flood = Flood(store, order)
    await fill(store)
    low = [await store.enqueue("low", {}, priority=-5) for _ in range(5)]
    handlers = {"high": flood, "low": noting(order, "low")}
    async with working(store, handlers, concurrency=concurrency, idle_policy=SLEEPY):
        await wait_finished(store, low[0])
        assert order.index("low") > BACKLOG  # strict priority until then
        for job_id in low[1:]:
            await wait_finished(store, job_id)
        flood.is_over = True
    assert len(low) <= len(order) / (AGEING_SHARE - 1) + 1  # and no more than its part


async def test_one_at_a_time_every_tenth_start_is_a_starved_ones(
    store: PgJobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ageing, "AGEING_SECONDS", 0.3)
    monkeypatch.setattr("pqrun.run.prefetch.PREFETCH_MAX", 0)  # starts are counted, not claims ahead
    order: list[str] = []
    flood = Flood(store, order)
    await fill(store)
    low = [await store.enqueue("low", {}, priority=-5) for _ in range(5)]
    lower = [await store.enqueue("lower", {}, priority=-9) for _ in range(5)]
    handlers = {"high": flood, "low": noting(order, "low"), "lower": noting(order, "lower")}
    async with working(store, handlers, idle_policy=SLEEPY):
        for job_id in [*low, *lower]:
            await wait_finished(store, job_id)
        flood.is_over = True
    places = [place for place, name in enumerate(order) if name != "high"]
    assert {later - earlier for earlier, later in itertools.pairwise(places)} == {AGEING_SHARE}
    turns = [order[place] for place in places]
    assert sorted(turns[:2]) == ["low", "lower"]  # in turns
    assert turns[2:4] == turns[:2]


async def test_without_the_rule_the_lowest_would_never_start(
    store: PgJobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ageing, "AGEING_SECONDS", 3_600.0)
    order: list[str] = []
    flood = Flood(store, order)
    await fill(store)
    low = await store.enqueue("low", {}, priority=-5)
    async with working(store, {"high": flood, "low": noting(order, "low")}, idle_policy=SLEEPY):
        await wait_until(lambda: len(order) > 10 * BACKLOG)
        assert "low" not in order
        flood.is_over = True
        await wait_finished(store, low)


async def test_a_starved_lane_with_only_locked_and_unserved_jobs_costs_few_claims(
    dsn: str, store: PgJobStore, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ageing, "AGEING_SECONDS", 0.1)
    order: list[str] = []
    flood = Flood(store, order)
    await fill(store)
    await store.enqueue("nobodys", {}, priority=-5)
    locked = await store.enqueue("low", {}, priority=-7)
    noted = Noted(monkeypatch)
    async with connected(dsn) as other, other.transaction():
        await other.execute("SELECT FROM pqrun.jobs WHERE id = $1 FOR UPDATE", locked)
        async with working(store, {"high": flood, "low": noting(order, "low")}, idle_policy=SLEEPY):
            await wait_until(lambda: noted.of(Lane("default", -5)) + noted.of(Lane("default", -7)) >= 3)
            starved = noted.of(Lane("default", -5)) + noted.of(Lane("default", -7))
            assert starved <= len(order) / (AGEING_SHARE - 1) + 1
            flood.is_over = True
            await wait_until(lambda: order.count("high") >= BACKLOG)
    assert "low" not in order


async def test_a_starved_job_that_commits_late_is_found(
    dsn: str, store: PgJobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its place lies below what was looked at: no ordinary claim from the start ever comes that far."""
    monkeypatch.setattr(ageing, "AGEING_SECONDS", 0.3)
    order: list[str] = []
    flood = Flood(store, order)
    await fill(store)
    async with connected(dsn) as other:
        late = other.transaction()
        await late.start()
        late_id = await store.enqueue("low", {}, priority=-5, connection=other)
        low = [await store.enqueue("low", {}, priority=-5) for _ in range(3)]
        async with working(store, {"high": flood, "low": noting(order, "low")}, idle_policy=SLEEPY):
            for job_id in low:
                await wait_finished(store, job_id)
            await late.commit()
            await wait_finished(store, late_id)
            flood.is_over = True


async def test_a_new_task_of_a_low_priority_is_started_although_others_are_fetched_ahead(
    store: PgJobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has never ended here is claimed into a free slot only, and under constant load there is none: one is kept for it."""
    monkeypatch.setattr(ageing, "AGEING_SECONDS", 0.3)
    order: list[str] = []
    flood = Flood(store, order)
    for _ in range(10):
        await fill(store)
    once = await store.enqueue("low", {}, priority=-5, max_attempts=1)
    async with working(store, {"high": flood, "low": noting(order, "low")}, concurrency=4, idle_policy=SLEEPY):
        await wait_finished(store, once)
        flood.is_over = True


async def test_queues_of_one_priority_share_a_worker(store: PgJobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pqrun.run.prefetch.PREFETCH_MAX", 0)
    order: list[str] = []

    async def handler(ctx: Context) -> None:
        order.append(ctx.job.queue)

    for queue in ("full", "other"):
        for _ in range(20):
            await store.enqueue("t", {}, queue=queue)
    async with working(store, {"t": handler}, idle_policy=SLEEPY):
        await wait_until(lambda: len(order) == 40)
    assert order[:20].count("other") == 10
