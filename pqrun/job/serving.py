"""What a worker serves: its queues, and how many handlers of each run at once. Values and decisions."""

from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, TypeAlias

import msgspec

from pqrun.errors import OptionError
from pqrun.job.options import check_queue

__all__ = [
    "CONCURRENCY_DEFAULT",
    "CONCURRENCY_MAX",
    "QueueChoice",
    "Queues",
    "Serving",
    "check_concurrency",
    "check_queues",
]

CONCURRENCY_DEFAULT: Final = 1
CONCURRENCY_MAX: Final = 10_000
"""More handlers at once than one process can feed; also keeps the number inside every column and limit it reaches."""

Queues: TypeAlias = Sequence[str] | AbstractSet[str] | Mapping[str, int | None] | None
"""``queues=``: names, or names with the handlers that each may run at once (None: a part of what is left); None: all queues."""


class Serving(msgspec.Struct, frozen=True):
    """What a worker serves, with the numbers that hold, and whether it does so now."""

    queues: tuple[str, ...] | None
    """By name; None: all."""
    concurrency: int
    """Handlers at once, all together."""
    slots: dict[str, int] = {}
    """Handlers at once of each queue with a number of its own."""
    shared: int = 0
    """Handlers at once of all other queues together; 0: there is no other."""
    fetching: bool = True
    """Whether jobs are claimed at all."""

    def serves(self, queue: str) -> bool:
        """Whether jobs of this queue are claimed."""
        return self.queues is None or queue in self.queues


class QueueChoice(msgspec.Struct, frozen=True):
    """What somebody asked for: queues, numbers, and a limit for all together."""

    queues: tuple[str, ...] | None = None
    """By name; None: all."""
    numbers: dict[str, int] = {}
    """Of some of these queues."""
    concurrency: int | None = None
    """None: as many as the numbers add up to, and one more for queues without."""

    @property
    def has_shared(self) -> bool:
        """Whether there are queues without a number."""
        return self.queues is None or len(self.numbers) < len(self.queues)

    @property
    def least(self) -> int:
        """The smallest ``concurrency`` that leaves a slot for each."""
        return len(self.numbers) + self.has_shared

    @property
    def total(self) -> int:
        """Handlers at once, all together."""
        return self.concurrency or sum(self.numbers.values()) + CONCURRENCY_DEFAULT * self.has_shared

    def serving(self) -> Serving:
        """Share the slots out; raises OptionError where ``concurrency`` has not even one for each.

        A queue with a number has so many to itself, the others share what is left, one at least. Numbers that do not fit into
        ``concurrency`` are made smaller in proportion, so nobody ever waits for another's slot.
        """
        total = self.total
        if total < self.least:
            raise OptionError(
                f"concurrency: {total} cannot be shared out: there are {self.least} queues or groups of queues "
                "with slots of their own, and each needs one"
            )
        wishes: dict[str | None, int] = dict(self.numbers.items())
        if self.has_shared:
            wishes[None] = max(total - sum(self.numbers.values()), 1)
        shares = wishes if sum(wishes.values()) <= total else _scaled(wishes, total)
        return Serving(
            self.queues,
            total,
            {queue: share for queue, share in shares.items() if queue is not None},
            shares.get(None, 0),
        )


def _scaled(wishes: dict[str | None, int], total: int) -> dict[str | None, int]:
    """Make the wishes smaller until they fit: one for each, and of the rest a part in proportion, the largest remainders first."""
    rest = total - len(wishes)
    beyond = sum(wishes.values()) - len(wishes)
    exact = {queue: (wish - 1) * rest / beyond for queue, wish in wishes.items()}
    shares = {queue: 1 + int(part) for queue, part in exact.items()}
    for queue in sorted(exact, key=lambda queue: int(exact[queue]) - exact[queue])[: total - sum(shares.values())]:
        shares[queue] += 1
    return shares


def check_queues(queues: object) -> QueueChoice:
    """Check ``queues=``: names, names with numbers, or None for all; raises OptionError."""
    if queues is None:
        return QueueChoice()
    if isinstance(queues, str) or not isinstance(queues, Collection) or not queues:
        raise OptionError(
            "queues must be a list of one or more names, or a dict of names and numbers such as "
            f'{{"default": 10, "mail": 2}}, got {queues!r:.80}'
        )
    names = tuple(sorted({check_queue(queue) for queue in queues}))
    if not isinstance(queues, Mapping):
        return QueueChoice(names)
    numbers = {
        queue: _checked_number(f"queues[{queue!r}]", queues[queue]) for queue in names if queues[queue] is not None
    }
    choice = QueueChoice(names, numbers)
    if choice.total > CONCURRENCY_MAX:
        raise OptionError(f"queues: the numbers add up to {choice.total}; at most {CONCURRENCY_MAX} run at once")
    return choice


def check_concurrency(concurrency: object) -> int:
    """Check a number of handlers that run at once; raises OptionError."""
    return _checked_number("concurrency", concurrency)


def _checked_number(option: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= CONCURRENCY_MAX:
        return value
    raise OptionError(f"{option}: expected a whole number from 1 to {CONCURRENCY_MAX}; got {value!r:.80}")
