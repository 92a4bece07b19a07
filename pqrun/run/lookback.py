"""When to look for claims whose answer was lost: they may have been written all the same, and nobody would ever run what they took."""

import contextlib
import time
from collections.abc import Iterator

from pqrun.errors import DatabaseUnavailableError

__all__ = ["LookBack"]

LOOK_BACK_SECONDS = (0.0, 5.0, 30.0, 120.0, 600.0)
"""At once, and again, since the statement may reach the server long after that."""


class LookBack:
    """The times of the looks that are still to come. Monotonic."""

    def __init__(self) -> None:
        self._times: list[float] = []

    @property
    def is_due(self) -> bool:
        """Whether it is time for a look."""
        return bool(self._times) and time.monotonic() >= self._times[0]

    @property
    def next(self) -> float:
        """When the next look is due; infinity: none is."""
        return self._times[0] if self._times else float("inf")

    def looked(self) -> None:
        """Note a look."""
        del self._times[0]

    def soon(self) -> None:
        """Look at once, besides what is planned."""
        now = time.monotonic()
        self._times = [now, *(at for at in self._times if at > now)]

    @contextlib.contextmanager
    def around_claim(self) -> Iterator[None]:
        """Plan looks when the claim inside ends with its connection."""
        try:
            yield
        except DatabaseUnavailableError:
            now = time.monotonic()
            self._times = [now + seconds for seconds in LOOK_BACK_SECONDS]
            raise
