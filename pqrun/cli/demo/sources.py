"""The files that the demo reads: the library of the running Python, and one that is broken on purpose."""

import os
import sysconfig
from pathlib import Path

__all__ = ["find_sources", "write_broken"]

_LEFT_OUT = frozenset({"__pycache__", "dist-packages", "idle_test", "site-packages", "test", "tests"})
"""Folders that are not the library itself: installed packages, and tests with thousands of odd files."""

_BROKEN = """\
def half_written(
    return 1
"""


def find_sources(limit: int | None = None) -> list[Path]:
    """Return the Python files of the standard library, sorted; at most ``limit``."""
    found = []
    for folder, subfolders, names in os.walk(sysconfig.get_path("stdlib")):
        subfolders[:] = [name for name in subfolders if name not in _LEFT_OUT]
        found += [Path(folder, name) for name in names if name.endswith(".py")]
    return sorted(found)[:limit]


def write_broken(folder: Path) -> Path:
    """Write a file that is no Python."""
    path = folder / "broken.py"
    path.write_text(_BROKEN, "utf-8")
    return path
