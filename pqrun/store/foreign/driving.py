"""One code path for both worlds: what is written as coroutines runs to its end at once where nothing in it suspends."""

from collections.abc import Coroutine
from typing import TypeVar

__all__ = ["run_to_end"]

T = TypeVar("T")


def run_to_end(coroutine: Coroutine[object, None, T]) -> T:
    """Run a coroutine over a session that never suspends, without any event loop, and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise AssertionError("a synchronous session has suspended")
