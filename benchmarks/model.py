"""A simulation of one worker process that drains a full queue: jobs per second from round-trip time, batch size and service time.

The worker does three things at once. Its *event loop* runs handlers, one step of ``concurrency`` jobs after another, and each job costs
it ``client_seconds`` of processor time (decoding, the handler, the result); only between two steps it reads answers and sends statements.
The *claim* connection has one statement in flight at most: it asks for up to ``claim_rows`` jobs as soon as half of what the worker may
hold (``held_rows``) has been used up. The *settle* connection has one in flight at most, too: it takes what has ended meanwhile, up to
``settle_rows``. A statement of n rows takes

    trip + row_seconds * n      on the network, half of the trip on each way, when no processor is busy with it
    fixed + per_row * n         in the server

and handlers, claims in the server and settles in the server share ``cores`` processors evenly: those that other programs leave. Nothing
else is modelled: no locks, no checkpoints, no autovacuum, no pauses of the garbage collector, no growth of a statement's time with the
table.

So for a far database the rate is about ``claim_rows / (time of one claim)`` or ``settle_rows / (time of one settle)``, and for a near one
``1 / client_seconds``, or ``cores / (processor time per job of all three)`` where there are too few processors.
"""

from dataclasses import dataclass, field
from typing import Literal

import msgspec

from pqrun.run.fetch import CLAIM_ROWS
from pqrun.run.prefetch import PREFETCH_MAX
from pqrun.run.settle import SETTLE_ROWS

__all__ = ["Costs", "Line", "Network", "Sizes", "predict"]


class Line(msgspec.Struct, frozen=True):
    """Seconds of a statement as a function of its rows."""

    fixed: float
    per_row: float

    def at(self, rows: int) -> float:
        """Seconds for so many rows."""
        return self.fixed + self.per_row * rows


class Costs(msgspec.Struct, frozen=True):
    """Processor time: of the server for each statement, and of the worker for each job."""

    claim: Line
    settle: Line
    client_seconds: float


class Network(msgspec.Struct, frozen=True):
    """Seconds to and fro for a few bytes, and those that each row of a claim (on its way back) or of a settle (on its way) adds."""

    trip: float
    claim_row: float = 0.0
    settle_row: float = 0.0


class Sizes(msgspec.Struct, frozen=True):
    """Rows per statement, jobs held beyond the slots, and slots; by default those of a worker whose handlers return at once."""

    concurrency: int = 1
    claim_rows: int = CLAIM_ROWS
    settle_rows: int = SETTLE_ROWS
    held_rows: int = PREFETCH_MAX


@dataclass(eq=False)
class _Statement:
    """One connection: what is in flight on it, and how long the present part of it still takes."""

    cost: Line
    trip: float
    row_seconds: float
    part: Literal["idle", "out", "server", "back", "arrived"] = "idle"
    rows: int = 0
    left: float = 0.0

    def send(self, rows: int) -> None:
        self.rows = rows
        self.part, self.left = "out", self._way()

    def go_on(self) -> None:
        """The present part is over."""
        match self.part:
            case "out":
                self.part, self.left = "server", self.cost.at(self.rows)
            case "server":
                self.part, self.left = "back", self._way()
            case _:
                self.part, self.left = "arrived", 0.0

    def take(self) -> int:
        """The loop looks: return the rows that have arrived."""
        if self.part != "arrived":
            return 0
        self.part = "idle"
        return self.rows

    def _way(self) -> float:
        return (self.trip + self.row_seconds * self.rows) / 2


@dataclass
class _Drain:
    """The state of the simulation; times in seconds."""

    jobs: int
    costs: Costs
    sizes: Sizes
    claim: _Statement
    settle: _Statement
    clock: float = 0.0
    unclaimed: int = field(init=False)
    held: int = 0
    step: int = 0  # jobs that the loop is busy with
    step_left: float = 0.0
    ended: int = 0  # not settled, and not on their way
    settled: int = 0

    def __post_init__(self) -> None:
        self.unclaimed = self.jobs

    def between_steps(self) -> None:
        """Let the loop read what has arrived, send what there is to send, and begin its next step."""
        if self.step:
            return
        self.held += self.claim.take()
        self.settled += self.settle.take()
        room = self.sizes.concurrency + self.sizes.held_rows - self.held
        if self.claim.part == "idle" and self.unclaimed and room * 2 >= self.sizes.held_rows:
            rows = min(room, self.sizes.claim_rows, self.unclaimed)
            self.unclaimed -= rows
            self.claim.send(rows)
        if self.settle.part == "idle" and self.ended:
            rows = min(self.ended, self.sizes.settle_rows)
            self.ended -= rows
            self.settle.send(rows)
        self.step = min(self.held, self.sizes.concurrency)
        self.held -= self.step
        self.step_left = self.step * self.costs.client_seconds

    def go_on(self, cores: float) -> None:
        """Let the time pass until the first of them has done its part."""
        servers = [statement for statement in (self.claim, self.settle) if statement.part == "server"]
        busy = len(servers) + bool(self.step)
        share = min(1.0, cores / busy) if busy else 1.0
        waits = [statement for statement in (self.claim, self.settle) if statement.part in ("out", "back")]
        times = [statement.left / share for statement in servers] + [statement.left for statement in waits]
        if self.step:
            times.append(self.step_left / share)
        passed = min(times)
        self.clock += passed
        for statement in (*servers, *waits):
            statement.left -= passed * (share if statement in servers else 1.0)
        if self.step:
            self.step_left -= passed * share
        self._take_what_is_done()

    def _take_what_is_done(self) -> None:
        tiny = 1e-12
        if self.step and self.step_left <= tiny:
            self.ended += self.step
            self.step = 0
        for statement in (self.claim, self.settle):
            if statement.part in ("out", "server", "back") and statement.left <= tiny:
                statement.go_on()


def predict(jobs: int, costs: Costs, network: Network, sizes: Sizes, *, cores: float) -> float:
    """Return the jobs per second of a drain of ``jobs``, from the first claim to the last settle."""
    drain = _Drain(
        jobs,
        costs,
        sizes,
        _Statement(costs.claim, network.trip, network.claim_row),
        _Statement(costs.settle, network.trip, network.settle_row),
    )
    drain.between_steps()
    while drain.settled < jobs:
        drain.go_on(cores)
        drain.between_steps()
    return jobs / drain.clock
