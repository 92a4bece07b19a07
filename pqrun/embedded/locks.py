"""File locks that end with their process, with a limit on every wait.

A lock belongs to the open file, not to the process: two locks on one path exclude each other within one process too.
A child made by ``os.fork`` would share the open file, and so keep its parent's lock alive; the child closes its copies.
A child that executes another program has none.
"""

import os
import threading
import time
from pathlib import Path

from pqrun.embedded.account import open_private
from pqrun.embedded.guard import lock_file, unlock_file

__all__ = ["FileLock"]

_LOOK_AGAIN_SECONDS = 0.01

# Held while a file is opened and noted, so that no fork of another thread falls between the two.
_registry = threading.Lock()
_open_locks: set["FileLock"] = set()


class FileLock:
    """A lock on one file, which is created (mode 0600) if it is missing; never held twice by one object."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1  # open exactly while it is held or being acquired

    @property
    def fd(self) -> int:
        """The open file of a held lock, for a child process that shall keep it; -1 if it is not held."""
        return self._fd

    def acquire(self, *, shared: bool = False, timeout: float) -> bool:
        """Take the lock within ``timeout`` seconds (0: try once); False if others held it all that time.

        Raises OSError if the file cannot be opened.
        """
        deadline = time.monotonic() + timeout
        while not self._try(shared=shared):
            if time.monotonic() >= deadline:
                return False
            time.sleep(_LOOK_AGAIN_SECONDS)
        return True

    def release(self) -> bool:
        """Drop the lock; False if it was not held (a second call, or a forked child)."""
        with _registry:
            held = self in _open_locks
        if held:
            # By name, not only by closing: a child forked by other means than os.fork may still have the file open.
            unlock_file(self._fd)
            self._close()
        return held

    def _try(self, *, shared: bool) -> bool:
        taken = False
        try:
            self._open()
            taken = lock_file(self._fd, shared=shared) and self._is_current()
        finally:
            if not taken:
                self._close()
        return taken

    def _open(self) -> None:
        with _registry:
            self._fd = open_private(self.path, os.O_RDWR)
            _open_locks.add(self)

    def _close(self) -> None:
        with _registry:
            if self in _open_locks:
                _open_locks.discard(self)
                os.close(self._fd)
                self._fd = -1

    def _is_current(self) -> bool:
        """Tell whether the locked file is still the one at this path: its folder may have been deleted meanwhile."""
        try:
            return os.path.samestat(os.fstat(self._fd), self.path.stat())
        except FileNotFoundError:
            return False


def _forget_in_child() -> None:
    for lock in _open_locks:
        os.close(lock._fd)
        lock._fd = -1
    _open_locks.clear()
    _registry.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_registry.acquire, after_in_parent=_registry.release, after_in_child=_forget_in_child)
