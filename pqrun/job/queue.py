"""``QueueState``: what a queue looks like now, for operators and pages."""

from datetime import datetime

import msgspec

__all__ = ["QueueState"]


class QueueState(msgspec.Struct, frozen=True, kw_only=True):
    """A queue that has jobs which have not ended, is paused, or is served.

    Counts stop at a bound, so that asking is quick with any number of jobs; ``at_least`` names those that did.
    """

    name: str
    ready: int
    """Jobs that could start now, those of paused tasks included."""
    scheduled: int
    """Jobs for later, retries included; counted among the first to come due of all queues."""
    running: int
    failing: int
    """Those of ``scheduled`` that have been tried and failed."""
    at_least: frozenset[str] = frozenset()
    """Names of the counts above that may be greater."""
    oldest_ready_seconds: float | None = None
    """How long the first ready job has been due; None: there is none."""
    paused_at: datetime | None = None
    reason: str | None = None
    """Why it was paused, if somebody said."""
    workers: int = 0
    """Living workers that serve it."""
    slots: int = 0
    """Handlers that those of them which claim can run at once of it; a queue without a number of its own shares its slots with others."""
    paused_workers: int = 0
    """Those of ``workers`` that claim nothing now: an operator has paused them, or they stop."""
