"""Notifications of the schema's channel, read: hints about lanes, times, cancels, waiters. What cannot be read is passed over.

``ready:PRIORITY:QUEUE``, ``suspect:PRIORITY:QUEUE``, ``due:EPOCH_SECONDS`` (by the database's clock), ``cancel:WORKER:ID``,
``left:WORKER`` (it is gone, and has left jobs RUNNING), ``await:ID,ID,…``, ``schedules`` (one was added or changed),
``pauses`` (something was paused or resumed), ``wanted`` (something is wanted of
a worker).
"""

from collections.abc import Callable

from pqrun.store.claiming import Lane

__all__ = ["Hints"]


class Hints:
    """Who is told of what."""

    def __init__(
        self,
        *,
        on_ready: Callable[[Lane], None],
        on_suspect: Callable[[], None],
        on_due: Callable[[float], None],
        on_cancel: Callable[[], None],
        on_left: Callable[[], None],
        on_await: Callable[[list[int]], None],
        on_schedules: Callable[[], None],
        on_change: Callable[[], None],
    ) -> None:
        self._on_ready = on_ready
        self._on_suspect = on_suspect
        self._on_due = on_due
        self._on_cancel = on_cancel
        self._on_left = on_left
        self._on_await = on_await
        self._on_schedules = on_schedules
        self._on_change = on_change

    def __call__(self, message: str) -> None:
        """Read one notification."""
        kind, _, rest = message.partition(":")
        try:
            self._dispatch(kind, rest)
        except ValueError:
            return  # written by hand, or by another version: polling finds what it meant

    def _dispatch(self, kind: str, rest: str) -> None:
        if kind == "ready":
            priority, _, queue = rest.partition(":")
            self._on_ready(Lane(queue, int(priority)))
        elif kind == "suspect":
            self._on_suspect()
        elif kind == "due":
            self._on_due(float(rest))
        elif kind == "cancel":
            self._on_cancel()
        elif kind == "left":
            self._on_left()
        elif kind == "await":
            self._on_await([int(text) for text in rest.split(",")])
        elif kind == "schedules":
            self._on_schedules()
        elif kind in ("pauses", "wanted"):
            self._on_change()
