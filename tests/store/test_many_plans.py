"""Plans of what is done to many jobs: a page costs the rows that it looks at, a piece its own, whatever else the tables hold."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest
import pytest_asyncio

from pqrun.store.selecting import SELECT_SETTINGS
from tests.store.test_plans import BUFFERS_PER_ROW, Explainer, Plan
from tests.support.database import Databases, connected

pytestmark = pytest.mark.asyncio(loop_scope="module")

ACTIVE = 50_000
HISTORY = 100_000
PAGE = 1_000
PIECE = 100
NOW = datetime(2026, 6, 1, tzinfo=UTC)
EARLY = NOW - timedelta(days=3650)

SEED = f"""
INSERT INTO pqrun.jobs (job_type, dedupe_key, payload) SELECT 't', 'k' || n, jsonb_build_object('n', n) FROM generate_series(1, {ACTIVE}) n;
INSERT INTO pqrun.jobs (job_type, status, attempts, finished_at, dedupe_key)
SELECT 't', 'FAILED', 1, '2026-06-01 UTC'::timestamptz - n * interval '1 s', 'f' || n FROM generate_series(1, {HISTORY}) n;
ANALYZE pqrun.jobs_active, pqrun.jobs_finished;
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
    async with connected(dsn) as connection:
        await connection.execute(SELECT_SETTINGS)
        yield Explainer(connection)


async def ids(dsn: str, table: str) -> list[int]:
    async with connected(dsn) as connection:
        rows = await connection.fetch(f"SELECT id FROM pqrun.{table} ORDER BY id LIMIT {PIECE} OFFSET 5000")
    return [row["id"] for row in rows]


def page(
    walk: str, after: int, *, since: datetime | None = None, chosen: list[int] | None = None
) -> tuple[object, ...]:
    """The arguments of a page whose filter asks for everything that can be asked."""
    place = walk, after, 2**62, since, PAGE, chosen or []
    asked = ["READY", "FAILED"], ["t"], ["default"], [0], ["k1"], "x", '{"n": 1}'
    return *place, *asked, EARLY, NOW, since, NOW, EARLY, NOW, ["t%"], ["w"], 1, 2, None


def assert_reads_only(plan: Plan, indexes: set[str], rows: int) -> None:
    assert set(plan.indexes) == indexes, plan.text
    assert not plan.scanned, plan.text
    assert plan.buffers <= rows, (plan.buffers, plan.text)


@modes
@pytest.mark.parametrize("walk", ["active", "finished"])
async def test_a_page_by_id_reads_its_own_rows_of_its_own_part(seeded: str, walk: str, generic: bool) -> None:
    first, *_ = await ids(seeded, f"jobs_{walk}")
    async with explaining(seeded) as explainer:
        plan = await explainer.plan("page_jobs", *page(walk, first), generic=generic)
    assert_reads_only(plan, {f"jobs_{walk}_pkey"}, PAGE // 5)


@modes
async def test_a_page_by_the_time_of_the_end_reads_what_its_index_leads_to(seeded: str, generic: bool) -> None:
    since = NOW - timedelta(seconds=HISTORY // 2)
    async with explaining(seeded) as explainer:
        plan = await explainer.plan("page_jobs", *page("finished_at", 0, since=since), generic=generic)
        assert_reads_only(plan, {"jobs_finished_at"}, PAGE // 5)
        last = await explainer.plan(
            "page_jobs", *page("finished_at", 0, since=NOW - timedelta(seconds=5)), generic=generic
        )
        assert last.buffers < 50, last.text


@modes
@pytest.mark.parametrize(
    ("walk", "table", "indexes"),
    [
        ("newest", "jobs_active", {"jobs_active_pkey", "jobs_finished_pkey"}),
        ("newest active", "jobs_active", {"jobs_active_pkey"}),
        ("newest finished", "jobs_finished", {"jobs_finished_pkey"}),
    ],
)
async def test_a_page_of_the_newest_reads_its_own_rows_of_its_own_part(
    seeded: str, walk: str, table: str, indexes: set[str], generic: bool
) -> None:
    *_, last = await ids(seeded, table)
    async with explaining(seeded) as explainer:
        plan = await explainer.plan("page_jobs", *page(walk, last), generic=generic)
    assert_reads_only(plan, indexes, PAGE // 5)


@modes
async def test_a_page_of_the_latest_ends_reads_what_its_index_leads_to(seeded: str, generic: bool) -> None:
    async with explaining(seeded) as explainer:
        for since in (NOW, NOW - timedelta(seconds=HISTORY // 2)):
            arguments = list(page("latest", 2**62, since=since))
            arguments[15] = EARLY  # finished from
            plan = await explainer.plan("page_jobs", *arguments, generic=generic)
            assert set(plan.indexes) <= {"jobs_finished_at"}, plan.text
            assert plan.buffers <= PAGE // 5, plan.text


@modes
async def test_what_explains_a_job_counts_no_more_than_its_cap(seeded: str, generic: bool) -> None:
    cap = 1_000
    async with connected(seeded) as connection:
        last = await connection.fetchval("SELECT max(id) FROM pqrun.jobs_active")
    async with explaining(seeded) as explainer:
        plan = await explainer.plan("explain", last, 10.0, cap, 20, generic=generic)
        lines = await explainer.plan("get_lines", await ids(seeded, "jobs_active"), generic=generic)
    assert not plan.scanned & {"jobs_active", "jobs_finished"}, plan.text
    assert plan.buffers <= 2 * cap, (plan.buffers, plan.text)
    assert_reads_only(lines, {"jobs_active_pkey", "jobs_finished_pkey"}, PIECE * 10)


@modes
async def test_a_page_of_ids_reads_those_alone(seeded: str, generic: bool) -> None:
    chosen = await ids(seeded, "jobs_active") + await ids(seeded, "jobs_finished")
    async with explaining(seeded) as explainer:
        plan = await explainer.plan("page_jobs", *page("ids", 0, chosen=chosen), generic=generic)
        both = {"jobs_active_pkey", "jobs_finished_pkey"}
        assert_reads_only(plan, both, len(chosen) * 10)
        assert_reads_only(await explainer.plan("get_many", chosen, generic=generic), both, len(chosen) * 10)
        inspected = await explainer.plan("inspect_many", chosen, generic=generic)
        assert_reads_only(inspected, both | {"jobs_active_dedupe"}, len(chosen) * 10)


@modes
async def test_a_walk_begins_with_a_look_at_the_ends_of_two_indexes(seeded: str, generic: bool) -> None:
    async with explaining(seeded) as explainer:
        plan = await explainer.plan("begin_selection", generic=generic)
    assert_reads_only(plan, {"jobs_active_pkey", "jobs_finished_pkey"}, 20)


@modes
@pytest.mark.parametrize(
    ("name", "table", "states", "more"),
    [
        ("cancel_many", "jobs_active", ["SCHEDULED", "READY", "RUNNING"], ()),
        ("retry_many", "jobs_finished", ["FAILED", "CANCELLED"], ()),
        ("delete_many", "jobs_active", ["READY", "FAILED"], ()),
        ("delete_many", "jobs_finished", ["READY", "FAILED"], ()),
        ("relane_many", "jobs_active", ["SCHEDULED", "READY"], ("mail", None)),
        ("relane_many", "jobs_active", ["SCHEDULED", "READY"], (None, 5)),
    ],
)
async def test_a_piece_finds_its_rows_by_primary_key_alone(
    seeded: str, name: str, table: str, states: list[str], more: tuple[object, ...], generic: bool
) -> None:
    chosen = await ids(seeded, table)
    async with explaining(seeded) as explainer:
        plan = await explainer.plan(name, chosen, states, *more, generic=generic)
    assert set(plan.indexes) <= {"jobs_active_pkey", "jobs_finished_pkey", "attempts_pkey", "progress_pkey"}, plan.text
    assert not plan.scanned & {"jobs_active", "jobs_finished"}, plan.text
    assert plan.buffers <= 2 * PIECE * BUFFERS_PER_ROW, (plan.buffers, plan.text)


async def test_plans_made_while_the_tables_were_empty_use_indexes(databases: Databases) -> None:
    dsn = await databases.clone()
    arguments: dict[str, tuple[object, ...]] = {
        "begin_selection": (),
        "page_jobs": page("active", 0),
        "explain": (1, 10.0, 10, 20),
        "list_workers": (10.0, 10),
        "get_lines": ([1],),
        "inspect_many": ([1],),
        "get_many": ([1],),
        "cancel_many": ([1], ["READY"]),
        "retry_many": ([1], ["FAILED"]),
        "delete_many": ([1], ["FAILED"]),
        "relane_many": ([1], ["READY"], "q", None),
    }
    async with explaining(dsn) as explainer, connected(dsn) as connection:
        for table in ("jobs_active", "jobs_finished"):
            await connection.execute(f"VACUUM ANALYZE pqrun.{table}")
        for name, values in arguments.items():
            plan = await explainer.plan(name, *values, generic=True)
            assert not plan.planned_scans & {"jobs_active", "jobs_finished"}, (name, plan.text)
    await databases.drop(dsn)
