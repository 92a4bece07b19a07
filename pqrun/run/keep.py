"""The keeper: keeps this worker registered and alive in the eyes of others, hears notifications, and observes the other workers.

It runs in a thread of its own with a small event loop and one direct connection, so that a handler which blocks the worker's loop is not
taken for dead. Where only a handed-in pool is there, the same code runs on the worker's loop with a connection of the pool's. Each second
it beats; the answer carries everybody's beats, what is paused, and what is wanted of this worker. When its connection is lost it connects
again, with a growing pause, and registers anew if it was taken for dead meanwhile (its claims are lost then; renewing finds that out). It
never touches a job.
"""

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from pqrun.errors import DatabaseUnavailableError, PqrunError
from pqrun.job.pause import NO_PAUSES, Pauses
from pqrun.job.policy import LoopErrorPolicy
from pqrun.job.serving import Serving
from pqrun.job.wanted import read_orders
from pqrun.run.blockage import LoopWatch
from pqrun.run.events import Events, WorkerDied
from pqrun.run.observe import Observer
from pqrun.run.streak import ErrorStreak
from pqrun.store.registry import Beat, Beats

__all__ = ["Keeper", "Registry"]

BEAT_SECONDS = 1.0


class Registry(Protocol):
    """What the keeper needs of the store: one kept connection with the registry's statements and notifications."""

    async def register(self, worker_id: str, hostname: str, pid: int, serving: Serving) -> int:
        """Add a row; return its id."""
        ...

    async def serve(self, worker: int, serving: Serving) -> None:
        """Say in the row what is served from now on."""
        ...

    async def tell_stacks(self, worker: int, text: str) -> None:
        """Write where the handlers are."""
        ...

    async def hold_lock(self, worker: int) -> bool:
        """Take the session lock."""
        ...

    async def listen(self, on_message: Callable[[str], None]) -> None:
        """Hear the schema's channel on this connection."""
        ...

    async def beat(self, worker: int) -> Beats:
        """Advance the counter; read all."""
        ...

    async def probe_locks(self, workers: list[int]) -> frozenset[int]:
        """Return those whose lock is free."""
        ...

    async def bury(self, dead: list[Beat]) -> list[tuple[int, str]]:
        """Take for dead."""
        ...

    async def deregister(self, worker: int) -> None:
        """Leave."""
        ...

    @property
    def is_connected(self) -> bool:
        """Whether the connection stands."""
        ...

    async def connect(self) -> None:
        """Open the connection if it does not stand."""
        ...

    async def close(self) -> None:
        """Close it."""
        ...


class Keeper:
    """See the module's docstring. Callbacks are called on the worker's loop."""

    def __init__(
        self,
        open_registry: Callable[[], Registry],
        *,
        worker_id: str,
        serving: Serving,
        in_thread: bool,
        observer: Observer | None,
        events: Events,
        policy: LoopErrorPolicy,
        on_registered: Callable[[int], None],
        on_connected: Callable[[], None],
        on_message: Callable[[str], None],
        on_dead: Callable[[], None],
        on_gone: Callable[[], None],
        on_pauses: Callable[[Pauses], None],
        on_wanted: Callable[[str], None],
        take_stacks: Callable[[], Awaitable[str]],
        watch: LoopWatch | None = None,
    ) -> None:
        self._open_registry = open_registry
        self._worker_id = worker_id
        self._in_thread = in_thread
        self._observer = observer  # None: somebody else reaps
        self._events = events
        self._on_registered = on_registered
        self._on_connected = on_connected
        self._on_message = on_message
        self._on_dead = on_dead
        self._on_gone = on_gone
        self._on_pauses = on_pauses
        self._on_wanted = on_wanted
        self._take_stacks = take_stacks
        self._watch = watch if in_thread else None  # on the loop itself there is nobody to see it blocked
        self._main = asyncio.get_running_loop()
        self._is_started = False
        self._own: asyncio.AbstractEventLoop | None = None  # the thread's loop, or the main one
        self._stop = threading.Event()  # set by the main loop, read by the keeper's
        self._wake: asyncio.Event | None = None  # of the keeper's loop
        self._ended = asyncio.Event()  # of the main loop
        self._worker: int | None = None  # written by the keeper's loop alone
        self._others: frozenset[int] = frozenset()  # the same: who was there at the last beat
        self._was_gone = False  # the same: whether somebody was missing then
        self._pauses = NO_PAUSES  # the same: as of the last beat
        self._wanted: str | None = None  # the same
        self._stacks_told: str | None = None  # the same: the last request that was answered
        self._told_serving = serving  # the same: what the row says
        self._serving = serving  # written by the main loop, read by the keeper's
        self._holds_lock = False  # the same; never behind a pooler, where no notification is heard either
        self._is_set_up = False  # the same: whether the present connection listens and holds the lock
        self._streak = ErrorStreak("keep", policy)  # the same
        self._task: asyncio.Task[None] | None = None
        self._is_held = False  # written by the main loop, read by the keeper's
        self._still = asyncio.Event()  # of the main loop: the keeper has seen that it is held

    def start(self) -> None:
        """Start the thread, or the task."""
        self._is_started = True
        if self._in_thread:
            threading.Thread(target=self._thread, name="pqrun keeper", daemon=True).start()
        else:
            self._task = asyncio.create_task(self._run(), name="pqrun keeper")

    async def hold(self) -> int | None:
        """Beat no more until ``resume``, as a process that hangs; return our row of the registry, if any, once no beat is under way."""
        if not self._is_started or self._ended.is_set():
            return None
        self._still.clear()
        self._is_held = True
        self._call_keeper()
        try:
            await self._still.wait()
        except BaseException:
            self.resume()
            raise
        return self._worker

    def resume(self) -> None:
        """Beat again; where the row was taken for dead meanwhile, that registers anew."""
        self._is_held = False
        self._call_keeper()

    def look(self) -> None:
        """Beat at once: what comes with it has changed."""
        self._call_keeper()

    def serve(self, serving: Serving) -> None:
        """Let the row say this from now on."""
        self._serving = serving
        self._call_keeper()

    async def stop(self, timeout: float) -> bool:
        """Deregister and end; return whether that was in time. The thread is a daemon, so a hung one does not hold the process."""
        self._stop.set()
        if not self._is_started:
            return True
        self._call_keeper()
        try:
            await asyncio.wait_for(self._ended.wait(), max(timeout, 0.0))
        except TimeoutError:
            if self._task is not None:
                self._task.cancel()
            return False
        return True

    def _call_keeper(self) -> None:
        if self._own is not None and self._wake is not None:
            with contextlib.suppress(RuntimeError):  # its loop has just closed
                self._own.call_soon_threadsafe(self._wake.set)

    def _thread(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        self._own = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        registry = self._open_registry()
        watching = None if self._watch is None else asyncio.create_task(self._watch.run(), name="pqrun watch")
        try:
            while not self._stop.is_set():
                seconds = BEAT_SECONDS
                if self._is_held:
                    self._tell(self._still.set)
                else:
                    try:
                        await self._tick(registry)
                        self._resumed()
                    except Exception as error:  # noqa: BLE001  # the border of the loop: no error of a beat ends the keeper
                        seconds = self._failed(error)
                await self._pause(seconds)
            await self._leave(registry)
        finally:
            if watching is not None:
                watching.cancel()
            try:
                await registry.close()
            finally:
                self._tell(self._still.set)  # whoever holds it has nothing to wait for
                self._tell(self._ended.set)

    async def _pause(self, seconds: float) -> None:
        assert self._wake is not None  # noqa: S101  # set before the loop
        if not self._stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), seconds)
        self._wake.clear()

    async def _tick(self, registry: Registry) -> None:
        if self._is_set_up and not registry.is_connected:
            # Told as any other loss; the next tick, which comes at once, connects again.
            raise DatabaseUnavailableError("the connection that beats and listens is gone")
        if not self._is_set_up:
            await self._set_up(registry)
        if self._worker is None:
            await self._register(registry)
        worker = self._worker
        assert worker is not None  # noqa: S101  # just registered
        beats = await registry.beat(worker)
        if not beats.is_registered:
            await self._register(registry)
        elif not self._holds_lock:
            # After a connection that broke in silence the server may keep its session, with the lock, for a while.
            self._holds_lock = await registry.hold_lock(worker)
        self._note_gone(beats)
        if beats.is_registered:
            self._pass_on(beats)
            await self._tell_stacks(registry, worker)
        if (serving := self._serving) is not self._told_serving:
            await registry.serve(self._worker or worker, serving)
            self._told_serving = serving
        await self._observe(registry, beats)

    def _pass_on(self, beats: Beats) -> None:
        """Tell the worker what was decided from outside, when that has changed."""
        if beats.pauses != self._pauses:
            self._pauses = beats.pauses
            self._tell(self._on_pauses, beats.pauses)
        if beats.wanted != self._wanted:
            self._wanted = beats.wanted
            if beats.wanted is not None:
                self._tell(self._on_wanted, beats.wanted)

    async def _tell_stacks(self, registry: Registry, worker: int) -> None:
        """Answer who asked where the handlers are: from here, because the worker's loop may be blocked."""
        asked = None if self._wanted is None else read_orders(self._wanted).stacks
        if asked is not None and asked != self._stacks_told:
            await registry.tell_stacks(worker, await self._take_stacks())
            self._stacks_told = asked

    async def _set_up(self, registry: Registry) -> None:
        self._is_set_up = (
            False  # until all of it has worked: a connection that stands but does not listen hears nothing, for ever
        )
        if self._observer is not None:
            self._observer.reset()
        await registry.connect()
        await registry.listen(lambda message: self._tell(self._on_message, message))
        if self._worker is not None:
            self._holds_lock = await registry.hold_lock(self._worker)
        self._is_set_up = True
        self._tell(self._on_connected)  # whatever was announced before is not heard

    async def _register(self, registry: Registry) -> None:
        serving = self._serving
        worker = await registry.register(self._worker_id, socket.gethostname(), os.getpid(), serving)
        self._told_serving, self._wanted = serving, None  # a new row: nothing is wanted of it yet
        self._holds_lock = await registry.hold_lock(worker)
        self._worker = worker
        self._tell(self._on_registered, worker)

    def _note_gone(self, beats: Beats) -> None:
        """Where no notification is heard, the registry itself tells of a death that another worker has found: its jobs may wait for us."""
        others = frozenset(beat.worker for beat in beats.others)
        is_gone = not self._holds_lock and not self._others <= others
        if is_gone or self._was_gone:  # and once more: who found it dead may not have taken its jobs back yet
            self._tell(self._on_gone)
        self._others, self._was_gone = others, is_gone

    async def _observe(self, registry: Registry, beats: Beats) -> None:
        if self._observer is None:
            return
        to_probe, dead = self._observer.observe(beats.others, time.monotonic())
        if to_probe:
            free = await registry.probe_locks([beat.worker for beat in to_probe])
            dead += self._observer.confirmed(to_probe, free)
        if dead:
            for _, worker_id in await registry.bury(dead):
                self._tell(self._events.emit, WorkerDied(worker_id))
            self._tell(self._on_dead)

    async def _leave(self, registry: Registry) -> None:
        if self._worker is not None and registry.is_connected:
            with contextlib.suppress(PqrunError):
                await registry.deregister(self._worker)

    def _resumed(self) -> None:
        if (resumed := self._streak.ended()) is not None:
            self._tell(self._events.emit, resumed)

    def _failed(self, error: Exception) -> float:
        if self._observer is not None:
            self._observer.reset()
        self._is_set_up = False  # whatever failed: a new connection is the one cure that is always right
        # Never beyond a beat: a keeper that waits longer than the database was away could be taken for dead.
        failed = self._streak.met(error, jitter=0.5, most_seconds=BEAT_SECONDS)
        self._tell(self._events.emit, failed)
        return failed.sleep_seconds

    def _tell(self, callback: Callable[..., object], *arguments: object) -> None:
        """Call on the worker's loop; a loop that is closed needs no news."""
        with contextlib.suppress(RuntimeError):
            self._main.call_soon_threadsafe(callback, *arguments)
