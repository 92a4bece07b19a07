"""``RegisteredWorker``: a worker process as the registry knows it."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

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
