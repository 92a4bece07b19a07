"""Slots by groups of queues: each queue with a number of its own is a group, all others together are one.

Each group has its slots, its claims that wait for one, and its own measure of how many to hold ahead, so a slow queue neither stands in
front of another's jobs nor fills what is fetched ahead for them. Without numbers there is one group, and nothing is looked up.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from pqrun.job.record import Claim, Job
from pqrun.job.serving import Serving
from pqrun.run.prefetch import Prefetch

__all__ = ["SHARED", "Capacity", "Group", "GroupName", "Groups"]

GroupName: TypeAlias = str | None
"""The queue that has slots of its own, or None: all others."""

SHARED: GroupName = None


class Capacity(NamedTuple):
    """What fits: idle slots, and claims beyond them that would start soon."""

    free: int
    room: int


class Group:
    """Slots of one queue, or of all that share."""

    __slots__ = ("limit", "low_water", "name", "prefetch", "running", "waiting")

    def __init__(self, name: GroupName, limit: int, prefetch: Prefetch) -> None:
        self.name = name
        self.limit = limit
        self.running = 0
        self.waiting: deque[tuple[Job, float]] = deque()  # claimed, unstarted; with the time they came
        self.prefetch = prefetch
        self.low_water = 0  # with so few claims left waiting, more could be fetched

    @property
    def has_slot(self) -> bool:
        """Whether a job could start."""
        return self.running < self.limit

    def capacity(self, now: float) -> Capacity:
        """Return what fits now."""
        if self.limit <= 0:
            return Capacity(0, 0)
        free = self.limit - self.running - len(self.waiting)
        target = self.prefetch.target(now)
        room = max(0, target - max(0, -free))
        # A claim for a handful is not worth a round trip while half of what was fetched ahead is still here.
        return Capacity(max(free, 0), room if free > 0 or room * 2 >= target else 0)


class Groups:
    """All groups of a worker."""

    def __init__(self, serving: Serving) -> None:
        self.shared = Group(SHARED, serving.shared, Prefetch(serving.shared))
        self._own: dict[str, Group] = {}
        self.all: tuple[Group, ...] = (self.shared,)
        self.names: tuple[GroupName, ...] = (SHARED,)
        """Of those that have slots."""
        self.only: Group | None = self.shared
        """The one group, where no queue has a number."""
        self.serve(serving, ())

    def of(self, queue: str) -> Group:
        """Return the group that a queue is in; ``only`` is quicker, where there is one."""
        return self._own.get(queue, self.shared)

    def named(self, name: GroupName) -> Group:
        """Return a group by its name; one that is there no more is the shared one."""
        return self.shared if name is None else self.of(name)

    def serve(self, serving: Serving, running: Iterable[str]) -> None:
        """Share the slots out anew; ``running``: the queues of the jobs that run, which go on beyond a lower limit."""
        waiting = [held for group in self.all for held in group.waiting]
        before, self._own = self._own, {}
        for queue, limit in serving.slots.items():
            group = before.get(queue) or Group(queue, limit, Prefetch(limit, self.shared.prefetch))
            group.limit = group.prefetch.concurrency = limit
            self._own[queue] = group
        self.shared.limit = self.shared.prefetch.concurrency = serving.shared
        self.all = (self.shared, *self._own.values())
        self.only = None if self._own else self.shared
        self.names = tuple(group.name for group in self.all if group.limit > 0)
        for group in self.all:
            group.running = 0
            group.waiting.clear()
        for queue in running:
            self.of(queue).running += 1
        for job, since in sorted(waiting, key=lambda held: held[1]):
            self.of(job.queue).waiting.append((job, since))

    def sorted(self, jobs: Sequence[Job]) -> list[tuple[Group, Sequence[Job]]]:
        """Return jobs by their groups, in their order."""
        if self.only is not None:
            return [(self.only, jobs)]
        meant: dict[GroupName, list[Job]] = {}
        for job in jobs:
            meant.setdefault(self.of(job.queue).name, []).append(job)
        return [(self.named(name), some) for name, some in meant.items()]

    def waiting_claims(self) -> list[Claim]:
        """Return the claims that have not started."""
        return [Claim(job.id, job.claim_id or 0) for group in self.all for job, _ in group.waiting]

    def take_out(self, is_meant: Callable[[Job], bool]) -> list[Job]:
        """Remove claims that have not started, and return them."""
        taken: list[Job] = []
        for group in self.all:
            meant = [job for job, _ in group.waiting if is_meant(job)]
            if meant:
                taken += meant
                ids = {job.claim_id for job in meant}
                group.waiting = deque(held for held in group.waiting if held[0].claim_id not in ids)
        return taken

    @property
    def has_waiting(self) -> bool:
        """Whether claims wait for a slot."""
        return any(group.waiting for group in self.all)
