"""Plans of the hot statements, with what makes plans go wrong: dead rows that a held snapshot protects, and a mass of jobs for later.

Each statement runs as a prepared one, with a plan for its arguments and with a generic plan, under the settings of the connection that
really runs it: kept connections set the planner's, the pool's do not.
"""

import json
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple

import asyncpg
import pytest
import pytest_asyncio

from pqrun.store.link import PLANNER_SETTINGS
from pqrun.store.statements import Statements
from tests.support.database import Databases, connected

pytestmark = pytest.mark.asyncio(loop_scope="module")

DEAD = 100_000
LATER = 200_000
BATCH = 100
DEAD_PAGES = DEAD // 100
"""Many more than these hold the dead rows; a scan of their index touches them all."""

BUFFERS_PER_ROW = 60
"""For a row that is found, locked, written and indexed anew: some three pages in each of six indexes, and two tables."""

SEED = f"""
INSERT INTO pqrun.workers (worker_id) VALUES ('w');
INSERT INTO pqrun.jobs (job_type, dedupe_key) SELECT 't', 'dead' || n FROM generate_series(1, {DEAD}) n;
UPDATE pqrun.jobs_active SET status = 'RUNNING', attempts = 1, claim_id = id, worker = 1, locked_at = now(), locked_by = 'w';
WITH gone AS (DELETE FROM pqrun.jobs_active RETURNING *)
INSERT INTO pqrun.jobs_finished (id, job_type, status, attempts, claim_id, locked_at, locked_by, finished_at)
SELECT id, job_type, 'DONE', 1, claim_id, locked_at, locked_by, now() - interval '1 h' FROM gone;
INSERT INTO pqrun.jobs (job_type, status, run_after) SELECT 't', 'SCHEDULED', now() - interval '1 h' FROM generate_series(1, {DEAD // 2});
DELETE FROM pqrun.jobs_active;
INSERT INTO pqrun.jobs (job_type, status, run_after, priority)
SELECT 't', 'SCHEDULED', now() + n * interval '1 min', 10 FROM generate_series(1, {LATER}) n;
INSERT INTO pqrun.jobs (job_type, dedupe_key) SELECT 't', 'k' || n FROM generate_series(1, 1000) n;
INSERT INTO pqrun.jobs (job_type, status, attempts, claim_id, worker, locked_at, locked_by)
SELECT 't', 'RUNNING', 1, nextval('pqrun.claims_id_seq'), 1, now(), 'w' FROM generate_series(1, 500) n;
INSERT INTO pqrun.jobs (job_type, status, run_after) SELECT 't', 'SCHEDULED', now() FROM generate_series(1, {BATCH}) n;
ANALYZE pqrun.jobs_active, pqrun.jobs_finished, pqrun.workers;
"""


class Plan(NamedTuple):
    """What a statement did, as EXPLAIN tells."""

    indexes: dict[str, int]
    """The indexes that were read, and the pages touched through each, those of the table included."""
    scanned: set[str]
    planned_scans: set[str]
    """Tables to be scanned whole, even if it did not come to that."""
    planned_indexes: set[str]
    buffers: int
    text: str


class Explainer:
    """Runs statements on one connection and looks at their plans; nothing that they write stays."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection
        self._statements = Statements("pqrun")

    async def plan(self, name: str, *arguments: object, generic: bool) -> Plan:
        values = ", ".join(map(literal, arguments))
        mode = "force_generic_plan" if generic else "force_custom_plan"
        transaction = self._connection.transaction()
        await transaction.start()
        await self._connection.execute(f"SET LOCAL plan_cache_mode = {mode}")
        await self._connection.execute(f"PREPARE explained AS {self._statements[name]}")
        told = await self._connection.fetchval(
            f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE explained{f'({values})' if arguments else ''}"
        )
        await self._connection.execute("DEALLOCATE explained")
        await transaction.rollback()
        root = json.loads(told)[0]["Plan"]
        nodes = list(nodes_of(root))
        scans = [node for node in nodes if node["Node Type"] == "Seq Scan"]
        return Plan(
            pages_by_index(nodes),
            {node["Relation Name"] for node in scans if node["Actual Loops"]},
            {node["Relation Name"] for node in scans},
            {node["Index Name"] for node in nodes if "Index Name" in node},
            pages_of(root),
            told,
        )


def nodes_of(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from nodes_of(child)


def pages_of(node: dict[str, Any]) -> int:
    return int(node["Shared Hit Blocks"] + node["Shared Read Blocks"])


def pages_by_index(nodes: list[dict[str, Any]]) -> dict[str, int]:
    pages: dict[str, int] = {}
    for node in nodes:
        if "Index Name" in node and node["Actual Loops"]:
            pages[node["Index Name"]] = pages.get(node["Index Name"], 0) + pages_of(node)
    return pages


def literal(value: object) -> str:
    """An argument as SQL text; EXECUTE gives it the parameter's type."""
    if value is None or isinstance(value, bool | int | float):
        return "NULL" if value is None else str(value)
    if isinstance(value, list):
        items = ("NULL" if item is None else '"' + str(item).replace('"', '\\"') + '"' for item in value)
        return "'{" + ",".join(items) + "}'"
    return "'" + str(value).replace("'", "''") + "'"


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def seeded(databases: Databases) -> AsyncIterator[str]:
    """A database in which a forgotten transaction keeps every dead row."""
    dsn = await databases.clone()
    async with connected(dsn) as forgotten, forgotten.transaction(isolation="repeatable_read"):
        await forgotten.fetch("SELECT FROM pqrun.jobs")
        async with connected(dsn) as connection:
            await connection.execute(SEED)
        yield dsn
    await databases.drop(dsn)


@asynccontextmanager
async def explaining(dsn: str, *, kept: bool) -> AsyncIterator[Explainer]:
    async with connected(dsn) as connection:
        if kept:
            await connection.execute(PLANNER_SETTINGS)
        yield Explainer(connection)


async def value(dsn: str, query: str) -> Any:
    async with connected(dsn) as connection:
        return await connection.fetchval(query)


def listed(items: Iterable[object]) -> str:
    """An array as settle.sql takes numbers and states."""
    return "{" + ",".join(map(str, items)) + "}"


async def ids(dsn: str, status: str, count: int = BATCH) -> tuple[list[int], list[int]]:
    """The ids and claims of so many live jobs, ascending."""
    async with connected(dsn) as connection:
        query = "SELECT id, claim_id FROM pqrun.jobs_active WHERE status = $1 ORDER BY id LIMIT $2"
        rows = await connection.fetch(query, status, count)
    return [row["id"] for row in rows], [row["claim_id"] for row in rows]


BY_PRIMARY_KEY = {
    "claim": {"jobs_active_ready", "workers_pkey"},
    "promote": {"jobs_active_due", "jobs_active_pkey"},
    "settle": {"jobs_active_pkey", "attempts_pkey"},
    "settle_done": {"jobs_active_pkey"},
    "renew": {"jobs_active_pkey"},
    "find_claim": {"jobs_finished_pkey"},
}
"""Statements that must come to rows by primary key, and the index that leads them there."""

modes = pytest.mark.parametrize("generic", [False, True], ids=["for its arguments", "generic"])
homes = pytest.mark.parametrize("kept", [True, False], ids=["kept connection", "pool"])


def assert_cheap(plan: Plan, indexes: set[str], rows: int) -> None:
    assert set(plan.indexes) == indexes, plan.text
    assert not plan.scanned & {"jobs_active", "jobs_finished"}, plan.text
    assert plan.buffers <= rows * BUFFERS_PER_ROW + 200, (plan.buffers, plan.text)


def claim_arguments(cursor: int) -> tuple[object, ...]:
    return ["default"], [0], [cursor], ["t"], BATCH, BATCH + 100, 1, "w", BATCH, ["t"], []


@modes
async def test_a_claim_behind_its_cursor_costs_its_batch_alone(seeded: str, generic: bool) -> None:
    cursor = await value(seeded, "SELECT min(place) - 1 FROM pqrun.jobs_active WHERE status = 'READY'")
    async with explaining(seeded, kept=True) as explainer:
        plan = await explainer.plan("claim", *claim_arguments(cursor), generic=generic)
        assert_cheap(plan, {"jobs_active_ready", "workers_pkey"}, BATCH)
        assert plan.indexes["jobs_active_ready"] <= BATCH
        without = await explainer.plan("claim", *claim_arguments(0), generic=generic)
        assert (
            without.indexes["jobs_active_ready"] > DEAD_PAGES
        )  # the dead rows are there: this is what the cursor saves


@modes
async def test_an_empty_claim_costs_next_to_nothing_beside_a_mass_of_jobs_for_later(seeded: str, generic: bool) -> None:
    last = await value(seeded, "SELECT last_value FROM pqrun.jobs_place_seq")
    async with explaining(seeded, kept=True) as explainer:
        lanes = [["default"] * 2, [10, 0], [0, last]]
        plan = await explainer.plan("claim", *lanes, *claim_arguments(0)[3:], generic=generic)
        assert plan.buffers < 100, plan.text


@modes
@homes
async def test_a_settle_finds_its_rows_by_primary_key_alone(seeded: str, kept: bool, generic: bool) -> None:
    job_ids, claims = await ids(seeded, "RUNNING")
    rows = listed(job_ids), listed(claims)
    none = [0] * BATCH
    arguments: tuple[object, ...] = (
        *rows,
        listed(["DONE"] * BATCH),
        [],
        [],
        listed(none),
        [],
        [],
        [],
        [],
        [],
        job_ids[:3],
        *([], [], [], [], 20),
    )
    async with explaining(seeded, kept=kept) as explainer:
        plan = await explainer.plan("settle", *arguments, generic=generic)
        assert_cheap(plan, {"jobs_active_pkey"}, 2 * BATCH)
        lean = await explainer.plan("settle_done", *rows, [], listed(none), job_ids[:3], generic=generic)
        assert_cheap(lean, {"jobs_active_pkey"}, 2 * BATCH)
        retried = listed(["SCHEDULED", "READY"] * (BATCH // 2))
        back: tuple[object, ...] = (*rows, retried, [], [], "{}", [1.0] * BATCH, none, none, none, none, [])
        kept_none = await explainer.plan("settle", *back, [], [], [], [], 20, generic=generic)
        assert_cheap(kept_none, {"jobs_active_pkey"}, 2 * BATCH)
        kept_all = await explainer.plan("settle", *back, ["error"] * BATCH, [], [], [], 20, generic=generic)
        # A table that is empty is scanned where the connection does not forbid it.
        assert_cheap(kept_all, {"jobs_active_pkey", *(["attempts_pkey"] if kept else [])}, 3 * BATCH)


@modes
@homes
async def test_a_renewal_finds_its_rows_by_primary_key_alone(seeded: str, kept: bool, generic: bool) -> None:
    async with explaining(seeded, kept=kept) as explainer:
        plan = await explainer.plan("renew", *await ids(seeded, "RUNNING"), generic=generic)
        assert_cheap(plan, {"jobs_active_pkey"}, BATCH // 5)


@modes
async def test_reports_find_their_jobs_by_primary_key_and_compare_nothing_with_all(seeded: str, generic: bool) -> None:
    job_ids, claims = await ids(seeded, "RUNNING", 500)
    locks = {"jobs_active_pkey"}
    async with explaining(seeded, kept=True) as explainer:
        plan = await explainer.plan("report_progress", job_ids, claims, [0.5] * 500, ["half"] * 500, generic=generic)
        assert_cheap(plan, locks, 500)
        lost = [claim + 10**6 for claim in claims]
        assert_cheap(
            await explainer.plan("report_progress", job_ids, lost, [0.5] * 500, ["x"] * 500, generic=generic),
            locks,
            500,
        )
        for node in nodes_of(json.loads(plan.text)[0]["Plan"]):
            assert node.get("Rows Removed by Join Filter", 0) <= 10 * 500, plan.text
        plan = await explainer.plan("sweep_progress", 0, 1000, generic=generic)
        assert "progress_pkey" in plan.planned_indexes, plan.text
        assert not plan.planned_scans & {"progress", "jobs_active", "jobs_finished"}, plan.text


@modes
async def test_progress_is_found_by_primary_key(seeded: str, generic: bool) -> None:
    job_ids, _ = await ids(seeded, "RUNNING")
    async with explaining(seeded, kept=False) as explainer:
        plan = await explainer.plan("find_progress", job_ids + list(range(1, BATCH + 1)), generic=generic)
        assert not plan.scanned & {"jobs_active", "jobs_finished"}, plan.text
        assert {"jobs_active_pkey", "jobs_finished_pkey"} <= set(plan.indexes), plan.text


@modes
async def test_a_promotion_behind_its_cursor_costs_its_batch_alone(seeded: str, generic: bool) -> None:
    cursor = await value(
        seeded, "SELECT min(run_after) FROM pqrun.jobs_active WHERE status = 'SCHEDULED' AND run_after <= now()"
    )
    async with explaining(seeded, kept=True) as explainer:
        plan = await explainer.plan("promote", cursor, 1000, generic=generic)
        assert_cheap(plan, {"jobs_active_due", "jobs_active_pkey"}, BATCH)
        assert plan.indexes["jobs_active_due"] <= BATCH
        without = await explainer.plan("promote", datetime(2000, 1, 1, tzinfo=UTC), 1000, generic=generic)
        assert without.indexes["jobs_active_due"] > DEAD_PAGES / 2


@modes
async def test_a_survey_probes_each_lane_once(seeded: str, generic: bool) -> None:
    async with explaining(seeded, kept=True) as explainer:
        plan = await explainer.plan("survey", None, 1000, generic=generic)
        assert set(plan.indexes) == {"jobs_active_ready", "jobs_active_suspect"}, plan.text
        assert not plan.scanned & {"jobs_active"}, plan.text


@modes
async def test_keys_are_found_by_their_index(seeded: str, generic: bool) -> None:
    keys = [f"k{n}" for n in range(1, BATCH + 1)]
    async with explaining(seeded, kept=False) as explainer:
        plan = await explainer.plan("find_active", ["t"] * BATCH, keys, generic=generic)
        assert_cheap(plan, {"jobs_active_dedupe"}, BATCH // 5)


@modes
async def test_an_insert_of_many_joins_what_it_inserted_without_comparing_all_with_all(
    seeded: str, generic: bool
) -> None:
    count = 2000
    columns = [["t"] * count, ["{}"] * count, ["default"] * count, [0] * count, [5] * count, [None] * count]
    columns += [
        [f"new{n}" for n in range(count)],
        [None] * count,
        [None] * count,
        [None] * count,
        [1] * count,
        [None] * count,
    ]
    async with explaining(seeded, kept=False) as explainer:
        plan = await explainer.plan("enqueue", *columns, True, generic=generic)
    assert plan.buffers <= count * BUFFERS_PER_ROW, plan.text
    for node in nodes_of(json.loads(plan.text)[0]["Plan"]):
        assert node.get("Rows Removed by Join Filter", 0) <= 10 * count, plan.text


@modes
async def test_one_job_is_found_by_primary_key_wherever_it_is(seeded: str, generic: bool) -> None:
    active = await value(seeded, "SELECT min(id) FROM pqrun.jobs_active WHERE status = 'READY'")
    finished = await value(seeded, "SELECT min(id) FROM pqrun.jobs_finished")
    async with explaining(seeded, kept=False) as explainer:
        for job_id in (active, finished):
            plan = await explainer.plan("get", job_id, generic=generic)
            assert_cheap(plan, {"jobs_active_pkey", "jobs_finished_pkey"}, 1)
            plan = await explainer.plan("cancel", job_id, generic=generic)
            assert set(plan.indexes) <= {"jobs_active_pkey", "jobs_finished_pkey"}, plan.text
            assert not plan.scanned & {"jobs_active", "jobs_finished"}, plan.text
            assert plan.buffers < 200, plan.text
        plan = await explainer.plan("retry", finished, True, generic=generic)
        assert_cheap(plan, {"jobs_finished_pkey", "progress_pkey"}, 1)


@modes
async def test_ends_are_found_by_primary_key(seeded: str, generic: bool) -> None:
    job_ids, _ = await ids(seeded, "RUNNING")
    finished = list(range(1, BATCH + 1))
    async with explaining(seeded, kept=False) as explainer:
        plan = await explainer.plan("find_ends", job_ids + finished, generic=generic)
        assert_cheap(plan, {"jobs_active_pkey", "jobs_finished_pkey"}, BATCH)


@modes
async def test_a_piece_of_a_check_is_read_by_primary_key_from_its_boundary_on(seeded: str, generic: bool) -> None:
    job_ids, _ = await ids(seeded, "READY", 2)
    async with explaining(seeded, kept=True) as explainer:
        plan = await explainer.plan("page_waiting", job_ids[0], 2**62, BATCH, 10**6, ["t"], generic=generic)
        assert_cheap(plan, {"jobs_active_pkey"}, BATCH // 5)
        plan = await explainer.plan("count_waiting", job_ids[0], BATCH, 10, generic=generic)
        assert_cheap(plan, {"jobs_active_pkey"}, BATCH // 5)
        plan = await explainer.plan("find_waiting", job_ids, generic=generic)
        assert_cheap(plan, {"jobs_active_pkey"}, 2)


@modes
async def test_the_longest_running_are_found_among_those_that_run(seeded: str, generic: bool) -> None:
    async with explaining(seeded, kept=True) as explainer:
        plan = await explainer.plan("find_longest", 1_000, 10, generic=generic)
        assert set(plan.indexes) == {"jobs_active_running"}, plan.text
        assert not plan.scanned & {"jobs_active"}, plan.text


@modes
async def test_what_stands_out_of_a_task_is_found_among_what_ended_last(seeded: str, generic: bool) -> None:
    async with explaining(seeded, kept=True) as explainer:
        plan = await explainer.plan("find_notable", "t", 1_000, 10, 5, generic=generic)
        assert set(plan.indexes) == {"jobs_finished_at"}, plan.text
        assert not plan.scanned & {"jobs_finished"}, plan.text
        assert plan.buffers < 2 * 1_000, plan.text


@modes
async def test_lost_jobs_are_found_by_their_worker(seeded: str, generic: bool) -> None:
    async with explaining(seeded, kept=True) as explainer:
        plan = await explainer.plan("find_lost", 500, generic=generic)
        assert set(plan.indexes) <= {"jobs_active_running", "workers_pkey", "jobs_active_pkey"}, plan.text
        assert not plan.scanned & {"jobs_active"}, plan.text
        assert plan.buffers < 500, plan.text  # nobody is dead: next to nothing is read


@modes
async def test_queues_are_counted_by_bounded_walks(seeded: str, generic: bool) -> None:
    async with explaining(seeded, kept=True) as explainer:
        plan = await explainer.plan("find_queues", 1_000, 100, generic=generic)
        assert not plan.scanned & {"jobs_active"}, plan.text
        assert plan.buffers < 3 * (1_000 + 8 * DEAD_PAGES), (
            plan.text
        )  # as a scan it reads the dead entries of a lane, for three looks
        plan = await explainer.plan("find_unserved", 200, 100, generic=generic)
        assert not plan.scanned & {"jobs_active"}, plan.text
        assert plan.buffers < 3 * (1_000 + 8 * DEAD_PAGES), plan.text


@modes
async def test_history_is_pruned_by_its_index(seeded: str, generic: bool) -> None:
    async with explaining(seeded, kept=True) as explainer:
        plan = await explainer.plan("prune", 0.0, 1000, generic=generic)
        assert_cheap(plan, {"jobs_finished_at", "jobs_finished_pkey", "attempts_pkey", "progress_pkey"}, 1000)
        idle = await explainer.plan("prune", 10.0**6, 1000, generic=generic)
        assert idle.buffers < 50, idle.text


@modes
async def test_queues_are_measured_by_the_indexes_of_their_states(seeded: str, generic: bool) -> None:
    async with explaining(seeded, kept=True) as explainer:
        plan = await explainer.plan("measure_queues", 1000, 1000, generic=generic)
        by_state = {"jobs_active_ready", "jobs_active_suspect", "jobs_active_due", "jobs_active_running"}
        assert plan.indexes.keys() <= by_state, plan.text
        assert "jobs_active" not in plan.scanned, plan.text


async def test_plans_made_while_the_tables_were_empty_use_indexes(databases: Databases) -> None:
    """A kept connection keeps its plans; these are made once, maybe on a quiet night."""
    dsn = await databases.clone()
    nothing: list[object] = [None]
    arguments: dict[str, tuple[object, ...]] = {
        "claim": claim_arguments(0),
        "claim_suspect": (None, ["t"], 1, "w", []),
        "survey": (None, 100),
        "count_waiting": (0, 100, 10),
        "page_waiting": (0, 100, 100, 1000, ["t"]),
        "find_waiting": ([1],),
        "promote": (datetime(2000, 1, 1, tzinfo=UTC), 100),
        "settle": (
            "{1}",
            "{1}",
            "{DONE}",
            nothing,
            nothing,
            "{0}",
            nothing,
            [0],
            [0],
            [0],
            [0],
            [],
            *([nothing] * 4),
            20,
        ),
        "settle_done": ("{1}", "{1}", nothing, "{0}", []),
        "renew": ([1], [1]),
        "find_claim": (1, 1),
        "find_forgotten": (1, [1], 100),
        "find_lost": (100,),
        "find_orphans": (1.0, 1.0, 100),
        "find_overdue": (1.0, 100),
        "find_unserved": (100, 100),
        "find_queues": (100, 100),
        "prune": (1.0, 100),
        "measure_queues": (100, 100),
        "prune_attempts": (0, 100),
    }
    async with explaining(dsn, kept=True) as explainer, connected(dsn) as connection:
        for table in ("jobs_active", "jobs_finished", "workers", "attempts"):
            await connection.execute(f"VACUUM ANALYZE pqrun.{table}")
        for name, values in arguments.items():
            plan = await explainer.plan(name, *values, generic=True)
            assert not plan.planned_scans & {"jobs_active", "jobs_finished", "attempts"}, (name, plan.text)
            if name in BY_PRIMARY_KEY:  # nor one that is empty now, and full of dead entries later
                assert plan.planned_indexes == BY_PRIMARY_KEY[name], (name, plan.text)
    await databases.drop(dsn)
