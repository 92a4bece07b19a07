"""Plans of what the web pages read: a page costs what it looks at, whatever else the tables hold."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest
import pytest_asyncio

from pqrun.store.pages import PAGE_SETTINGS
from tests.store.test_plans import Explainer
from tests.support.database import Databases, connected

pytestmark = pytest.mark.asyncio(loop_scope="module")

ACTIVE = 30_000
HISTORY = 60_000
LOOK = 1_000
NOW = datetime(2026, 6, 1, tzinfo=UTC)
EARLY = datetime(2016, 6, 1, tzinfo=UTC)

SEED = f"""
INSERT INTO pqrun.jobs (job_type, payload) SELECT 't', jsonb_build_object('n', n) FROM generate_series(1, {ACTIVE}) n;
INSERT INTO pqrun.jobs (job_type, status, attempts, finished_at)
SELECT 't', 'FAILED', 1, clock_timestamp() - n * interval '1 s' FROM generate_series(1, {HISTORY}) n;
INSERT INTO pqrun.audit (actor, action, target, job_id, outcome) SELECT 'a', 'retry', 't', n, 'done' FROM generate_series(1, 20000) n;
INSERT INTO pqrun.attempts (job_id, started_at, ended_at, number, job_type, queue, kind, status_after, fingerprint)
SELECT {ACTIVE} + n, clock_timestamp(), clock_timestamp() - n * interval '1 s', 1, 't', 'q', 'error', 'FAILED', 'print' || n % 7
  FROM generate_series(1, {HISTORY}) n;
ANALYZE pqrun.attempts;
ANALYZE pqrun.jobs_active, pqrun.jobs_finished, pqrun.audit;
"""

modes = pytest.mark.parametrize("generic", [False, True], ids=["for its arguments", "generic"])


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def seeded(databases: Databases) -> AsyncIterator[str]:
    """A database with many jobs of either kind."""
    dsn = await databases.clone()
    async with connected(dsn) as connection:
        await connection.execute(SEED)
    yield dsn
    await databases.drop(dsn)


@asynccontextmanager
async def explaining(dsn: str) -> AsyncIterator[Explainer]:
    # What makes transactions read-only is left out: EXECUTE of EXPLAIN runs in one that PREPARE has begun.
    settings = PAGE_SETTINGS.partition("; SET default_transaction_read_only")[0]
    async with connected(dsn) as connection:
        await connection.execute(settings)
        yield Explainer(connection)


def browsing(walk: str, after: int, since: datetime | None = None) -> tuple[object, ...]:
    """The arguments of a list whose filter asks for everything that can be asked, and matches nothing."""
    asked = ["READY", "FAILED"], ["t"], ["default"], [0], ["k1"], "x", '{"n": -1}'
    times = EARLY, NOW, EARLY, NOW, EARLY, NOW
    return walk, after, 2**62, since, LOOK, [], *asked, *times, ["t%"], ["w"], 0, 9, 50


@modes
@pytest.mark.parametrize(
    ("walk", "indexes"),
    [
        ("newest active", {"jobs_active_pkey"}),
        ("newest finished", {"jobs_finished_pkey"}),
        ("newest", {"jobs_active_pkey", "jobs_finished_pkey"}),
        ("active", {"jobs_active_pkey"}),
        ("latest", {"jobs_finished_at"}),
    ],
)
async def test_a_list_looks_at_so_many_rows_of_its_part(
    seeded: str, walk: str, indexes: set[str], generic: bool
) -> None:
    after = 0 if walk == "active" else 2**62
    async with explaining(seeded) as explainer:
        plan = await explainer.plan("page_jobs", *browsing(walk, after, NOW), generic=generic)
    assert set(plan.indexes) <= indexes, plan.text
    assert not plan.scanned, plan.text
    assert plan.buffers <= LOOK // 5, (plan.buffers, plan.text)


@modes
async def test_counts_end_at_their_cap(seeded: str, generic: bool) -> None:
    async with explaining(seeded) as explainer:
        active = await explainer.plan("count_active", LOOK, generic=generic)
        ages = await explainer.plan("see_ages", "default", [1.0, 60.0], LOOK, generic=generic)
        running = await explainer.plan("list_running_in", "default", LOOK, 100, generic=generic)
    for plan, index in ((active, "jobs_active_pkey"), (ages, "jobs_active_ready"), (running, "jobs_active_running")):
        assert set(plan.indexes) == {index}, plan.text
        assert plan.buffers <= LOOK // 5, (plan.buffers, plan.text)


@modes
async def test_the_log_of_a_job_is_found_by_its_indexes(seeded: str, generic: bool) -> None:
    async with explaining(seeded) as explainer:
        plan = await explainer.plan("audit_job", 77, 50, generic=generic)
        page = await explainer.plan("page_audit", 2**62, 50, generic=generic)
    assert set(plan.indexes) == {"audit_job", "audit_made"}, plan.text
    assert plan.buffers <= 15, plan.text
    assert page.buffers <= 10, page.text


@modes
async def test_the_jobs_of_a_group_are_found_by_its_attempts_in_pieces(seeded: str, generic: bool) -> None:
    async with explaining(seeded) as explainer:
        found = await explainer.plan("find_group_jobs", "print3", 2**62, LOOK, generic=generic)
        kept = await explainer.plan(
            "keep_group_jobs", "print3", list(range(ACTIVE + 1, ACTIVE + LOOK)), generic=generic
        )
        hours = await explainer.plan("count_group_hours", [f"print{n}" for n in range(7)], 200, generic=generic)
    for plan, indexes in (
        (found, {"attempts_fingerprint", "attempts_pkey", "jobs_finished_pkey"}),
        (kept, {"attempts_pkey", "jobs_finished_pkey"}),
        (hours, {"attempts_fingerprint"}),
    ):
        assert set(plan.indexes) == indexes, plan.text
        assert not plan.scanned, plan.text
        assert plan.buffers <= LOOK * 10, (plan.buffers, plan.text)


@modes
async def test_what_retention_would_remove_is_counted_to_its_cap(seeded: str, generic: bool) -> None:
    async with explaining(seeded) as explainer:
        plan = await explainer.plan("count_old", 10.0, LOOK, generic=generic)
    assert set(plan.indexes) == {"jobs_finished_at"}, plan.text
    assert plan.buffers <= LOOK // 5, (plan.buffers, plan.text)


@modes
async def test_the_oldest_of_the_audit_log_are_the_first_of_its_key(seeded: str, generic: bool) -> None:
    async with explaining(seeded) as explainer:
        plan = await explainer.plan("prune_audit", 1_000_000.0, LOOK, generic=generic)
        skip = await explainer.plan("skip_schedule", "s", NOW, 1, NOW, generic=generic)
    assert "audit_pkey" in plan.indexes, plan.text
    assert plan.buffers <= LOOK * 5, (plan.buffers, plan.text)
    assert skip.buffers <= 5, skip.text


@modes
async def test_what_stands_around_a_job_is_found_by_keys(seeded: str, generic: bool) -> None:
    async with explaining(seeded) as explainer:
        plan = await explainer.plan("see_surroundings", 77, "t", 6, generic=generic)
    assert "jobs_active_pkey" in plan.indexes, plan.text
    assert plan.buffers <= 20, plan.text
