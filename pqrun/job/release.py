"""Which of two versions of pqrun is the older one: as much of PEP 440 as pqrun's own versions use."""

import re
from collections.abc import Iterable
from typing import Final

__all__ = ["is_older_release", "newest_release"]

_RELEASE: Final = re.compile(
    r"(\d{1,9}(?:\.\d{1,9})*)(?:\.?(dev|a|b|rc|post)(\d{1,9}))?(?:\+.*)?", re.DOTALL | re.ASCII
)
_STAGES: Final = {"dev": 0, "a": 1, "b": 2, "rc": 3, None: 4, "post": 5}


def is_older_release(one: str | None, other: str | None) -> bool:
    """Whether ``one`` comes before ``other``. None, of one that says no version yet, comes before all; what cannot be read is no older."""
    if other is None or (newer := _key(other)) is None:
        return False
    if one is None:
        return True
    older = _key(one)
    return older is not None and older < newer


def newest_release(versions: Iterable[str | None]) -> str | None:
    """Return the newest of these, the first of several that are; None where all are None, or there are none."""
    newest: str | None = None
    for version in versions:
        if is_older_release(newest, version):
            newest = version
    return newest


def _key(version: str) -> tuple[tuple[int, ...], int, int] | None:
    found = _RELEASE.fullmatch(version)
    if found is None:
        return None
    numbers = [int(number) for number in found[1].split(".")]
    while numbers and not numbers[-1]:  # 1.0 is 1.0.0
        numbers.pop()
    return tuple(numbers), _STAGES[found[2]], int(found[3] or 0)
