"""What fetching needs of the store and of the executor."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from pqrun.job.record import Claim, Job
from pqrun.run.groups import SHARED, GroupName
from pqrun.store.claiming import ClaimBatch, Lane, Promotion, Survey

__all__ = ["Claims", "Slots"]


class Claims(Protocol):
    """What fetching needs of the store."""

    async def claim(
        self,
        lanes: Sequence[tuple[Lane, int]],
        types: Sequence[str],
        proven: Sequence[str],
        alive: Sequence[int],
        *,
        limit: int,
        look: int,
        free: int,
    ) -> ClaimBatch:
        """Claim up to ``limit`` jobs."""
        ...

    async def claim_suspect(
        self, queues: Sequence[str] | None, types: Sequence[str], alive: Sequence[int]
    ) -> Job | None:
        """Claim one job that was lost before."""
        ...

    async def find_forgotten(self, known: Sequence[Claim]) -> list[Job]:
        """Return jobs claimed for this worker that it does not know of."""
        ...

    async def survey(self, queues: Sequence[str] | None) -> Survey:
        """List lanes with jobs."""
        ...

    async def promote(self, after: datetime | None) -> Promotion:
        """Make due jobs READY."""
        ...


class Slots(Protocol):
    """What fetching needs of the executor."""

    @property
    def groups(self) -> Sequence[GroupName]:
        """The groups of queues that have slots."""
        ...

    def capacity(self, group: GroupName = SHARED) -> tuple[int, int]:
        """Return (free slots, claims to hold beyond them) of a group."""
        ...

    def served_types(self) -> list[str]:
        """Return the types to claim."""
        ...

    def alive_ids(self) -> list[int]:
        """Return ids that must not be claimed."""
        ...

    def known_claims(self) -> list[Claim]:
        """Return the claims that it knows of."""
        ...

    @property
    def proven_types(self) -> Sequence[str]:
        """Types that may be fetched ahead."""
        ...

    @property
    def has_unstarted(self) -> bool:
        """Whether claims wait for a slot."""
        ...

    def take(self, jobs: Sequence[Job]) -> None:
        """Run these."""
        ...

    async def take_alone(self, job: Job) -> None:
        """Run this one apart from others."""
        ...
