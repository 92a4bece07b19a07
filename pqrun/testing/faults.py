"""Faults on purpose, by real means: connections that the server ends, a worker that is taken for dead, a handler that raises."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from pqrun.app import App
from pqrun.errors import OptionError
from pqrun.job.record import Job
from pqrun.job.state import Status
from pqrun.job.storable import error_summary
from pqrun.store import rehearsing
from pqrun.task import Task
from pqrun.testing.calls import before_calls
from pqrun.testing.opening import looking
from pqrun.testing.report import Ran
from pqrun.worker import Worker

__all__ = ["drop_connections", "fail_attempt", "lose_worker"]


async def drop_connections(jobs: App[Any]) -> int:
    """Have the server end every connection of pqrun's to the app's database, workers included; return how many there were.

    They have ended when this returns, and are made again when they are needed. Connections of other libraries stay. Raises
    ConfigurationError where the app has a pool of yours.
    """
    async with looking(jobs.store) as store:
        return await rehearsing.drop_connections(store)


@asynccontextmanager
async def lose_worker(worker: Worker) -> AsyncIterator[list[Ran]]:
    """Take a worker that runs here for dead: its jobs are recovered as those of a killed process, and it records nothing about them.

    Gives what became of them: READY with the attempt counted, or FAILED where none was left. Until the block ends it gives no sign of
    life and claims nothing; within a second its running handlers are cancelled, with ``ctx.cancel_reason`` "claim_lost". After the block
    it goes on as a process that was only paused. Raises ConfigurationError unless it runs.
    """
    row = await worker.hold_beats()
    try:
        async with looking(worker.store) as store:
            rows = await rehearsing.take_for_dead(store, row)
        yield [Ran(job.job_type, job.id, job.attempts, job.status, error_summary(job.last_error or "")) for job in rows]
    finally:
        worker.resume_beats()


@contextmanager
def fail_attempt(task: Task[..., Any, Any, Any], n: int, error: BaseException) -> Iterator[list[Job]]:
    """Let the ``n``-th attempt (from 1) of the next job of this task raise ``error`` in place of its handler; gives whom it hit.

    Only one job: the first whose ``n``-th attempt comes while the block lasts. It works for ``drain`` and for workers that run already.
    Raises OptionError for an ``n`` below 1.
    """
    if type(n) is not int or n < 1:
        raise OptionError(f"fail_attempt: n is the number of an attempt, from 1; got {n!r}")
    hit: list[Job] = []

    def before(job: Job) -> None:
        if job.attempts == n and not hit and job.status is Status.RUNNING:
            hit.append(job)
            raise error

    with before_calls(task.handler, before):
        yield hit
