"""Jobs whose payload is newer than this code: put aside for newer workers, never failed, and told of once per task and version.

Such a job goes back to SCHEDULED, its attempt not counted, and comes back after LEAST_SECONDS at the earliest. While no newer worker
is there it comes round and round; so those put aside come back at RETURNS_PER_SECOND at most, however many there are: a mass of them
costs an old worker next to nothing, and its own jobs nothing at all.
"""

import time

from pqrun.job.record import Job
from pqrun.run.events import Events, NeedsNewerCode

__all__ = ["NewerJobs"]

LEAST_SECONDS = 15.0
"""Before such a job comes back: some newer worker may be starting."""

MOST_SECONDS = 600.0
"""A job waits no longer than this for the next worker that may be newer, however many wait with it."""

RETURNS_PER_SECOND = 100.0
"""Of all jobs that this worker has put aside."""


class NewerJobs:
    """What a worker remembers of them; see the module's docstring."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._told: set[tuple[str, int]] = set()
        self._last_return = 0.0  # monotonic

    def put_aside(self, job: Job, *, known: int) -> float:
        """Tell of a job if it is the first of its kind; return the seconds until it may come back. ``known``: the version of this code."""
        kind = (job.job_type, job.payload_version)
        if kind not in self._told:
            self._told.add(kind)
            self._events.emit(NeedsNewerCode(job.job_type, job.payload_version, known, job.id))
        now = time.monotonic()
        self._last_return = max(self._last_return, now + LEAST_SECONDS) + 1 / RETURNS_PER_SECOND
        return min(self._last_return - now, MOST_SECONDS)
