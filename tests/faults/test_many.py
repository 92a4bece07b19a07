"""Thousands of jobs changed at once beside a worker at full rate, and by callers that are killed: nothing is lost, nothing runs twice."""

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

import asyncpg
import pytest

from pqrun.job.bulk import BulkReport
from pqrun.job.filter import JobFilter
from pqrun.job.state import Status
from pqrun.run.context import JobContext
from pqrun.store import PgJobStore
from pqrun.store.selecting import PIECE_ROWS
from pqrun.store.selection import BulkOptions, Selection
from tests.public.at_work import low_level
from tests.store.locking import holding, wait_until_waiting
from tests.support.scripts import script
from tests.support.waiting import wait_until

COUNT = 5_000

Change: TypeAlias = Callable[[Selection, BulkOptions], Awaitable[BulkReport]]

INSERT = "INSERT INTO pqrun.jobs (job_type, dedupe_key) SELECT 't', 'k' || n FROM generate_series(1, $1::integer) n"

INSERT_FAILED = """
INSERT INTO pqrun.jobs (job_type, dedupe_key, status, attempts, finished_at)
SELECT 't', 'k' || n, 'FAILED', 5, now() FROM generate_series(1, $1::integer) n
"""


async def count_states(connection: asyncpg.Connection) -> dict[str, int]:
    rows = await connection.fetch("SELECT status, count(*) AS jobs FROM pqrun.jobs GROUP BY status")
    return {row["status"]: row["jobs"] for row in rows}


@asynccontextmanager
async def at_full_rate(store: PgJobStore, gate: asyncio.Event) -> AsyncIterator[Counter[int]]:
    """A worker that has claimed its first jobs, and goes on when the gate opens; gives how often each job was started."""
    starts: Counter[int] = Counter()

    async def handle(ctx: JobContext[None]) -> None:
        starts[ctx.job.id] += 1
        await gate.wait()

    async with low_level(store, {"t": handle}, concurrency=20):
        yield starts


def opening(gate: asyncio.Event) -> BulkOptions:
    """What opens the gate when the first piece is done: worker and caller meet in the rest."""
    return {"on_progress": lambda _: gate.set()}


async def ended(connection: asyncpg.Connection) -> None:
    async def are_all() -> bool:
        return not await connection.fetchval("SELECT count(*) FROM pqrun.jobs_active")

    await wait_until(are_all)


async def test_each_of_many_that_are_cancelled_under_a_worker_ends_once(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    await connection.execute(INSERT, COUNT)
    gate = asyncio.Event()
    async with at_full_rate(store, gate) as starts:
        await wait_until(lambda: len(starts) == 20)
        report = await store.select(JobFilter(job_types=["t"])).cancel(**opening(gate))
        await ended(connection)
    states = await count_states(connection)
    assert states.keys() <= {"DONE", "CANCELLED"}
    assert sum(states.values()) == COUNT
    assert max(starts.values()) == 1
    assert report.done - report.requested <= states["CANCELLED"] <= report.done
    assert report.reasons.keys() <= {"already_finished"}
    done = await connection.fetch("SELECT id FROM pqrun.jobs WHERE status = 'DONE'")
    assert all(starts[row["id"]] == 1 for row in done)
    unstarted = await connection.fetchval("SELECT count(*) FROM pqrun.jobs WHERE status = 'CANCELLED' AND attempts = 0")
    assert unstarted > 0


async def test_each_of_many_that_are_retried_under_a_worker_runs_once(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    await connection.execute(INSERT_FAILED, COUNT)
    gate = asyncio.Event()
    async with at_full_rate(store, gate) as starts:
        report = await store.select(JobFilter(statuses=[Status.FAILED])).retry(**opening(gate))
        await ended(connection)
    assert (report.done, report.refused) == (COUNT, 0)
    assert await count_states(connection) == {"DONE": COUNT}
    assert (len(starts), max(starts.values())) == (COUNT, 1)


@pytest.mark.parametrize(
    "change",
    [lambda jobs, options: jobs.move("other", **options), lambda jobs, options: jobs.prioritize(7, **options)],
    ids=["move", "prioritize"],
)
async def test_each_of_many_that_change_their_lane_under_a_worker_runs_once(
    store: PgJobStore, connection: asyncpg.Connection, change: Change
) -> None:
    await connection.execute(INSERT, COUNT)
    gate = asyncio.Event()
    async with at_full_rate(store, gate) as starts:
        await wait_until(lambda: len(starts) == 20)
        report = await change(store.select(JobFilter(job_types=["t"])), opening(gate))
        await ended(connection)
    assert report.done > 0
    assert report.reasons.keys() <= {"already_finished", "running"}
    assert await count_states(connection) == {"DONE": COUNT}
    assert (len(starts), max(starts.values())) == (COUNT, 1)


async def test_two_that_cancel_and_two_that_retry_the_same_jobs_agree(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    await connection.execute(INSERT, 1_000)
    everything = store.select(JobFilter(job_types=["t"], statuses=list(Status)))
    reports = await asyncio.gather(everything.cancel(), everything.retry(), everything.retry(), everything.cancel())
    states = await count_states(connection)
    assert sum(states.values()) == 1_000
    assert states.keys() <= {"READY", "CANCELLED"}
    cancelled, retried = (sum(r.done for r in reports if r.action == action) for action in ("cancel", "retry"))
    assert cancelled - retried == states.get("CANCELLED", 0)


async def test_of_a_caller_that_is_killed_between_two_pieces_those_done_stay_and_the_rest_is_untouched(
    dsn: str, store: PgJobStore, connection: asyncpg.Connection
) -> None:
    await connection.execute(INSERT, COUNT)
    program = f"""
    import signal
    from pqrun import JobFilter

    def tell(progress):
        if progress.done == {2 * PIECE_ROWS}:
            os.kill(os.getpid(), signal.SIGKILL)

    jobs.select(JobFilter(job_types=["t"])).cancel_sync(on_progress=tell)
    """
    with script(program, dsn) as process:
        code = await asyncio.to_thread(process.wait, 60)
    assert code == -signal.SIGKILL
    assert await count_states(connection) == {"CANCELLED": 2 * PIECE_ROWS, "READY": COUNT - 2 * PIECE_ROWS}
    first = await connection.fetchval("SELECT max(id) FROM pqrun.jobs WHERE status = 'CANCELLED'")
    assert await connection.fetchval("SELECT min(id) FROM pqrun.jobs WHERE status = 'READY'") == first + 1
    assert (await store.select(JobFilter(job_types=["t"])).cancel()).done == COUNT - 2 * PIECE_ROWS


async def test_of_a_caller_that_is_killed_within_a_piece_nothing_of_that_piece_is_done(
    dsn: str, store: PgJobStore, connection: asyncpg.Connection
) -> None:
    await connection.execute(INSERT_FAILED, 4 * PIECE_ROWS)
    program = """
    from pqrun import JobFilter, Status
    from pqrun.store import pg
    pg.SELECT_SETTINGS += "; SET lock_timeout = 0"
    jobs.select(JobFilter(statuses=[Status.FAILED])).retry_sync()
    """
    # A key in the third piece: its statement has locked and written rows, and waits.
    async with holding(dsn, f"SELECT * FROM pqrun.enqueue('t', '{{}}', dedupe_key => 'k{3 * PIECE_ROWS}')"):
        with script(program, dsn) as process:
            await wait_until_waiting(connection)
            process.kill()
            await asyncio.to_thread(process.wait, 60)

    async def is_gone() -> bool:
        return not await connection.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'pqrun select'"
        )

    await wait_until(is_gone)
    assert await count_states(connection) == {"READY": 2 * PIECE_ROWS + 1, "FAILED": 2 * PIECE_ROWS}
    report = await store.select(JobFilter(statuses=[Status.FAILED])).retry()
    assert (report.done, report.reasons) == (2 * PIECE_ROWS - 1, {"key_taken": 1})


async def test_a_connection_that_is_cut_is_an_error_that_says_how_many_were_done_and_a_second_call_goes_on(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    await connection.execute(INSERT, 2_000)
    cut = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
              WHERE datname = current_database() AND application_name = 'pqrun select'"""
    cutting: list[asyncio.Task[object]] = []
    task = asyncio.create_task(
        store.select(JobFilter(job_types=["t"])).cancel(
            on_progress=lambda _: cutting.append(asyncio.create_task(connection.execute(cut)))
        )
    )
    await asyncio.wait({task})
    await asyncio.gather(*cutting, return_exceptions=True)
    error = task.exception()
    if error is not None:  # it may have been through before the first cut
        assert "jobs, which stays" in error.__notes__[0]
    await store.select(JobFilter(job_types=["t"])).cancel()
    assert await count_states(connection) == {"CANCELLED": 2_000}
