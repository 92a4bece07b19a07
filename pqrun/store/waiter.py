"""Waiting for ends: one statement asks for all awaited ids of the process, from 10 ms on, backing off to 500 ms.

The ids are also announced to the workers (``EndNews``): where LISTEN works, a result is seen within some milliseconds of its commit.
Without it, as behind a pooler, or when a notification is lost, polling alone answers within the longest interval. Completions that nobody
waits for notify nobody.
"""

import asyncio
import contextlib
import time
from typing import NamedTuple

from pqrun.errors import ConflictError, DatabaseUnavailableError, JobNotFound, NotOpenError, PqrunError, ResultTimeout
from pqrun.job.state import Status
from pqrun.store.endings import ANNOUNCE_AGAIN_SECONDS, LINGER_SECONDS, EndNews, Runs
from pqrun.store.rows import Row

__all__ = ["End", "Waiter"]

FIRST_POLL_SECONDS = 0.01
LAST_POLL_SECONDS = 0.5
POLL_GROWTH = 1.5

LOOK_SECONDS = 5.0
"""How long one look may take before its connection is given up."""


class End(NamedTuple):
    """How a job ended."""

    status: Status
    result: str | None
    last_error: str | None


class Waiter:
    """All waits of one opened store; see the module's docstring."""

    def __init__(self, statements: Runs, endings: EndNews) -> None:
        self._statements = statements
        self._endings = endings
        self._waits: dict[int, set[asyncio.Future[End]]] = {}
        self._news: set[int] = set()  # ids not yet announced
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def wait(self, job_id: int, seconds: float | None) -> End:
        """Return how the job ended. Raises JobNotFound, ResultTimeout, and what the database said if asking again cannot help."""
        future: asyncio.Future[End] = asyncio.get_running_loop().create_future()
        self._waits.setdefault(job_id, set()).add(future)
        self._news.add(job_id)
        self._wake.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="pqrun result waiter")
        try:
            async with asyncio.timeout(seconds):
                return await future
        except TimeoutError:
            raise ResultTimeout(f"job {job_id} did not finish within {seconds:g} s; it goes on", job_id) from None
        finally:
            self._forget(job_id, future)

    async def look_once(self, job_id: int) -> End:
        """Return how the job has finished; raises JobNotFound, and ResultTimeout where it has not."""
        rows = await self._statements.run("find_ends", [job_id])
        if not rows:
            raise _not_found(job_id)
        end = _end(rows[0])
        if not end.status.is_finished:
            raise ResultTimeout(f"job {job_id} has not finished yet; it goes on", job_id)
        return end

    async def close(self) -> None:
        """Stop; waits under way end with NotOpenError."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        for job_id in list(self._waits):
            self._resolve(job_id, NotOpenError(f"the store was closed while the result of job {job_id} was awaited"))
        await self._endings.leave(self)

    def _forget(self, job_id: int, future: asyncio.Future[End]) -> None:
        futures = self._waits.get(job_id)
        if futures is not None:
            futures.discard(future)
            if not futures:
                del self._waits[job_id]
                self._news.discard(job_id)

    async def _run(self) -> None:
        while True:
            await self._serve()
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), LINGER_SECONDS)
            if not self._waits:
                await self._endings.leave(self)
            if not self._waits:  # asked again: somebody may have come while the connection closed
                return

    async def _serve(self) -> None:
        announced_at = 0.0
        interval = FIRST_POLL_SECONDS
        while self._waits:
            if self._news or time.monotonic() - announced_at > ANNOUNCE_AGAIN_SECONDS:
                interval = FIRST_POLL_SECONDS if self._news else interval
                self._news.clear()
                await self._endings.announce(self, self._on_ended, self._waits)
                announced_at = time.monotonic()
            self._wake.clear()
            await self._look()
            if self._news:
                continue
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), interval)
            interval = min(interval * POLL_GROWTH, LAST_POLL_SECONDS)

    async def _look(self) -> None:
        asked = list(self._waits)
        try:
            rows = await self._statements.run("find_ends", asked, timeout=LOOK_SECONDS)
        except (ConflictError, DatabaseUnavailableError):
            return  # a database that is away may come back within the waits' time
        except PqrunError as error:  # a missing schema or right stays missing
            for job_id in asked:
                self._resolve(job_id, error)
            return
        found = {row["id"]: row for row in rows}
        for job_id in asked:
            row = found.get(job_id)
            if row is None:
                self._resolve(job_id, _not_found(job_id))
            elif (end := _end(row)).status.is_finished:
                self._resolve(job_id, end)

    def _resolve(self, job_id: int, answer: End | PqrunError) -> None:
        for future in self._waits.pop(job_id, set()):
            if not future.done():
                _set(future, answer)

    def _on_ended(self, ids: set[int]) -> None:
        if not self._waits.keys().isdisjoint(ids):
            self._wake.set()


def _not_found(job_id: int) -> JobNotFound:
    return JobNotFound(f"there is no job {job_id} (deleted, or removed by retention)", job_id)


def _end(row: Row) -> End:
    return End(Status(row["status"]), row["result"], row["last_error"])


def _set(future: asyncio.Future[End], answer: End | PqrunError) -> None:
    if isinstance(answer, End):
        future.set_result(answer)
    else:
        future.set_exception(answer)
