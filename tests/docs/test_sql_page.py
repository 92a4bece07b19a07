"""What docs/sql.md says of plain SQL is so; its statements are taken from the page."""

import asyncio
import os
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from pqrun import App, JobCancelled, JobContext, Status
from pqrun.run import events
from tests.docs.test_docs import BLOCKS, Block, roles_dropped, run_sql, table
from tests.public.at_work import at_work
from tests.support.database import connected

PAGE = [block for block in BLOCKS if block.page == "docs/sql.md" and block.kind == "sql"]


def block_with(text: str) -> Block:
    """The one block that holds this."""
    (found,) = (block for block in PAGE if text in block.text)
    return found


def statement_with(text: str, job_id: int) -> str:
    """The one statement that holds this, about another job."""
    (found,) = (part for block in PAGE for part in block.text.split(";") if text in part)
    changed, count = re.subn(r"\bid = \d+\b", f"id = {job_id}", found)
    assert count == 1
    return changed


@pytest.fixture
def jobs(dsn: str) -> App[None]:
    """An app without tasks, not opened yet."""
    return App(dsn=dsn)


CANCEL_WAITING = "set status = 'CANCELLED'"
CANCEL_RUNNING = "set cancel_requested_at"


class Hanging:
    """A handler that runs until it is stopped."""

    def __init__(self) -> None:
        self.reasons: list[str | None] = []
        self.started = asyncio.Event()

    async def run(self, ctx: JobContext) -> None:
        self.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.reasons.append(ctx.cancel_reason)


# Enqueue.


async def test_the_table_of_arguments_is_what_the_function_takes(connection: asyncpg.Connection) -> None:
    declared = await connection.fetchval("SELECT pg_get_function_arguments('pqrun.enqueue'::regproc)")
    taken = []
    for argument in declared.split(", "):
        name, _, default = argument.partition(" DEFAULT ")
        taken.append((name.split()[0], default.partition("::")[0].replace("NULL", "null")))
    assert [(name, default) for name, default, _ in table("docs/sql.md", "argument")] == taken


async def test_what_a_task_declares_does_not_count_but_its_key_can_be_made(
    jobs: App[None], connection: asyncpg.Connection
) -> None:
    @jobs.task(queue="mail", max_attempts=2, dedupe_key="welcome:{user_id}")
    async def send_email(ctx: JobContext, user_id: int) -> None: ...

    async with jobs:
        job_id = await connection.fetchval(
            """SELECT id FROM pqrun.enqueue('send_email', '{"user_id": 7}', dedupe_key => 'welcome:' || 7)"""
        )
        job = await send_email.handle(job_id).job()
        assert (job.queue, job.max_attempts) == ("default", 5)
        assert (await send_email.defer(7)).id == job_id


async def test_a_payload_that_does_not_satisfy_the_model_fails_at_its_first_start_naming_the_field(
    jobs: App[None], connection: asyncpg.Connection
) -> None:
    @jobs.task
    async def send_email(ctx: JobContext, user_id: int) -> None: ...

    async with at_work(jobs) as told:
        await connection.execute("""SELECT pqrun.enqueue('send_email', '{"user_id": "x"}')""")
        failed = await told.wait_for(events.Failed)
    assert "user_id" in failed.error
    assert failed.job.attempts == 1


REFUSED = [
    ("'t', '{}', max_attempts => 0", "22023", "pqrun.enqueue: max_attempts: expected a whole number from 1; got 0"),
    ("'t', 'x'", "22P02", "json"),
    ("'t', '{}', max_attempt => 3", "42883", "pqrun.enqueue"),
    ("'t', '{}'::text", "42883", "pqrun.enqueue"),
]
"""tests/store/test_enqueue_function.py goes through all arguments."""


@pytest.mark.parametrize(("arguments", "code", "said"), REFUSED)
async def test_what_is_refused_has_the_code_of_the_table(
    connection: asyncpg.Connection, arguments: str, code: str, said: str
) -> None:
    with pytest.raises(asyncpg.PostgresError) as raised:
        await connection.execute(f"SELECT pqrun.enqueue({arguments})")
    assert raised.value.sqlstate == code
    assert said in str(raised.value)
    assert await connection.fetchval("SELECT count(*) FROM pqrun.jobs") == 0


def test_every_row_of_the_table_of_refusals_has_a_case() -> None:
    assert {code for code, _ in table("docs/sql.md", "SQLSTATE")} == {code for _, code, _ in REFUSED} | {"40001"}


async def test_the_trigger_of_the_page_makes_one_job_per_row_that_waits(connection: asyncpg.Connection) -> None:
    await connection.execute(block_with("create trigger").text)
    rows = await connection.fetch("SELECT payload, dedupe_key FROM pqrun.jobs ORDER BY id")
    assert [tuple(row) for row in rows] == [
        ('{"product_id": 1}', "product:1"),
        ('{"product_id": 2}', "product:2"),
    ]


async def test_what_pg_cron_would_run_twice_makes_one_job_of_each(connection: asyncpg.Connection) -> None:
    cron = next(block for block in PAGE if "needs" in block.notes)
    for _ in range(2):
        await run_sql(cron, connection, "unused")
    rows = await connection.fetch("SELECT job_type FROM pqrun.jobs ORDER BY id")
    assert [row["job_type"] for row in rows] == ["nightly_report", "__cleanup"]


# Cancelling and deleting.


async def test_a_waiting_job_is_cancelled_by_sql_for_its_waiters_and_its_key_is_free(
    jobs: App[None], connection: asyncpg.Connection
) -> None:
    @jobs.task(dedupe_key="k")
    async def ship(ctx: JobContext) -> None: ...

    async with jobs:
        for delay in (timedelta(0), timedelta(hours=1)):
            job = await ship.options(run_after=delay).defer()
            waiter = asyncio.create_task(job.result(30))
            assert await connection.execute(statement_with(CANCEL_WAITING, job.id)) == "UPDATE 1"
            with pytest.raises(JobCancelled):
                await waiter
            assert await connection.execute(statement_with(CANCEL_WAITING, job.id)) == "UPDATE 0"
            assert await job.status() is Status.CANCELLED
        assert (await ship.defer()).created


async def test_a_running_job_is_cancelled_by_sql_through_its_worker(
    jobs: App[None], connection: asyncpg.Connection
) -> None:
    hanging = Hanging()

    @jobs.task
    async def ship(ctx: JobContext) -> None:
        await hanging.run(ctx)

    async with at_work(jobs):
        job = await ship.defer()
        await hanging.started.wait()
        assert await connection.execute(statement_with(CANCEL_WAITING, job.id)) == "UPDATE 0"
        assert await connection.execute(statement_with(CANCEL_RUNNING, job.id)) == "UPDATE 1"
        with pytest.raises(JobCancelled):
            await job.result(30)
    assert hanging.reasons == ["cancelled"]


async def test_cancelling_by_sql_under_a_working_worker_leaves_each_job_with_one_end(
    jobs: App[None], connection: asyncpg.Connection
) -> None:
    started: set[int] = set()

    @jobs.task
    async def ship(ctx: JobContext, number: int) -> None:
        started.add(ctx.job.id)

    async with jobs:
        handles = await jobs.defer_many(ship.call(number) for number in range(400))
        async with at_work(jobs, concurrency=5) as told:
            cancelled = {
                handle.id
                for handle in reversed(handles)
                if await connection.execute(statement_with(CANCEL_WAITING, handle.id)) == "UPDATE 1"
            }
            await told.wait_for(events.Done, count=len(handles) - len(cancelled))
            ends = {handle.id: await handle.status() for handle in handles}
    assert cancelled
    assert started
    assert not cancelled & started
    assert {job_id for job_id, end in ends.items() if end is Status.CANCELLED} == cancelled
    assert {job_id for job_id, end in ends.items() if end is Status.DONE} == started
    assert len(ends) == len(cancelled) + len(started)


async def test_the_handler_of_a_running_job_that_is_deleted_hears_that_its_claim_is_lost(
    jobs: App[None], connection: asyncpg.Connection
) -> None:
    hanging = Hanging()

    @jobs.task
    async def ship(ctx: JobContext) -> None:
        await hanging.run(ctx)

    async with at_work(jobs) as told:
        job = await ship.defer()
        await hanging.started.wait()
        await connection.execute("DELETE FROM pqrun.jobs WHERE id = $1", job.id)
        await told.wait_for(events.ClaimLost)
    assert hanging.reasons == ["claim_lost"]


# Rights.


@pytest.fixture
async def granted(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection to a database with the roles of the page; ``become`` takes one."""
    suffix = f"rights{os.getpid()}"
    async with connected(dsn) as connection, roles_dropped(connection, suffix):
        for block in PAGE:
            if "create role" in block.text:
                await run_sql(block, connection, suffix)
        yield connection
        await connection.execute("RESET ROLE")


async def become(connection: asyncpg.Connection, role: str) -> None:
    await connection.execute(f"SET ROLE {role}_rights{os.getpid()}")


async def refused(connection: asyncpg.Connection, *statements: str) -> None:
    for statement in statements:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute(statement)


async def test_a_producer_may_enqueue_with_every_option_and_see_or_change_nothing(granted: asyncpg.Connection) -> None:
    await become(granted, "shop_producer")

    async def enqueue(statement: str) -> tuple[Any, ...]:
        return tuple(await granted.fetchrow(statement) or ())

    full = """SELECT * FROM pqrun.enqueue('t', '{"secret": 1}', 'q', 'k', now() + interval '1 hour', 1, 2, 3, NULL, '{5}', 6)"""
    assert await enqueue("SELECT * FROM pqrun.enqueue('t', '{}')") == (1, True)
    assert [await enqueue(full), await enqueue(full)] == [(2, True), (2, False)]
    await refused(
        granted,
        "SELECT payload FROM pqrun.jobs",
        "SELECT payload FROM pqrun.jobs_active",
        "SELECT * FROM pqrun.jobs_active",
        "SELECT result FROM pqrun.jobs_finished",
        "SELECT FROM pqrun.workers",
        "INSERT INTO pqrun.jobs_active (job_type) VALUES ('t') RETURNING payload",
        "UPDATE pqrun.jobs_active SET priority = 1",
        "UPDATE pqrun.jobs SET cancel_requested_at = now()",
        "DELETE FROM pqrun.jobs",
        "DELETE FROM pqrun.jobs_active WHERE id = 1",
        "TRUNCATE pqrun.jobs_active",
        "INSERT INTO pqrun.jobs_finished (job_type, status) VALUES ('t', 'DONE')",
        "CREATE TABLE pqrun.mine (x int)",
    )


async def test_a_watcher_sees_states_and_no_payload(granted: asyncpg.Connection) -> None:
    await granted.execute("SELECT pqrun.enqueue('t', '{}')")
    await become(granted, "shop_watcher")
    for statement in block_with("as oldest").text.split(";"):
        if statement.strip() and "last_error" not in statement and "locked_by" not in statement:
            await granted.execute(statement)
    assert await granted.fetchval("SELECT count(*) FROM pqrun.jobs WHERE status = 'READY'") == 1
    await refused(
        granted,
        "SELECT payload FROM pqrun.jobs",
        "SELECT result FROM pqrun.jobs",
        "SELECT last_error FROM pqrun.jobs",
        "SELECT FROM pqrun.jobs_active",
        "SELECT pqrun.enqueue('t', '{}')",
        "DELETE FROM pqrun.jobs",
    )


async def test_a_worker_may_do_all_but_create(granted: asyncpg.Connection) -> None:
    await become(granted, "shop_worker")
    job_id = await granted.fetchval("SELECT id FROM pqrun.enqueue('t', '{}')")
    await granted.execute(statement_with(CANCEL_WAITING, job_id))
    await granted.execute("DELETE FROM pqrun.jobs")
    await refused(granted, "CREATE TABLE pqrun.mine (x int)", "DROP TABLE pqrun.jobs")


async def test_the_queries_of_the_page_say_what_is_there(connection: asyncpg.Connection) -> None:
    await connection.execute("SELECT pqrun.enqueue('t', '{}'), pqrun.enqueue('t', '{}', delay_seconds => 60)")
    queries: list[Any] = [
        await connection.fetch(part) for part in block_with("as oldest").text.split(";") if part.strip()
    ]
    assert [tuple(row) for row in sorted(queries[0])] == [("READY", 1), ("SCHEDULED", 1)]
    assert [(row["queue"], row["waiting"]) for row in queries[1]] == [("default", 1)]
    assert queries[1][0]["oldest"] >= timedelta(0)
