"""How much waits, per queue; and turns, by which one of many processes does something for all of them.

A turn is a lease by the database's clock, for as long as its holder said, and taken again before that: it works behind a pooler, where no
session lock does, and whoever stops to take it loses it.
"""

from typing import NamedTuple

from pqrun.store.enqueueing import Runs

__all__ = ["COUNT_MAX", "QueueDepth", "leave_turn", "measure_queues", "take_turn"]

COUNT_MAX = 50_000
"""Rows of one lane, or of one state, that are counted at most: some 20 ms."""

LANES_MAX = 1_000
"""Lanes (queue and priority) that are looked at."""


class QueueDepth(NamedTuple):
    """What is in a queue; a number that reaches COUNT_MAX stands for that many or more."""

    queue: str
    ready: int
    """Jobs that are due and wait for a worker."""
    scheduled: int
    """Jobs for later, retries among them; of the first COUNT_MAX of all queues, by the time when they are due."""
    running: int
    oldest_ready_seconds: float | None
    """How long the first READY job of its lanes has been due; None where none waits."""


async def measure_queues(session: Runs) -> list[QueueDepth]:
    """Count what is active, queue by queue, in bounded time; queues in which nothing is are left out."""
    rows = await session.run("measure_queues", COUNT_MAX, LANES_MAX)
    return [
        QueueDepth(row["queue"], row["ready"], row["scheduled"], row["running"], row["oldest_ready_seconds"])
        for row in rows
    ]


async def take_turn(session: Runs, duty: str, holder: int, *, seconds: float) -> bool:
    """Take, or keep, the turn to do ``duty`` for so many seconds; return False where it is another's."""
    return bool(await session.run("take_turn", duty, holder, seconds))


async def leave_turn(session: Runs, duty: str, holder: int) -> None:
    """Let the next one have the turn at once."""
    await session.run("leave_turn", duty, holder)
