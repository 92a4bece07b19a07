"""The watch on the worker's event loop: says what blocks it, from another thread, while it is blocked.

A handler that calls something blocking stops everything of its worker: other handlers, timeouts, renewing, cancels. The watch sends the
loop a ping twice a second; one that stays unanswered for BLOCKED_SECONDS is reported once: at once by a line in the log, with the job
whose task runs and the stack, and, when the loop runs again, by the event ``LoopBlocked``, because events are told on the loop.
A process that was stopped as a whole is not taken for blocked: what the watch has slept through itself does not count.
"""

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import NamedTuple

from pqrun.job.record import Job
from pqrun.job.storable import one_line
from pqrun.run.events import Events, LoopBlocked

__all__ = ["InHand", "LoopWatch"]

BLOCKED_SECONDS = 2.0
"""A loop that runs nothing for so long is blocked."""

LOOK_SECONDS = 0.5

GAP_SECONDS = 1.5
"""A watch that has not looked for so long has slept itself, or waited for the GIL: it starts anew."""

STACK_FRAMES = 30
STACK_CHARACTERS = 8_000

NAMED_JOBS = 10
"""Jobs that the line in the log names; the event has them all."""

_CALLED_BY_LOOP = (asyncio.Handle._run.__code__.co_filename, asyncio.Handle._run.__name__)

_LOGGER = logging.getLogger("pqrun")


class InHand(NamedTuple):
    """What runs: the job whose handler the loop is executing at this moment, if it is one, and all that have started."""

    current: Job | None
    running: tuple[Job, ...]


class _Ping:
    """Sent by the watch; only ``is_answered`` is written by the loop."""

    def __init__(self, sent: float) -> None:
        self.sent = sent
        self.is_answered = False
        self.reported: LoopBlocked | None = None

    def answer(self) -> None:
        self.is_answered = True


class LoopWatch:
    """Made on the loop that it watches; ``run`` belongs on the loop of another thread."""

    def __init__(self, in_hand: Callable[[asyncio.AbstractEventLoop], InHand], events: Events) -> None:
        self._in_hand = in_hand  # called from the other thread, while the loop stands still
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._ping: _Ping | None = None
        self._looked = 0.0

    async def run(self) -> None:
        """Look until cancelled, or until the loop is closed."""
        try:
            while not self._loop.is_closed():
                self.look(time.monotonic())
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            if not self._loop.is_closed():
                self.look(time.monotonic())

    def look(self, now: float) -> None:
        """Judge the last ping, at this monotonic time, and send the next when it was answered."""
        has_slept = now - self._looked > GAP_SECONDS
        self._looked = now
        ping = self._ping
        if ping is None or ping.is_answered:
            if ping is not None and ping.reported is not None:
                told = LoopBlocked(now - ping.sent, ping.reported.stack, ping.reported.job, ping.reported.running)
                self._on_loop(self._events.emit, told)
            self._ping = _Ping(now)
            self._on_loop(self._ping.answer)
        elif ping.reported is None and has_slept:
            ping.sent = now
        elif ping.reported is None and now - ping.sent > BLOCKED_SECONDS:
            ping.reported = self._report(now - ping.sent)

    def _report(self, seconds: float) -> LoopBlocked:
        current, running = self._in_hand(self._loop)
        stack = self._stack()
        named = [current] if current is not None else list(running[:NAMED_JOBS])
        jobs = ", ".join(f"{one_line(job.job_type)} id={job.id}" for job in named) or "no job"
        more = len(running) - len(named) if current is None else 0
        _LOGGER.warning(
            "the event loop has been blocked for %.1f s by %s%s; call blocking code in a plain function, which runs in a thread. %s",
            seconds,
            jobs if current is not None else f"one of: {jobs}",
            f" and {more} more" if more > 0 else "",
            one_line(stack),
        )
        return LoopBlocked(seconds, stack, current, running)

    def _stack(self) -> str:
        """What the loop executes, innermost frames last; source lines only, no values, and not how the loop itself was called."""
        frame = sys._current_frames().get(self._thread)
        if frame is None:
            return "(its thread has ended)"
        frames = traceback.extract_stack(frame, STACK_FRAMES)
        called = [n for n, one in enumerate(frames) if (one.filename, one.name) == _CALLED_BY_LOOP]
        return "".join(traceback.format_list(frames[called[-1] + 1 :] if called else frames))[-STACK_CHARACTERS:]

    def _on_loop(self, callback: Callable[..., object], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            self._ping = None  # it was closed this very moment
