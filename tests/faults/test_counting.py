"""Jobs that kill their worker every time end FAILED after exactly their attempts, and take no good job with them."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pqrun.job.state import Status
from pqrun.store import PgJobStore
from tests.faults.town import Ledger, at_work, enqueue, finished
from tests.support.database import Databases

MANY_SECONDS = 240


@asynccontextmanager
async def supervised(dsn: str, ledger: Ledger, *arguments: str) -> AsyncIterator[None]:
    """A worker process that is started again whenever it dies, as a service manager does."""

    async def supervise() -> None:
        while True:
            async with at_work(dsn, ledger, *arguments, is_waited_for=False) as command:
                code = await command.end()
                assert code == -signal.SIGKILL, command.output

    task = asyncio.create_task(supervise())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def poison_and_good(dsn: str, ledger: Ledger, *, concurrency: int, good: int) -> None:
    async with PgJobStore(dsn) as store:
        poison = [await enqueue(store, key, "kill", max_attempts=3) for key in ("poison-1", "poison-2")]
        others = [await enqueue(store, f"good-{n}", "sleep", 0.02) for n in range(good)]
        async with supervised(dsn, ledger, "--concurrency", str(concurrency)), asyncio.timeout(MANY_SECONDS):
            killers = [await finished(store, job_id) for job_id in poison]
            done = [await finished(store, job_id) for job_id in others]
    for job, key in zip(killers, ("poison-1", "poison-2"), strict=True):
        assert (job.status, job.attempts, job.lost) == (Status.FAILED, 3, 3)
        # Where several start at once, one may have killed the worker before the other's handler was called: its attempt counts too.
        assert ledger.starts(key) == 3 if concurrency == 1 else ledger.starts(key) in (2, 3)
        assert job.finished_at is not None
        assert job.last_error is not None
        assert "lost its worker 3 times" in job.last_error
    assert {job.status for job in done} == {Status.DONE}
    assert max(job.attempts for job in done) <= 2


@pytest.mark.parametrize("good", [20, pytest.param(100, marks=pytest.mark.slow)])
async def test_two_jobs_that_kill_every_worker_fail_and_all_good_ones_are_done_in_at_most_two_attempts(
    databases: Databases, tmp_path: Path, good: int
) -> None:
    dsns = {concurrency: await databases.clone() for concurrency in (1, 4)}
    try:
        async with asyncio.TaskGroup() as both:  # at the same time: most of it is waiting for death to be noticed
            for concurrency, dsn in dsns.items():
                ledger = Ledger(tmp_path / f"ledger-{concurrency}")
                both.create_task(poison_and_good(dsn, ledger, concurrency=concurrency, good=good))
    finally:
        for dsn in dsns.values():
            await databases.drop(dsn)
