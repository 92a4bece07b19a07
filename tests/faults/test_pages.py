"""The process of the web pages is killed in the middle of an action on many jobs."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg

from tests.cli.running import Command, environment, running
from tests.support.waiting import wait_until
from tests.web.serving import Browser

JOBS = 60_000

ADD = f"""
INSERT INTO pqrun.jobs (job_type, status, attempts, finished_at)
SELECT 't', 'FAILED', 1, clock_timestamp() FROM generate_series(1, {JOBS}) n
"""


@asynccontextmanager
async def serving(dsn: str, folder: Path) -> AsyncIterator[tuple[Command, Browser]]:
    """A process of ``pqrun web`` whose only user is an admin, and a browser that looks at it."""
    async with running("web", "--port", "0", "--role", "admin", env=environment(PQRUN_DSN=dsn), cwd=folder) as command:
        port = (await command.wait_line(r"running on http://127\.0\.0\.1:(\d+)"))[1]
        async with Browser(f"http://127.0.0.1:{port}") as browser:
            yield command, browser


async def test_an_operation_whose_process_is_killed_is_finished_by_another_and_does_nothing_twice(
    dsn: str, connection: asyncpg.Connection, tmp_path: Path
) -> None:
    await connection.execute(ADD)

    async def position() -> int:
        return int(await connection.fetchval("SELECT position FROM pqrun.operations"))

    async with serving(dsn, tmp_path) as (command, browser):
        answer = await browser.post("/jobs", {"do": "retry", "scope": "all", "q": "state:failed"}, token_of="/jobs")
        page = answer.headers["location"]
        await wait_until(lambda: counted(connection))
        token = await browser.token(page)
        start = {"_token": token, "do": "start", "matched": str(JOBS)}
        asked = asyncio.ensure_future(browser.client.post(page, data=start, headers={"origin": browser.base}))
        await wait_until(position)
        command.process.send_signal(signal.SIGKILL)
        await asyncio.wait({asked})
        _ = asked.exception()  # the answer, if it came, or the end of the connection
        await command.end()
    done = await position()
    assert 0 < done < JOBS, "it was killed too late: more jobs are needed here"
    # Half a minute later it counts as lost; the test does not wait for that.
    await connection.execute("UPDATE pqrun.operations SET beat_at = beat_at - interval '1 hour'")
    async with serving(dsn, tmp_path) as (_, browser):
        assert "gives no sign of life" in await browser.get(page)
        await browser.post(page, {"do": "start", "matched": str(JOBS)}, token_of=page)
        await wait_until(lambda: is_over(connection))
    row = await connection.fetchrow("SELECT state, done, reasons::text AS reasons FROM pqrun.operations")
    assert row is not None
    # Of the piece at hand when it was killed some jobs had been done already: those are left alone, and told.
    assert row["state"] == "DONE"
    ready = "SELECT count(*) FROM pqrun.jobs WHERE status = 'READY'"
    assert await connection.fetchval(ready) == JOBS
    refused = await connection.fetchval(
        "SELECT coalesce(sum(value::int), 0) FROM pqrun.operations, jsonb_each_text(reasons)"
    )
    assert row["done"] + refused == JOBS
    assert refused <= 1_000


async def counted(connection: asyncpg.Connection) -> bool:
    return bool(await connection.fetchval("SELECT state = 'COUNTED' FROM pqrun.operations"))


async def is_over(connection: asyncpg.Connection) -> bool:
    return bool(await connection.fetchval("SELECT ended_at IS NOT NULL FROM pqrun.operations"))
