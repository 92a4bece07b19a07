"""What the store answered, in order: some promises can be checked on that alone, without a model of the rules."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from pqrun.job.record import Claim, Job
from pqrun.job.state import Status

__all__ = ["Held", "Journal"]

RELEASES_FREE = 10
SNOOZES_FREE = 1_000


@dataclass(frozen=True)
class Held:
    """A claim that was handed out, as the worker got it."""

    claim: Claim
    job: Job
    slot: int
    """Whose it is: the number of the worker here, whatever row of the registry it had."""


@dataclass
class Journal:
    """Every id, every claim and every end that the store told of."""

    ids: set[int] = field(default_factory=set)
    claims: dict[int, Held] = field(default_factory=dict)
    """By claim_id."""
    ended: dict[Claim, Status] = field(default_factory=dict)
    asked: set[int] = field(default_factory=set)
    """claim_ids that were running when a cancel was accepted."""
    starts: Counter[int] = field(default_factory=Counter)
    unstarted: Counter[int] = field(default_factory=Counter)
    released: Counter[int] = field(default_factory=Counter)
    put_off: Counter[int] = field(default_factory=Counter)

    def enqueued(self, ids: Iterable[int]) -> None:
        """New ids."""
        for job_id in ids:
            assert job_id not in self.ids, f"id {job_id} was given twice"
            self.ids.add(job_id)

    def claimed(self, job: Job, slot: int) -> None:
        """A claim was handed out."""
        assert job.claim_id is not None
        assert job.claim_id not in self.claims, f"claim {job.claim_id} was given twice"
        self.claims[job.claim_id] = Held(Claim(job.id, job.claim_id), job, slot)
        self.starts[job.id] += 1
        free = min(self.released[job.id], RELEASES_FREE) + min(self.put_off[job.id], SNOOZES_FREE)
        counted = self.starts[job.id] - self.unstarted[job.id] - free
        assert counted <= job.max_attempts, f"job {job.id} has {counted} counted starts"

    def end(self, claim: Claim, status: Status) -> None:
        """An outcome was written."""
        assert claim not in self.ended, f"two outcomes of {claim}: {self.ended[claim]} and {status}"
        assert claim.claim_id in self.claims
        if claim.claim_id in self.asked:
            assert status is Status.CANCELLED, f"{claim} was asked to cancel, and ended {status}"
        self.ended[claim] = status

    def gave_back(self, job_id: int, *, started: bool) -> None:
        """A claim was given back."""
        (self.released if started else self.unstarted)[job_id] += 1

    def snoozed(self, job_id: int) -> None:
        """A handler has put its job off."""
        self.put_off[job_id] += 1

    def retried(self, job_id: int) -> None:
        """Counts begin anew."""
        for counter in (self.starts, self.unstarted, self.released, self.put_off):
            counter[job_id] = 0
