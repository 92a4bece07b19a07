"""What is known of a worker's health: whether its event loop turns, and which of its duties meet errors.

The database is not asked for it. The keeper beats every second, on a connection of its own, and says when that fails; so do fetching and
settling. So probes cost the database nothing, however often they come, and a database that is away is known within two seconds.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from pqrun.run import events
from pqrun.run.settle import PENDING_MAX
from pqrun.worker import Worker

__all__ = ["Answer", "Pulse"]

TURN_SECONDS = 0.5
"""How often the loop shows that it turns."""

FAILING_SECONDS = 60.0
"""A duty that fails says so at each try, in the worst case after a statement has used up its time; what is older is over."""

ERROR_SHOWN_MAX = 300

_ESSENTIAL: Final = {"keep": "sign of life", "fetch": "fetching", "settle": "writing outcomes"}
"""The duties without which a worker does no good, and what they are called."""


class Answer(NamedTuple):
    """Whether a question is answered with yes, and why not."""

    is_good: bool
    reasons: list[str]


class Pulse:
    """Written on the worker's loop, read by any thread; ``start`` and ``stop`` belong on the loop."""

    def __init__(self, worker: Worker, *, on_turn: Callable[[], None] = lambda: None) -> None:
        self._worker = worker
        self._on_turn = on_turn
        self._turned = time.monotonic()
        self._failing: dict[str, tuple[str, float]] = {}  # replaced, never changed: another thread may read it
        self._task: asyncio.Task[None] | None = None
        self._unsubscribe: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Begin to watch."""
        self._turned = time.monotonic()
        self._unsubscribe = self._worker.events.subscribe(self._hear, wants=_wants)
        self._task = asyncio.create_task(self._turn(), name="pqrun pulse")

    async def stop(self) -> None:
        """Watch no more."""
        self._unsubscribe()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def is_live(self, blocked_after: float) -> Answer:
        """Whether the loop has turned within so many seconds; whatever else is wrong, a restart would not cure it."""
        still = self.still_seconds
        if still <= blocked_after:
            return Answer(True, [])
        return Answer(False, [f"the event loop has not turned for {still:.0f} s: a handler blocks it"])

    def is_ready(self, blocked_after: float) -> Answer:
        """Whether the worker claims jobs and reaches its database."""
        vitals = self._worker.vitals
        reasons = list(self.is_live(blocked_after).reasons)
        if vitals.state != "working":
            said = {"off": "does not run", "starting": "starts", "stopping": "stops"}
            reasons.append(f"the worker {said.get(vitals.state, vitals.state)}")
        recent = time.monotonic() - FAILING_SECONDS
        reasons += [f"{_ESSENTIAL[duty]} fails: {error}" for duty, (error, at) in self._failing.items() if at > recent]
        if vitals.unwritten >= PENDING_MAX:
            reasons.append(f"{vitals.unwritten} outcomes are not written yet: nothing more is started")
        return Answer(not reasons, reasons)

    @property
    def still_seconds(self) -> float:
        """How long the loop has not turned, as far as that was looked at."""
        return max(time.monotonic() - self._turned - TURN_SECONDS, 0.0)

    async def _turn(self) -> None:
        while True:
            self._turned = time.monotonic()
            self._on_turn()
            await asyncio.sleep(TURN_SECONDS)

    def _hear(self, event: events.Event) -> None:
        match event:
            case events.LoopFailed(duty=duty) if duty in _ESSENTIAL:
                self._failing = {**self._failing, duty: (event.error[:ERROR_SHOWN_MAX], time.monotonic())}
            case events.LoopResumed(duty=duty):
                self._failing = {name: one for name, one in self._failing.items() if name != duty}
            case events.WorkerStarted() | events.WorkerStopped():
                self._failing = {}
            case _:
                pass


def _wants(kind: type[events.Event]) -> bool:
    return kind in (events.LoopFailed, events.LoopResumed, events.WorkerStarted, events.WorkerStopped)
