"""What tests ask of a store beyond what applications do: what waits, what is due, another time, and broken connections."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from pqrun.errors import ConfigurationError
from pqrun.job.record import Job
from pqrun.store.failure import translating
from pqrun.store.link import Session
from pqrun.store.pg import PgJobStore
from pqrun.store.rows import stored_job
from pqrun.store.work import WorkStore

__all__ = ["Unended", "count_due", "drop_connections", "list_active", "shift_times", "take_for_dead"]

LISTED_JOBS = 10_000
"""Jobs that one look returns."""

END_MILLISECONDS = 5_000
"""How long to wait for the end of a connection that was told to end."""


LOOK_SECONDS = 0.005


class Unended(NamedTuple):
    """A job that has not ended; negative seconds: it has been due for so long."""

    job: Job
    in_seconds: float


async def list_active(store: PgJobStore, job_types: Sequence[str] | None = None) -> list[Unended]:
    """List the jobs that have not ended, oldest first, LISTED_JOBS at most; of these types, or all."""
    rows = await store.run("list_active", job_types, LISTED_JOBS)
    return [Unended(stored_job(row[:-1]), row["in_seconds"]) for row in rows]


async def count_due(store: PgJobStore, job_types: Sequence[str], queues: Sequence[str] | None) -> int:
    """Count the jobs of these types and queues (None: all) that run, or could run now."""
    return int((await store.run("count_due", job_types, queues))[0]["due"])


async def shift_times(store: PgJobStore, seconds: float) -> int:
    """Move every time of every job back by so many seconds; return how many jobs there are."""
    return int((await store.run("shift_times", seconds))[0]["jobs"])


async def drop_connections(store: PgJobStore) -> int:
    """End every connection of pqrun's to the database of the store; return how many there were. Raises ConfigurationError with pool=."""
    opener = store.open_direct("testing", None)
    if opener is None:
        raise ConfigurationError(
            "connections of a handed-in pool are the pool's, with names of their own; give the app a DSN"
        )
    connection = await opener.open()
    try:
        with translating(store.schema):
            rows = await Session(connection, store.statements).run("drop_connections", "pqrun", END_MILLISECONDS)
    finally:
        await opener.dispose(connection, 1.0)
    return int(rows[0]["ended"])


async def take_for_dead(store: PgJobStore, worker: int) -> list[Job]:
    """Take the worker of this row of the registry for dead, and recover its jobs, as reapers do; return their rows after that."""
    held = await store.run("list_claims", worker)
    await store.run(
        "deregister", worker
    )  # what a reaper writes when nothing has beaten for long enough; it tells all reapers
    work = WorkStore(store, worker_id="pqrun testing")
    try:
        # Another reaper may hold some of them at this moment, and they are passed over then.
        while await work.reap_lost() or await store.run("list_claims", worker):  # noqa: ASYNC110  # no event tells of it
            await asyncio.sleep(LOOK_SECONDS)
    finally:
        await work.close(1.0)
    rows = [await store.get(row["id"]) for row in held]
    return [job for job in rows if job is not None]
