"""Notifications for systemd (``Type=notify``): READY, STOPPING, STATUS, and WATCHDOG while the event loop turns.

The protocol is a datagram to the socket in NOTIFY_SOCKET, see sd_notify(3); no library is needed for that.
"""

import contextlib
import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Self

from pqrun.health.pulse import Pulse
from pqrun.job.storable import one_line
from pqrun.run import events
from pqrun.worker import Worker

__all__ = ["SystemdNotifier"]


class SystemdNotifier:
    """Tells systemd how a worker is, where systemd asked for it; an async context manager around the worker's run.

    READY once the worker has started, STOPPING when it stops, and, where ``WatchdogSec=`` is set, WATCHDOG twice in that time: it is sent
    by the event loop itself, so a loop that is blocked for longer gets the service restarted, and a database that is away does not.
    ``environ``: where NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID are read (the process environment); without the first it does nothing.
    """

    def __init__(self, worker: Worker, *, environ: Mapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        self._worker = worker
        self._address = _address(environ.get("NOTIFY_SOCKET", ""))
        self._every = _watchdog_seconds(environ)
        self._next = 0.0
        self._socket: socket.socket | None = None
        self._pulse = Pulse(worker, on_turn=self._turned)
        self._unsubscribe: Callable[[], None] = lambda: None

    @property
    def is_wanted(self) -> bool:
        """Whether systemd asked to be told."""
        return self._address is not None

    async def __aenter__(self) -> Self:
        if self._address is not None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)
            self._unsubscribe = self._worker.events.subscribe(self._hear, wants=_wants)
            self._pulse.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._socket is not None:
            self._unsubscribe()
            await self._pulse.stop()
            self._socket.close()
            self._socket = None

    def _turned(self) -> None:
        now = time.monotonic()
        if self._every is not None and now >= self._next:
            self._next = now + self._every
            self._send("WATCHDOG=1")

    def _hear(self, event: events.Event) -> None:
        match event:
            case events.WorkerStarted():
                self._send(f"READY=1\nSTATUS={one_line(event.worker_id)} works, {event.concurrency} slots")
            case events.WorkerStopping(step="stop fetching"):
                self._send(f"STOPPING=1\nSTATUS=stopping, {event.jobs} jobs in hand")
            case _:
                pass

    def _send(self, message: str) -> None:
        if self._socket is not None and self._address is not None:
            with contextlib.suppress(OSError):  # nobody listens, or not now: the watchdog's next may get through
                self._socket.sendto(message.encode(), self._address)


def _wants(kind: type[events.Event]) -> bool:
    return kind in (events.WorkerStarted, events.WorkerStopping)


def _address(text: str) -> str | None:
    """A path, or a name in Linux' abstract namespace, written with an @; systemd has other kinds for virtual machines only."""
    if text.startswith("@"):
        return "\0" + text[1:]
    return text if text.startswith("/") else None


def _watchdog_seconds(environ: Mapping[str, str]) -> float | None:
    """Half of the watchdog's time, as sd_watchdog_enabled(3) advises; None where there is none, or it is for another process."""
    text = environ.get("WATCHDOG_USEC", "")
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        return None
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    return int(text) / 2_000_000
