"""Reports of progress: handlers only note them, and one duty writes the latest of each, once a second, in one statement for all.

Noting never waits, never fails and never reaches the database; what is overtaken by a later report is not written. A handler that has
ended, or completes, waits for the last of its reports, FLUSH_SECONDS at most: those who wait at the same time share a statement, and at
most one starts in GATHER_SECONDS. While the database is away reports are kept and overtaken as ever. A report of a claim that does not
hold any more is dropped by the statement, which is fenced as every write is; nobody is told, since the claim's loss is.

The other duty here sweeps up reports whose jobs were deleted by plain SQL.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Mapping
from typing import Protocol

from pqrun.job.policy import LoopErrorPolicy
from pqrun.job.progress import Report
from pqrun.job.record import Claim
from pqrun.run.events import Events
from pqrun.run.service import Service
from pqrun.store.reporting import Swept

__all__ = ["Reporter", "Sweeper"]

REPORT_SECONDS = 1.0
"""Between two writes: what people look at need not be newer."""

GATHER_SECONDS = 0.02
"""Between two writes that ends of handlers wait for: however short the jobs are that report, fifty statements a second."""

FLUSH_SECONDS = 1.0
"""How long the end of a handler may wait for its last report."""

SWEEP_SECONDS = 60.0
"""Between two pieces of the sweep, while it finds nothing: it deletes what does no harm."""

SWEEP_PIECE_SECONDS = 0.05
"""Between two pieces while it does."""

_IDLE_SECONDS = 60.0


class Reports(Protocol):
    """What reporting needs of the store."""

    async def report(self, reports: Mapping[Claim, Report]) -> set[Claim]:
        """Write them where the claims hold; return those claims whose rows were locked."""
        ...


class Sweeps(Protocol):
    """What sweeping needs of the store."""

    async def sweep_progress(self, after: int) -> Swept:
        """Look through the next piece."""
        ...


class Reporter:
    """Takes reports from any thread, and writes them; see the module's docstring."""

    def __init__(self, store: Reports, *, events: Events, policy: LoopErrorPolicy) -> None:
        self._store = store
        # Written by handlers in whatever thread, taken by the tick alone: each step is one operation of the dict, so no lock is needed.
        self._latest: dict[Claim, Report] = {}
        self._in_flight: dict[Claim, Report] = {}  # the tick's
        # Whether the tick knows that there is something: set by who notes first, cleared before reports are taken. The first tick looks.
        self._is_woken = True
        self._is_awaited = False  # somebody waits for the next write; on the loop only
        self._written = asyncio.Event()  # replaced with each write
        self._began = -REPORT_SECONDS  # when the last write did, monotonic
        self._loop: asyncio.AbstractEventLoop | None = None  # both are known from the first tick on
        self._thread = 0
        self.service = Service("progress", self._tick, events=events, policy=policy)

    def note(self, claim: Claim, report: Report) -> None:
        """Keep this report in the place of the claim's last one; from any thread."""
        self._latest[claim] = report
        if not self._is_woken:
            self._is_woken = True
            self._wake()

    def has_unwritten(self, claim: Claim) -> bool:
        """Whether a report of this claim is not written yet."""
        return bool(self._latest or self._in_flight) and (claim in self._latest or claim in self._in_flight)

    async def flush(self, claim: Claim) -> None:
        """Wait until the claim's last report is written, or found too late; for FLUSH_SECONDS at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_SECONDS):
                while self.has_unwritten(claim):
                    self._is_awaited = True
                    self.service.wake()
                    await self._written.wait()

    def _wake(self) -> None:
        if self._loop is None or threading.get_ident() == self._thread:
            self.service.wake()
            return
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody writes any more
            self._loop.call_soon_threadsafe(self.service.wake)

    async def _tick(self) -> float:
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        pause = self._began + (GATHER_SECONDS if self._is_awaited else REPORT_SECONDS) - time.monotonic()
        if self._latest and pause > 0:
            return pause
        self._is_woken = False  # before anything is taken: what is noted from here on wakes, or is taken
        self._is_awaited = False
        for claim in list(self._latest):
            self._in_flight[claim] = self._latest[claim]  # first, so that a thread which asks finds it in one of them
            self._in_flight[claim] = self._latest.pop(claim)  # it may have noted another one since
        if self._in_flight:
            await self._write()
        return REPORT_SECONDS if self._latest else _IDLE_SECONDS

    async def _write(self) -> None:
        self._began = time.monotonic()
        again = set(self._in_flight)
        try:
            again = await self._store.report(self._in_flight)
        finally:
            for claim in again:
                self._latest.setdefault(claim, self._in_flight[claim])  # unless a newer one has come
            self._in_flight = {}
        written, self._written = self._written, asyncio.Event()
        written.set()


class Sweeper:
    """Looks through all reports, piece by piece, from the first id again after the last."""

    def __init__(self, store: Sweeps, *, events: Events, policy: LoopErrorPolicy) -> None:
        self._store = store
        self._after = 0
        self.service = Service("sweep progress", self._tick, events=events, policy=policy)

    async def _tick(self) -> float:
        swept = await self._store.sweep_progress(self._after)
        self._after = swept.last_id or 0
        return SWEEP_PIECE_SECONDS if swept.deleted else SWEEP_SECONDS
