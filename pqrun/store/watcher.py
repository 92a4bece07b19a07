"""Watching jobs: one statement asks for the reports of all that this process watches, as often as the most curious of them wants.

A watch is there only while somebody awaits its next report: between two, nothing of it is left but what was seen last. So a consumer that
is slow gets the latest, and one that leaves has nothing to clean up. The end of a job is heard where LISTEN works (``EndNews``), and seen
by the next look where it does not. A database that is away is waited for.
"""

import asyncio
import contextlib
import time
from typing import NamedTuple, Self

from pqrun.errors import ConflictError, DatabaseUnavailableError, JobNotFound, NotOpenError, PqrunError, ResultTimeout
from pqrun.job.progress import Progress
from pqrun.store.endings import ANNOUNCE_AGAIN_SECONDS, LINGER_SECONDS, EndNews, Runs
from pqrun.store.reporting import Look, find_progress

__all__ = ["Watch", "Watcher"]

LOOK_SECONDS = 5.0
"""How long one look may take before its connection is given up."""


class _Wanted(NamedTuple):
    """What a wait wants: anything but what it saw last, or the end."""

    job_id: int
    seen: Progress | None
    every: float


class Watcher:
    """All watches of one opened store; see the module's docstring."""

    def __init__(self, statements: Runs, endings: EndNews) -> None:
        self._statements = statements
        self._endings = endings
        self._waits: dict[asyncio.Future[Look], _Wanted] = {}
        self._due: dict[int, float] = {}  # when to look at a job again, monotonic
        self._ended: set[int] = set()  # heard of since the last look began: that may not have seen it
        self._announced: dict[int, float] = {}  # when
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def wait_change(self, job_id: int, seen: Progress | None, *, due: float, every: float) -> Look:
        """Return what is another report than ``seen``, or the end; first look at ``due``, monotonic, then ``every`` so many seconds.

        Raises JobNotFound, NotOpenError, and what the database said if asking again cannot help.
        """
        future: asyncio.Future[Look] = asyncio.get_running_loop().create_future()
        self._waits[future] = _Wanted(job_id, seen, every)
        self._due[job_id] = min(self._due.get(job_id, due), due)
        self._wake.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="pqrun watcher")
        try:
            return await future
        finally:
            del self._waits[future]

    async def look_once(self, job_id: int) -> Look:
        """Return how it is now; raises JobNotFound, and what the database said."""
        look = (await find_progress(self._statements, [job_id])).get(job_id)
        if look is None:
            raise _not_found(job_id)
        return look

    async def close(self) -> None:
        """Stop; watches under way end with NotOpenError."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        for future, wanted in self._waits.items():
            _fail(future, NotOpenError(f"the store was closed while job {wanted.job_id} was watched"))
        await self._endings.leave(self)

    async def _run(self) -> None:
        while True:
            await self._serve()
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), LINGER_SECONDS)
            if not self._waits:
                self._announced.clear()
                await self._endings.leave(self)
            if not self._waits:  # asked again: somebody may have come while the connection closed
                return

    async def _serve(self) -> None:
        while watched := {wanted.job_id for wanted in self._waits.values()}:
            self._due = {job_id: 0.0 if job_id in self._ended else self._due.get(job_id, 0.0) for job_id in watched}
            self._wake.clear()
            await self._announce(watched)
            pause = min(self._due.values()) - time.monotonic()
            if pause > 0:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), min(pause, ANNOUNCE_AGAIN_SECONDS))
                continue  # who has come meanwhile may want a look sooner
            self._ended.clear()
            await self._look(list(watched))

    async def _announce(self, watched: set[int]) -> None:
        now = time.monotonic()
        news = [job_id for job_id in watched if now - self._announced.get(job_id, -1e9) > ANNOUNCE_AGAIN_SECONDS]
        if news:
            self._announced = {job_id: at for job_id, at in self._announced.items() if job_id in watched}
            self._announced |= dict.fromkeys(news, now)
            await self._endings.announce(self, self._on_ended, news)

    async def _look(self, watched: list[int]) -> None:
        try:
            looks = await find_progress(self._statements, watched, timeout=LOOK_SECONDS)
        except (ConflictError, DatabaseUnavailableError):
            looks = None  # one that is away may come back within the watches' time
        except PqrunError as error:  # a missing schema or right stays missing
            for future in self._waits:
                _fail(future, error)
            return
        now = time.monotonic()
        self._due = {}
        for future, wanted in self._waits.items():
            if looks is not None and wanted.job_id in watched:
                _answer(future, wanted, looks.get(wanted.job_id))
                self._due[wanted.job_id] = min(self._due.get(wanted.job_id, now + wanted.every), now + wanted.every)
            elif looks is None:
                self._due[wanted.job_id] = now + wanted.every

    def _on_ended(self, ids: set[int]) -> None:
        ended = ids.intersection(wanted.job_id for wanted in self._waits.values())
        if ended:
            self._ended |= ended
            self._wake.set()


def _not_found(job_id: int) -> JobNotFound:
    return JobNotFound(f"there is no job {job_id} (deleted, or removed by retention)", job_id)


def _answer(future: asyncio.Future[Look], wanted: _Wanted, look: Look | None) -> None:
    if look is None:
        _fail(future, _not_found(wanted.job_id))
    elif not future.done() and (look.status.is_finished or look.progress not in (None, wanted.seen)):
        future.set_result(look)


def _fail(future: asyncio.Future[Look], error: PqrunError) -> None:
    if not future.done():
        future.set_exception(error)


class Watch:
    """The reports of one job, one after another: the present one, each later one that is seen, and the end of the job ends it."""

    def __init__(self, watcher: Watcher, job_id: int, *, timeout: float | None, every: float) -> None:
        self._watcher = watcher
        self._job_id = job_id
        self._timeout = timeout
        self._every = every
        self._until = None if timeout is None else time.monotonic() + timeout
        self._seen: Progress | None = None
        self._due = 0.0
        self._is_over = False

    def __aiter__(self) -> Self:
        """Return itself."""
        return self

    async def __anext__(self) -> Progress:
        """Return the next report. Raises StopAsyncIteration after the last one of a job that has ended, JobNotFound and ResultTimeout."""
        if self._is_over:
            raise StopAsyncIteration
        look = await self._next_look()
        self._due = time.monotonic() + self._every
        self._is_over = look.status.is_finished
        if look.progress is None or look.progress == self._seen:
            raise StopAsyncIteration
        self._seen = look.progress
        return look.progress

    async def _next_look(self) -> Look:
        if self._timeout == 0:
            look = await self._watcher.look_once(self._job_id)
            if look.status.is_finished or look.progress not in (None, self._seen):
                return look
            raise self._timed_out()
        try:
            async with asyncio.timeout(None if self._until is None else max(self._until - time.monotonic(), 0.0)):
                return await self._watcher.wait_change(self._job_id, self._seen, due=self._due, every=self._every)
        except TimeoutError:
            raise self._timed_out() from None

    def _timed_out(self) -> ResultTimeout:
        return ResultTimeout(f"job {self._job_id} did not end within {self._timeout:g} s; it goes on", self._job_id)
