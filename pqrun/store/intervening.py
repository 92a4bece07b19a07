"""What somebody does to a job from outside: cancel it, or run it again. Both look once more before they say that they cannot."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Concatenate, TypeAlias

from pqrun.errors import JobBusy, JobNotFound, RetryRefused
from pqrun.job.outcome import CancelOutcome
from pqrun.job.state import Status
from pqrun.store.rows import Row

__all__ = ["cancel", "retry"]

BUSY_SECONDS = 5.0
"""How long ``cancel`` looks again at a row that another transaction holds."""

BUSY_LOOK_SECONDS = 0.05

Run: TypeAlias = Callable[Concatenate[str, ...], Awaitable[Sequence[Row]]]
"""Runs one of our statements, by name, in a transaction of its own."""


async def cancel(run: Run, job_id: int) -> CancelOutcome:
    """Cancel a job; raises JobBusy when another transaction held the row all the time."""
    give_up = asyncio.get_running_loop().time() + BUSY_SECONDS
    looked_again = False
    while True:
        outcome = str((await run("cancel", job_id))[0]["outcome"])
        if outcome == "NOT_FOUND" and not looked_again:
            looked_again = True  # it may have moved between the two parts while the statement ran
            continue
        if outcome != "LOCKED":
            return CancelOutcome(outcome)
        if asyncio.get_running_loop().time() > give_up:
            raise JobBusy(f"job {job_id} is held by another transaction; try again when that has ended", job_id)
        await asyncio.sleep(BUSY_LOOK_SECONDS)


async def retry(run: Run, job_id: int, *, force: bool) -> None:
    """Make an ended job READY again; raises RetryRefused and JobNotFound."""
    while True:
        rows = await run("retry", job_id, force)
        if not rows:
            raise await _refusal(run, job_id)
        if rows[0]["retried"]:
            return
        holder = await run("find_active", [rows[0]["job_type"]], [rows[0]["dedupe_key"]])
        if holder:
            other = int(holder[0]["id"])
            raise RetryRefused(f"job {job_id} is not retried: job {other} has taken its dedupe key", job_id, other)


async def _refusal(run: Run, job_id: int) -> RetryRefused | JobNotFound:
    rows = await run("get", job_id)
    if not rows:
        return JobNotFound(f"there is no job {job_id} (deleted, or removed by retention)", job_id)
    status = Status(rows[0]["status"])
    hint = "; force=True runs it again" if status.is_finished else ", it will run anyway"
    return RetryRefused(f"job {job_id} is not retried: it is {status.value}{hint}", job_id)
