"""Which Python files have changed: by their times and sizes, looked at again and again.

Polling, and not the system's notifications: it needs no package, works on every file system (network and container mounts tell
nothing), and a look at some thousand files takes milliseconds. The walk is bounded, and passes folders that hold no code of the project.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, TypeAlias

__all__ = ["FILES_MOST", "POLL_SECONDS", "Snapshot", "changes", "snapshot"]

POLL_SECONDS: Final = 0.5

FILES_MOST: Final = 5_000
"""Of a larger tree the rest is not watched."""

_PASSED: Final = frozenset({"__pycache__", "node_modules", "site-packages"})

Snapshot: TypeAlias = Mapping[str, tuple[int, int]]
"""Modification time in nanoseconds and size of each file, by its path below the root."""


def snapshot(root: Path) -> Snapshot:
    """Look at the Python files below a folder, FILES_MOST at most; what vanishes meanwhile is left out."""
    found: dict[str, tuple[int, int]] = {}
    for path in _python_files(root):
        try:
            stat = path.stat()
        except OSError:
            continue
        found[str(path.relative_to(root))] = stat.st_mtime_ns, stat.st_size
        if len(found) >= FILES_MOST:
            break
    return found


def changes(before: Snapshot, after: Snapshot) -> list[str]:
    """Return the files that are new, gone or different, sorted."""
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


def _python_files(root: Path) -> Iterator[Path]:
    for folder, inner, files in os.walk(root):
        here = Path(folder)
        # Virtual environments hold a pyvenv.cfg.
        inner[:] = sorted(
            name
            for name in inner
            if not name.startswith(".") and name not in _PASSED and not (here / name / "pyvenv.cfg").exists()
        )
        yield from (here / name for name in sorted(files) if name.endswith(".py"))
