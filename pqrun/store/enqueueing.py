"""Validated jobs become rows, or the ids of the active jobs that hold their keys: insert or find, and COPY for masses without keys.

The insert skips what meets an active key; a second statement, with a new snapshot, finds those; a key that became free in between is
inserted in the next round. So an id that is returned has committed, or is the caller's own, and no existing row is ever locked.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from pqrun.errors import StoreError
from pqrun.job.record import Enqueued, NewJob
from pqrun.store.link import Session
from pqrun.store.rows import Row

__all__ = [
    "BATCH_ROWS",
    "Joined",
    "Runs",
    "announce",
    "copy_jobs",
    "insert_in",
    "insert_or_find",
    "insert_then_find",
    "is_for_copy",
]

BATCH_ROWS = 5_000
"""Rows per statement: few round trips, yet no message of unbounded size."""

BATCH_CHARACTERS = 16_000_000
"""Payload per statement, the last one not counted: PostgreSQL takes no value above 1 GB, and drivers make several copies of one."""

COPY_LEAST = 200
"""From so many jobs on, COPY is worth its further round trips."""

COPY_ROWS = 20_000
"""Rows of one COPY: the limit of time for a statement must do for it on a slow machine, too."""

COPY_PIECE = 1_000
"""Rows handed to the connection at once: while the server takes one piece the next is made."""

_COLUMNS = (
    *("id", "payload", "job_type", "queue", "priority", "max_attempts", "timeout_seconds", "backoff_seconds"),
    *("payload_version", "headers"),
)
_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


class Runs(Protocol):
    """Something that runs named statements: a session."""

    async def run(self, name: str, *arguments: object, timeout: float | None = None) -> Sequence[Row]:
        """Run the statement and return its rows."""
        ...


class Joined(Runs, Protocol):
    """A session on another library's connection; of a synchronous one, nothing in it ever suspends."""

    @property
    def is_driven_by_loop(self) -> bool:
        """Whether it waits by way of the event loop."""
        ...

    def whole(self) -> AbstractAsyncContextManager[None]:
        """Keep several statements together: a transaction of ours where each would commit by itself, else nothing."""
        ...


def _columns(jobs: Sequence[NewJob]) -> tuple[Sequence[object], ...]:
    return (
        [j.job_type for j in jobs],
        [j.payload for j in jobs],
        [j.queue for j in jobs],
        [j.priority for j in jobs],
        [j.max_attempts for j in jobs],
        [j.timeout_seconds for j in jobs],
        [j.dedupe_key for j in jobs],
        [None if j.run_after is None else j.run_after.isoformat() for j in jobs],
        [j.delay_seconds for j in jobs],
        [None if j.backoff_seconds is None else _delays(j.backoff_seconds) for j in jobs],
        [j.payload_version for j in jobs],
        [j.headers for j in jobs],
    )


def _delays(seconds: Sequence[float]) -> str:
    return "{" + ",".join(map(repr, seconds)) + "}"


async def insert_or_find(session: Runs, jobs: Sequence[NewJob], *, notify: bool = True) -> list[Enqueued]:
    """Return one Enqueued per job, in order; of equal keys in the batch one is created, and all get its id."""
    found: list[Enqueued | None] = [None] * len(jobs)
    for batch in _batches(jobs):
        pending = list(batch)
        while pending:
            pending = await _insert(session, jobs, pending, found, notify=notify)
            pending = await _find(session, jobs, pending, found)
    return [enqueued for enqueued in found if enqueued is not None]


def _batches(jobs: Sequence[NewJob]) -> Iterator[range]:
    """Cut into what one statement takes."""
    start = characters = 0
    for index, job in enumerate(jobs):
        if index - start == BATCH_ROWS or characters > BATCH_CHARACTERS:
            yield range(start, index)
            start, characters = index, 0
        characters += len(job.payload)
    if start < len(jobs):
        yield range(start, len(jobs))


async def insert_in(session: Joined, jobs: Sequence[NewJob]) -> list[Enqueued]:
    """Write jobs within another library's transaction. Raises StoreError and its kinds; ConflictError where it must be repeated."""
    if len(jobs) <= 1:
        return await insert_or_find(session, jobs)
    async with session.whole():
        return await insert_or_find(session, jobs)


async def insert_then_find(link: Runs, jobs: Sequence[NewJob], *, notify: bool) -> list[Enqueued | None]:
    """One round of the same, each statement a transaction of its own; None for a job that is not written and whose key was not found.

    Raises StoreError and its kinds where nothing is known to be written: what the insert wrote stands, whatever becomes of the look-up.
    """
    found: list[Enqueued | None] = [None] * len(jobs)
    pending = await _insert(link, jobs, list(range(len(jobs))), found, notify=notify)
    with contextlib.suppress(StoreError):
        await _find(link, jobs, pending, found)
    return found


async def _insert(
    session: Runs, jobs: Sequence[NewJob], pending: list[int], found: list[Enqueued | None], *, notify: bool
) -> list[int]:
    """Insert the pending ones (their places in ``jobs``), note their ids in ``found``, and return those that met an active key."""
    columns = _columns([jobs[i] for i in pending])
    if len(pending) == 1:
        rows = await session.run("enqueue_one", *(column[0] for column in columns), notify)
    else:
        rows = await session.run("enqueue", *columns, notify)
    for row in rows:
        found[pending[row["position"] - 1]] = Enqueued(row["id"], created=True)
    return [i for i in pending if found[i] is None]


async def _find(session: Runs, jobs: Sequence[NewJob], pending: list[int], found: list[Enqueued | None]) -> list[int]:
    """Look up the active jobs that hold the keys of the pending ones; return those whose key has become free meanwhile."""
    if not pending:
        return []
    keys = [jobs[i].job_type for i in pending], [jobs[i].dedupe_key for i in pending]
    for row in await session.run("find_active", *keys):
        found[pending[row["position"] - 1]] = Enqueued(row["id"], created=False)
    return [i for i in pending if found[i] is None]


def is_for_copy(jobs: Sequence[NewJob]) -> bool:
    """Whether COPY can write these: many, no key (COPY cannot skip a duplicate), due at once (the database's clock decides)."""
    return len(jobs) >= COPY_LEAST and all(
        job.dedupe_key is None and job.run_after is None and job.delay_seconds is None for job in jobs
    )


async def copy_jobs(session: Session, schema: str, jobs: Sequence[NewJob]) -> list[Enqueued]:
    """Write jobs by COPY, in the caller's transaction, and announce them; see ``is_for_copy``.

    In text, which is made here: so it does not matter what codecs a foreign connection has, and it takes half the time of the
    driver's records.
    """
    enqueued: list[Enqueued] = []
    for start in range(0, len(jobs), COPY_ROWS):
        piece = jobs[start : start + COPY_ROWS]
        ids = [row["id"] for row in await session.run("take_ids", len(piece))]
        await session.connection.copy_to_table(
            "jobs_active", schema_name=schema, columns=_COLUMNS, source=_pieces(ids, piece), encoding="utf8"
        )
        enqueued += [Enqueued(job_id, created=True) for job_id in ids]
    await announce(session, {(job.queue, job.priority) for job in jobs})
    return enqueued


async def announce(session: Runs, lanes: Collection[tuple[str, int] | None]) -> None:
    """Tell workers that there are jobs in these lanes, and (None) some for later, once the transaction has committed."""
    ready = [lane for lane in lanes if lane is not None]
    await session.run("announce", [queue for queue, _ in ready], [priority for _, priority in ready], None in lanes)


async def _pieces(ids: Sequence[int], jobs: Sequence[NewJob]) -> AsyncIterator[bytes]:
    tails: dict[tuple[object, ...], str] = {}  # all columns behind the payload: most jobs of a batch share them
    for start in range(0, len(jobs), COPY_PIECE):
        lines = []
        for job_id, job in zip(ids[start : start + COPY_PIECE], jobs[start : start + COPY_PIECE], strict=True):
            options = (job.queue, job.priority, job.max_attempts, job.timeout_seconds, job.backoff_seconds)
            kind = (job.job_type, *options, job.payload_version, job.headers)
            tail = tails.get(kind)
            if tail is None:
                tail = tails[kind] = _tail(job)
            payload = job.payload.replace("\\", "\\\\")  # JSON holds no tab and no line break but escaped
            lines.append(f"{job_id}\t{payload}\t{tail}\n")
        yield "".join(lines).encode()
        await asyncio.sleep(0)  # others of this loop have their turn


def _tail(job: NewJob) -> str:
    timeout = "\\N" if job.timeout_seconds is None else repr(job.timeout_seconds)
    backoff = "\\N" if job.backoff_seconds is None else _delays(job.backoff_seconds)
    headers = "\\N" if job.headers is None else job.headers.replace("\\", "\\\\")
    names = f"{job.job_type.translate(_ESCAPES)}\t{job.queue.translate(_ESCAPES)}"
    return f"{names}\t{job.priority}\t{job.max_attempts}\t{timeout}\t{backoff}\t{job.payload_version}\t{headers}"
