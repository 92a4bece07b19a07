"""Handlers that fork under a running worker: the child has the worker's sockets, its signals' pipe, and nothing else of it."""

import os
import signal
from collections.abc import Callable

import pytest

from pqrun.job.state import Status
from pqrun.store import PgJobStore
from tests.faults.town import Ledger, at_work, enqueue, finished
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")

NOTED = {
    "fork-exit": ["start", "child-7", "end"],
    "fork-use": ["start", "WrongLoopError", "end"],
    "fork-multi": ["start", "1-2-3", "sleeper-15", "end"],
}
"""What each handler and its children tell."""


@pytest.mark.parametrize("how", NOTED)
async def test_a_handler_that_forks_disturbs_neither_its_worker_nor_the_job_beside_it(
    store: PgJobStore, dsn: str, ledger: Ledger, how: str
) -> None:
    async with at_work(dsn, ledger, "--concurrency", "2") as worker:
        beside = await enqueue(store, "beside", "sleep", 2.5)  # longer than the worker's second of beating and renewing
        await ledger.wait_for("start", "beside")
        jobs = [await enqueue(store, how, how), beside]
        ended = [await finished(store, job_id) for job_id in jobs]
        ended.append(await finished(store, await enqueue(store, "afterwards")))
        assert "met an error" not in worker.output
        assert "stopping" not in worker.output  # a signal to the child was not the worker's
        worker.send(signal.SIGTERM)
        assert await worker.end() == 0
    assert {(job.status, job.attempts, job.lost) for job in ended} == {(Status.DONE, 1, 0)}
    assert [line.what for line in ledger.lines(key=how)] == NOTED[how]
    assert ledger.lines("end", how)[0].pid == worker.process.pid


SLOW_LIMIT = 8.0
"""After which an observer condemns whom a held lock protects."""


async def test_a_child_that_outlives_its_killed_worker_holds_its_lock_so_the_slow_limit_decides(
    store: PgJobStore, dsn: str, ledger: Ledger, record_testsuite_property: Callable[[str, object], None]
) -> None:
    env = {"WORKER_STALE_TIMEOUT": f"{SLOW_LIMIT:g}"}
    async with at_work(dsn, ledger, "--worker-id", "victim") as victim:
        job_id = await enqueue(store, "a", "first-fork-linger", 3600)
        child = await ledger.wait_for("lingering", "a")
        try:
            async with at_work(dsn, ledger, "--worker-id", "heir", env=env) as heir:
                victim.send(signal.SIGKILL)
                await wait_until(lambda: victim.process.returncode is not None)
                again = await ledger.wait_for("start", "a", count=2)
                job = await finished(store, job_id)
                assert "worker victim is dead" in heir.output
                os.kill(child.pid, 0)  # it lives, and has written nothing
        finally:
            os.kill(child.pid, signal.SIGKILL)
    waited = again.at - child.at
    record_testsuite_property("kill_to_start_with_lingering_child_seconds", round(waited, 2))
    assert waited > SLOW_LIMIT - 1  # a free lock would have condemned it after three seconds
    assert (job.status, job.attempts, job.locked_by, job.lost) == (Status.DONE, 2, "heir", 1)
    assert ledger.starts("a") == 2
