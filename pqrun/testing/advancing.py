"""Another time: the rows move into the past, and the statements keep the database's clock."""

from datetime import timedelta
from typing import Any

from pqrun.app import App
from pqrun.errors import OptionError
from pqrun.store.rehearsing import shift_times
from pqrun.testing.opening import looking, run_sync

__all__ = ["advance", "advance_sync"]

MOST = timedelta(days=36_500)


async def advance(
    jobs: App[Any],
    by: timedelta = timedelta(0),
    /,
    *,
    days: float = 0,
    hours: float = 0,
    minutes: float = 0,
    seconds: float = 0,
) -> int:
    """Let so much time pass for every job; return how many there are. ``hours=2`` and the like add up, with ``by``.

    Every time in their rows moves back by that much, so that jobs due within it are due now, and so do the plans of schedules; a running
    worker is told. Nothing runs by itself: ``drain`` runs jobs, a worker fires schedules, too. Times of your own tables stay. Raises
    OptionError for a time that is not positive, or over a hundred years.
    """
    moved = by + timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    if not timedelta(0) < moved <= MOST:
        raise OptionError(f"advance: expected a time over 0 and at most {MOST.days} days; got {moved}")
    async with looking(jobs.store) as store:
        return await shift_times(store, moved.total_seconds())


def advance_sync(
    jobs: App[Any],
    by: timedelta = timedelta(0),
    /,
    *,
    days: float = 0,
    hours: float = 0,
    minutes: float = 0,
    seconds: float = 0,
) -> int:
    """Do the same as ``advance`` in a test without an event loop."""
    advancing = advance(jobs, by, days=days, hours=hours, minutes=minutes, seconds=seconds)
    return run_sync(advancing, instead="advance")
