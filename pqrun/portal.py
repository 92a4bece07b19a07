"""How synchronous code reaches a store, which lives in an event loop.

Where the store is open in a loop that runs in another thread of this process (a worker's, for its plain-function handlers; a web
application's, for code in ``asyncio.to_thread``), calls cross over to it and share its connections. Else a daemon thread is started at
first use, with a loop and a store of its own, for all threads of this process; a forked child makes its own. It is closed by
``close_sync``, and when the interpreter exits. Calls of many threads meet in one loop, so single defers travel together as coroutines' do.

Whoever waits looks up once a second: a loop that has stopped, or does not answer, must not keep a thread for ever. Limits of time are the
store's own. Nothing here ever waits in a thread whose own loop is running: that loop might be the one that has to answer.
"""

import asyncio
import atexit
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeAlias, TypeVar, cast

from pqrun.errors import DatabaseUnavailableError, NotOpenError, WrongLoopError
from pqrun.job.record import Enqueued, NewJob
from pqrun.store import PgJobStore
from pqrun.store.ports import AnyConnection, AnySyncConnection

__all__ = ["Portal", "cross"]

T = TypeVar("T")

Work: TypeAlias = Callable[[PgJobStore], Coroutine[Any, Any, T]]

LOOK_SECONDS = 1.0
"""Between two looks at the loop, while a thread waits for its answer."""

DEAF_LOOKS = 30
"""After so many looks without a sign from the loop its callers give up. Looks, not seconds: a process that was stopped has not waited."""

CLOSE_SECONDS = 4.0
"""How long the store of a thread of our own may take to close; a process that exits waits for it."""

JOIN_SECONDS = CLOSE_SECONDS + 2.0
"""And its thread to end. It is a daemon: what takes longer is left."""


class Portal:
    """The way from an app's tasks and handles to its store: ``opened_store`` for coroutines, ``run`` for synchronous code.

    ``opened_store`` raises NotOpenError where nobody has opened it; ``find_store`` does not. ``make_store`` makes another one for a
    thread of our own, or raises why that cannot be.
    """

    # Each handle refers to this, and it to no handle: so handles are nothing for the garbage collector.

    def __init__(
        self,
        *,
        opened_store: Callable[[], PgJobStore],
        find_store: Callable[[], PgJobStore],
        make_store: Callable[[], PgJobStore],
    ) -> None:
        self.opened_store = opened_store
        self.find_store = find_store
        self._make_store = make_store
        self._own: _LoopThread | None = None
        self._lock = threading.Lock()
        _PORTALS.add(self)

    def run(self, work: Work[T], *, instead: str) -> T:
        """Run ``work`` with an open store, in its loop, and return what it returns. ``instead``: the call for coroutines.

        Raises WrongLoopError where a loop runs in this thread, NotOpenError where there is no store to be had, and
        DatabaseUnavailableError where the loop does not answer.
        """
        refuse_in_loop(instead)
        while True:
            crossing = self._begin(work)
            if crossing.wait():
                return crossing.result()
            # Its loop ended before it took the call: where that leads now is found out anew.

    def enqueue_jobs(
        self, jobs: Sequence[NewJob], connection: AnyConnection | AnySyncConnection | None, *, instead: str
    ) -> list[Enqueued]:
        """Write jobs; see ``PgJobStore.enqueue_jobs`` and, for a connection, ``enqueue_jobs_sync``."""
        if connection is None:
            return self.run(lambda store: store.enqueue_jobs(jobs), instead=instead)
        # The caller's own transaction, in the caller's thread: neither a loop nor an open store has a part in it.
        return self.find_store().enqueue_jobs_sync(jobs, cast("AnySyncConnection", connection)) if jobs else []

    def close(self) -> None:
        """End the thread of our own, if there is one, within some seconds; the next call starts another."""
        with self._lock:
            own, self._own = self._own, None
        if own is not None:
            _close([own])

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Let what is called until the block ends have a thread of its own: it is for another database. Ended with the block."""
        with self._lock:
            before, self._own = self._own, None
        try:
            yield
        finally:
            self.close()
            with self._lock:
                self._own = before

    def _begin(self, work: Work[T]) -> "_Crossing[T]":
        store = self.find_store()
        loop = store.loop
        # One that is open in a loop of this thread is not running now: nobody would answer there.
        if loop is not None and loop.is_running():
            return _Crossing(loop, lambda: work(store))
        return self._started().crossing(work)

    def _started(self) -> "_LoopThread":
        own = self._own
        if own is not None and own.is_serving:
            return own
        with self._lock:
            if self._own is None or not self._own.is_serving:
                self._own = _LoopThread.started(self._make_store())
            return self._own

    def _forget(self) -> None:
        """In a forked child: the thread stayed behind, its sockets are the parent's, and somebody there may have held the lock."""
        self._own = None
        self._lock = threading.Lock()


def cross(loop: asyncio.AbstractEventLoop | None, work: Callable[[], Coroutine[Any, Any, T]], *, instead: str) -> T:
    """Run ``work`` in a loop that runs in another thread, and return what it returns; see ``Portal.run``."""
    refuse_in_loop(instead)
    if loop is not None:
        crossing = _Crossing(loop, work)
        if crossing.wait():
            return crossing.result()
    raise NotOpenError("not open any more: the event loop of the store has ended")


def refuse_in_loop(instead: str) -> None:
    """Raise WrongLoopError where an event loop runs in this thread."""
    if _is_in_loop():
        raise WrongLoopError(f"a synchronous call would block the event loop that runs in this thread; use: {instead}")


def _is_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class _Crossing(Generic[T]):
    """One call from a thread into a loop that runs in another one, and its answer.

    Beside ``run_coroutine_threadsafe``: the coroutine is made where it runs, so one that never began leaves nothing behind; the wait looks
    up; and a cancelled call is no CancelledError in a thread that has not cancelled it.
    """

    __slots__ = ("_answered", "_deaf_looks", "_loop", "_task", "_tickets", "_work")

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._loop = loop
        self._work = work
        # Whoever takes the one ticket decides: the loop, to begin, or the caller, that it never shall.
        self._tickets = [None]
        self._task: asyncio.Task[T] | None = None
        self._answered = threading.Lock()  # held until there is an answer
        self._answered.acquire()
        self._deaf_looks = 0

    def wait(self) -> bool:
        """Wait for the answer; False: the loop ended before it took the call. What interrupts the wait cancels the call."""
        try:
            if not self._send():
                return False
            while not self._answered.acquire(timeout=LOOK_SECONDS):
                if not self._look():
                    return False
        except BaseException:
            self._give_up()
            raise
        return True

    def result(self) -> T:
        """Return the answer, or raise it."""
        # Taken out: the traceback refers to this frame, and must not lead back to its exception.
        task, self._task = self._task, None
        assert task is not None  # noqa: S101  # there is an answer
        if task.cancelled():
            raise _cut_off("the event loop of the store ended")
        try:
            return task.result()
        finally:
            del task

    def _send(self) -> bool:
        try:
            self._loop.call_soon_threadsafe(self._begin)
        except RuntimeError:  # closed
            return False
        return True

    def _look(self) -> bool:
        """Whether to wait on; raises where no answer can be hoped for."""
        self._deaf_looks += 1
        is_running = self._loop.is_running()
        if is_running and self._deaf_looks <= DEAF_LOOKS:
            with contextlib.suppress(RuntimeError):  # closed since: the next look sees it
                self._loop.call_soon_threadsafe(self._hear)
            return True
        if self._take_ticket():
            if not is_running:
                return False
            raise DatabaseUnavailableError(
                f"the event loop of the store did not take the call within {DEAF_LOOKS * LOOK_SECONDS:g} s, and nothing was "
                "done: something blocks it, or waits there for this thread"
            )
        raise _cut_off("the event loop of the store does not answer any more" if is_running else "its loop was stopped")

    def _give_up(self) -> None:
        if not self._take_ticket():
            with contextlib.suppress(RuntimeError):  # closed: there is nothing to cancel
                self._loop.call_soon_threadsafe(self._cancel)

    def _take_ticket(self) -> bool:
        try:
            self._tickets.pop()
        except IndexError:
            return False
        return True

    # In the loop.

    def _begin(self) -> None:
        if self._take_ticket():
            self._task = self._loop.create_task(self._work())
            self._task.add_done_callback(self._end)

    def _end(self, task: "asyncio.Task[T]") -> None:
        if not task.cancelled():
            task.exception()  # seen, even where its caller has given up
        self._answered.release()

    def _hear(self) -> None:
        self._deaf_looks = 0

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


def _cut_off(why: str) -> DatabaseUnavailableError:
    return DatabaseUnavailableError(f"{why} before it answered: what was asked for may or may not have been done")


class _LoopThread:
    """A daemon thread with an event loop and a store of its own, which the first call opens."""

    def __init__(self, store: PgJobStore) -> None:
        self._store = store
        self._loop = asyncio.new_event_loop()
        self._is_closing = asyncio.Event()
        self._is_ready = False
        self._serving = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="pqrun sync", daemon=True)

    @classmethod
    def started(cls, store: PgJobStore) -> "_LoopThread":
        """Make one and start it; raises NotOpenError where no thread can be had."""
        own = cls(store)
        try:
            own._thread.start()
        except RuntimeError as error:
            own._loop.close()
            failure = NotOpenError(f"no thread could be started for synchronous calls: {error}")
        else:
            _THREADS.add(own)
            if own._serving.wait(JOIN_SECONDS):
                return own
            own.ask_to_end()  # should it ever run
            failure = NotOpenError(
                "a thread was started for synchronous calls and does not run: the server may have to allow threads (uWSGI: "
                "enable-threads = true)"
            )
        raise failure

    @property
    def is_serving(self) -> bool:
        """Whether it takes calls; never in a forked child, where threads of the parent are not alive."""
        return self._thread.is_alive() and not self._is_closing.is_set()

    def crossing(self, work: Work[T]) -> _Crossing[T]:
        """Return a call of ``work`` with the store."""

        async def run() -> T:
            if self._is_closing.is_set():
                raise NotOpenError("closed meanwhile, by close_sync() or the end of the process: nothing was done")
            if not self._is_ready:  # one that others are opening just now is not
                await self._store.start()
                self._is_ready = True
            return await work(self._store)

        return _Crossing(self._loop, run)

    def ask_to_end(self) -> None:
        """Let it close the store, and end."""
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            self._loop.call_soon_threadsafe(self._is_closing.set)

    def join(self, timeout: float) -> None:
        """Wait until it has ended."""
        self._thread.join(timeout)
        _THREADS.discard(self)

    def _serve(self) -> None:
        try:
            self._loop.run_until_complete(self._serve_until_closed())
        finally:
            self._loop.close()

    async def _serve_until_closed(self) -> None:
        self._serving.set()
        await self._is_closing.wait()
        # At the interpreter's exit no further thread can be had, in which an embedded server would be left: its guard sees to that.
        with contextlib.suppress(RuntimeError):
            await self._store.close(CLOSE_SECONDS)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=JOIN_SECONDS - CLOSE_SECONDS)


_PORTALS: weakref.WeakSet[Portal] = weakref.WeakSet()

_THREADS: set[_LoopThread] = set()


def _close(threads: Sequence[_LoopThread]) -> None:
    """End threads of ours, all at the same time."""
    until = time.monotonic() + JOIN_SECONDS
    for own in threads:
        own.ask_to_end()
    for own in threads:
        own.join(max(until - time.monotonic(), 0.0))


def _forget_all() -> None:
    _THREADS.clear()
    for portal in list(_PORTALS):
        portal._forget()


# Registered here, not at the first call: what a user's code registers later runs earlier, and may still defer.
atexit.register(lambda: _close(list(_THREADS)))

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
