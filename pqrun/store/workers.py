"""What is wanted of workers from outside: written into the registry, where each finds it with its next beat."""

from collections.abc import Sequence

from pqrun.store.enqueueing import Runs

__all__ = ["want"]


async def want(session: Runs, workers: Sequence[int], wanted: str) -> list[int]:
    """Write what is wanted of these workers; return those that still live."""
    return [row["id"] for row in await session.run("want", list(workers), wanted)]
