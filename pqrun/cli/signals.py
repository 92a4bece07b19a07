"""SIGINT and SIGTERM for commands: heard on the event loop, or turned into the cancellation of what a command does.

A command never meets KeyboardInterrupt in the middle of a line: servers it has started and folders it has made are always
left in order.
"""

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

import typer

__all__ = ["ENDING", "Interrupts", "handled", "heard"]

T = TypeVar("T")

ENDING = (signal.SIGINT, signal.SIGTERM)
"""What asks a process to end: a terminal's Ctrl-C, and every service manager."""

_LOGGER = logging.getLogger("pqrun")

_hearing: list[asyncio.AbstractEventLoop] = []
"""Loops of this process that hear signals: none in a forked child."""


@contextmanager
def handled(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Have ``handler`` called for SIGINT and SIGTERM, between any two lines; the previous handlers come back at the end."""
    previous = {number: signal.signal(number, handler) for number in ENDING}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, signal.SIG_DFL if before is None else before)


@contextmanager
def heard(loop: asyncio.AbstractEventLoop, call: Callable[[int], None]) -> Iterator[None]:
    """Call ``call(number)`` on the loop for each SIGINT and SIGTERM.

    Where the loop cannot hear signals (Windows), plain handlers pass them on, and one warning says so: such a loop may hear
    late, when it wakes up for something else.
    """

    def pass_on(number: int, _frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(call, number)

    with handled(pass_on):
        by_loop = _add_to(loop, call)
        _hearing.append(loop)
        try:
            yield
        finally:
            _hearing.remove(loop)
            for number in by_loop:
                loop.remove_signal_handler(number)


class _Forking(threading.local):
    """What the thread that forks had blocked before; None: nobody hears signals here."""

    blocked: set[int | signal.Signals] | None = None


_forking = _Forking()


def _before_fork() -> None:
    """Hold signals back: one to a child that has not unheard yet would count as one to its parent."""
    _forking.blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING) if _hearing else None


def _after_fork() -> None:
    if _forking.blocked is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _forking.blocked)


def _unhear() -> None:
    """In the child: a signal to it ends it, and is not written into the pipe by which the parent's loop hears its own."""
    if _hearing:
        _hearing.clear()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_unhear)


def _add_to(loop: asyncio.AbstractEventLoop, call: Callable[[int], None]) -> list[int]:
    added: list[int] = []
    try:
        for number in ENDING:
            loop.add_signal_handler(number, call, number)
            added.append(number)
    except NotImplementedError:
        _LOGGER.warning("this event loop cannot hear signals: plain handlers are used, and may be heard a little late")
    return added


class Interrupts:
    """Runs a command's coroutine so that SIGINT or SIGTERM cancels it; afterwards the exit code is 128 + the signal's number.

    Use as a context manager around everything that must be left in order. Outside of ``run`` a first signal waits for the next
    ``run``; a second one raises KeyboardInterrupt, so that nothing can hang for good.
    """

    def __init__(self) -> None:
        self._number = 0  # of the first signal; written by the handlers, which run on the main thread
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(handled(self._note))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        if isinstance(error, KeyboardInterrupt):
            raise typer.Exit(128 + (self._number or signal.SIGINT)) from None

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run in a new event loop; raises KeyboardInterrupt once it has ended, if a signal cancelled it."""
        try:
            return asyncio.run(self._cancelled_by_signals(main))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None

    async def _cancelled_by_signals(self, main: Coroutine[Any, Any, T]) -> T:
        task = asyncio.ensure_future(main)

        def cancel(number: int) -> None:
            self._number = self._number or number
            task.cancel()

        with heard(asyncio.get_running_loop(), cancel):
            if self._number:  # it came before this loop was there
                task.cancel()
            return await task

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self._number:
            raise KeyboardInterrupt
        self._number = number
