"""Where the running handlers are: their stacks as text, taken on request. File names, lines and source only; no values, no payloads.

Taken on the worker's loop, where nothing else moves meanwhile. A loop that does not answer within ANSWER_SECONDS is blocked, so it
stands still as well: then the keeper's thread looks at it from outside, and says so.
"""

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple

from pqrun.job.storable import one_line, replace_unstorable
from pqrun.run.attempt import Attempt

__all__ = ["STACKS_BYTES", "Stacks"]

STACKS_BYTES: Final = 64 * 1024
"""What is told at most, in UTF-8; the longest running handlers come first."""

ANSWER_SECONDS: Final = 0.3
"""For the worker's loop to look: the keeper, which waits for it, must beat again soon."""

FRAMES_MOST: Final = 60
"""Of one handler: the innermost ones."""

HANDLERS_MOST: Final = 500
"""More than fit into STACKS_BYTES."""

CUT: Final = "\n... cut here: there is more than fits\n"

_OURS: Final = (str(Path(__file__).parent), threading.__file__, asyncio.events.__file__)
"""What stands around a handler, and says nothing of it."""


class _Taken(NamedTuple):
    """A handler, with what it executes: cheap to take, made into text later and elsewhere."""

    heading: str
    frames: traceback.StackSummary


class Stacks:
    """Made on the worker's loop; ``take`` belongs on the keeper's, which may be the same."""

    def __init__(self, attempts: Callable[[], Sequence[Attempt]]) -> None:
        self._attempts = attempts  # called from the other thread too, while the loop stands still
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    async def take(self) -> str:
        """Return the stacks of all running handlers; never raises."""
        try:
            taken, is_blocked = await self._taken()
            return _told(taken, is_blocked=is_blocked)
        except Exception as error:  # noqa: BLE001  # frames of code that nobody here knows: the keeper must go on beating
            return f"the stacks could not be taken: {type(error).__name__}\n"

    async def _taken(self) -> tuple[list[_Taken], bool]:
        if asyncio.get_running_loop() is self._loop:
            return self._look(), False
        answer: Future[list[_Taken]] = Future()

        def look() -> None:
            if answer.set_running_or_notify_cancel():  # else nobody waits any more
                try:
                    answer.set_result(self._look())
                except Exception as error:  # noqa: BLE001  # told to who waits, in the other thread
                    answer.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(look)
            return await asyncio.wait_for(asyncio.wrap_future(answer), ANSWER_SECONDS), False
        except TimeoutError:
            return self._look(), True

    def _look(self) -> list[_Taken]:
        now, threads = time.monotonic(), sys._current_frames()
        current = asyncio.current_task(self._loop)
        attempts = sorted(self._attempts(), key=lambda attempt: attempt.started)
        return [
            _Taken(_heading(attempt, now), _summary(self._frames(attempt, threads, current)))
            for attempt in attempts[:HANDLERS_MOST]
        ]

    def _frames(
        self, attempt: Attempt, threads: dict[int, FrameType], current: "asyncio.Task[object] | None"
    ) -> Iterable[tuple[FrameType, int]]:
        """Outermost first."""
        if attempt.is_thread_alive and attempt.thread is not None:
            return _of_thread(threads.get(attempt.thread.ident or 0))
        if attempt.task is None:
            return ()
        if attempt.task is current:  # the loop stands in it: a running coroutine does not say what it awaits
            return _of_thread(threads.get(self._thread))
        return _of_coroutine(attempt.task.get_coro())


def _heading(attempt: Attempt, now: float) -> str:
    job = attempt.job
    kind = "thread" if attempt.is_thread_alive else "coroutine"
    ignored = ", given up" if attempt.is_given_up else ""
    seconds = now - attempt.started
    return f"job {job.id} {one_line(job.job_type)}, attempt {job.attempts}, for {seconds:.1f} s, {kind}{ignored}"


def _of_thread(frame: FrameType | None) -> list[tuple[FrameType, int]]:
    return [] if frame is None else [*traceback.walk_stack(frame)][::-1]


def _of_coroutine(awaited: object) -> Iterator[tuple[FrameType, int]]:
    """Go from each coroutine or generator to the one that it awaits; what is awaited at last is no Python."""
    while awaited is not None:
        kind = next((kind for kind in ("cr", "gi", "ag") if hasattr(awaited, f"{kind}_frame")), None)
        frame = None if kind is None else getattr(awaited, f"{kind}_frame")
        if frame is None:
            return
        yield frame, frame.f_lineno
        awaited = getattr(awaited, "gi_yieldfrom" if kind == "gi" else f"{kind}_await")


def _summary(frames: Iterable[tuple[FrameType, int]]) -> traceback.StackSummary:
    """Without what is around the handler, and without the source lines: those are read where the text is made."""
    listed = list(frames)
    first = next((n for n, (frame, _) in enumerate(listed) if not _is_ours(frame)), len(listed))
    last = max((n for n, (frame, _) in enumerate(listed) if _is_handle_run(frame)), default=-1)
    inner = listed[max(first, last + 1) :]
    first = next((n for n, (frame, _) in enumerate(inner) if not _is_ours(frame)), len(inner))
    return traceback.StackSummary.extract(iter(inner[first:][-FRAMES_MOST:]), lookup_lines=False)


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_OURS)


def _is_handle_run(frame: FrameType) -> bool:
    """How a loop in Python calls what is ready; another (uvloop) leaves no frame of its own."""
    return frame.f_code is asyncio.Handle._run.__code__


def _told(taken: Sequence[_Taken], *, is_blocked: bool) -> str:
    state = "; the event loop is blocked" if is_blocked else ""
    parts = [f"{len(taken)} running{state}\n"]
    size = 0
    for heading, frames in taken:
        text = f"\n{heading}\n" + ("".join(frames.format()) or "  (no Python code: it has not begun, or has ended)\n")
        parts.append(text)
        size += len(text)
        if size > STACKS_BYTES:
            break
    return _bounded(replace_unstorable("".join(parts)))


def _bounded(text: str) -> str:
    encoded = text.encode()
    if len(encoded) <= STACKS_BYTES:
        return text
    return encoded[: STACKS_BYTES - len(CUT)].decode(errors="ignore") + CUT
