"""``WorkerState``: a living worker as the registry shows it."""

from datetime import datetime

import msgspec

__all__ = ["WorkerState"]


class WorkerState(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the registry: a worker process that gives signs of life."""

    id: int
    """Of the row; a worker that was taken for dead and comes back has another."""
    worker_id: str
    """Its readable name, which several may share."""
    hostname: str | None
    pid: int | None
    queues: tuple[str, ...] | None
    """What it serves; None: all queues."""
    concurrency: int | None
    """Handlers that it runs at once, all together; None: of a version that does not say."""
    slots: dict[str, int]
    """Handlers at once of each queue that has a number of its own; the others share what is left."""
    job_types: tuple[str, ...]
    running: int
    """Jobs in its hands, those included that it has claimed ahead."""
    wanted: dict[str, object]
    """What an operator wants of it, see ``Workers.set``; it follows with its next beat."""
    started_at: datetime
    beat_at: datetime
    """Its last sign of life."""
