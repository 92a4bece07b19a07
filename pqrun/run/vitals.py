"""What a worker is doing at this moment, in a few numbers that any thread may read."""

from typing import Literal, TypeAlias

import msgspec

__all__ = ["Vitals", "WorkerState"]

WorkerState: TypeAlias = Literal["off", "starting", "working", "stopping"]
"""``"off"``: it does not run; ``"starting"``: it opens what it needs and registers."""


class Vitals(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of one moment; without a worker at work all but ``slots`` are 0."""

    state: WorkerState
    slots: int
    """How many handlers may run at once."""
    running: int = 0
    """Handlers that run in a slot."""
    held: int = 0
    """Jobs that are claimed and wait for a slot, for a second at most."""
    unwritten: int = 0
    """Ends that are not written yet: many, while the database is away."""
