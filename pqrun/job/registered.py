"""``RegisteredWorker``: a worker process as the registry knows it."""

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec
from pydantic import JsonValue

__all__ = ["RegisteredWorker"]


class RegisteredWorker(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the registry, and what its worker holds."""

    id: int
    worker_id: str
    """The readable name, which two processes may share."""
    hostname: str | None
    pid: int | None
    queues: Sequence[str] | None
    """Served; None: all."""
    job_types: Sequence[str]
    """The tasks that it has; pqrun's own begin with ``__``."""
    started_at: datetime
    beat_at: datetime
    dead_at: datetime | None
    """When it was taken for dead; kept for as long as one of its jobs is RUNNING."""
    beat_age_seconds: float
    """Since its last sign of life, by the database's clock."""
    is_alive: bool
    """Not taken for dead, and its last sign of life is recent."""
    running: int
    """Jobs that it holds."""
    concurrency: int | None = None
    """Handlers that it runs at once, all together; None: of a version that does not say."""
    slots: Mapping[str, int] = {}
    """Handlers at once of each queue that has a number of its own; the others share what is left."""
    wanted: Mapping[str, JsonValue] = {}
    """What an operator wants of it, see ``Workers.set``; it follows with its next sign of life."""
    version: str | None = None
    """Of pqrun; None: of one that does not say."""
    fetching: bool = True
    """Whether it claims jobs: False while an operator has it paused, and while it stops."""

    @property
    def is_draining(self) -> bool:
        """Whether it was told to end, and has not yet."""
        return self.wanted.get("drain") is True

    @property
    def is_paused(self) -> bool:
        """Whether it was told to claim nothing; it follows with its next sign of life, see ``fetching``."""
        return self.wanted.get("fetching") is False

    @property
    def state(self) -> str:
        """How it is, in a word or two: ``alive``, ``paused``, ``claims nothing``, ``draining``, ``silent`` or ``dead``."""
        if not self.is_alive:
            return "silent" if self.dead_at is None else "dead"
        if self.is_draining:
            return "draining"
        if self.fetching:
            return "alive"
        return "paused" if self.is_paused else "claims nothing"
