"""Figures of other queues: read from the JSON that a comparison of job queues on PostgreSQL writes, with its own limits beside them.

That comparison runs every queue, pqrun among them, through the same scenarios on one server. Only what is read here counts.
"""

from pathlib import Path
from typing import NamedTuple

import msgspec

__all__ = ["OURS", "SCENARIOS", "Comparison", "Queue", "Scenario", "read_comparison"]

OURS = "pqrun"

PREDECESSORS = frozenset({"pqrun002"})
"""Left out: an earlier release is no rival."""


class Scenario(NamedTuple):
    """A column of the comparison."""

    letter: str
    key: str
    title: str


SCENARIOS = (
    Scenario("a", "rate", "single defers, jobs/s"),
    Scenario("b", "rate", "by 20 coroutines, jobs/s"),
    Scenario("c", "rate", "many at once, jobs/s"),
    Scenario("d", "rate", "drain, 1 process, jobs/s"),
    Scenario("e", "rate", "drain, 2 processes, jobs/s"),
    Scenario("f", "p50", "defer to start, p50, ms"),
    Scenario("f", "p99", "p99, ms"),
)


class _Outcome(msgspec.Struct, frozen=True):
    median: dict[str, float | None] = {}


class _Info(msgspec.Struct, frozen=True):
    name: str
    versions: dict[str, str] = {}


class _Peer(msgspec.Struct, frozen=True):
    info: _Info
    res: dict[str, dict[str, _Outcome]] = {}


class _Environment(msgspec.Struct, frozen=True):
    date: str = ""
    cores: int = 0
    mem_gb: float = 0.0
    server: dict[str, str] = {}


class _File(msgspec.Struct, frozen=True):
    peers: dict[str, _Peer]
    limits: dict[str, float | dict[str, float]] = {}
    env: _Environment = _Environment()


class Queue(NamedTuple):
    """One queue of the comparison."""

    name: str
    versions: dict[str, str]
    figures: dict[tuple[str, str, str], float]
    """By configuration ("fast", "default"), letter and key."""

    def figure(self, scenario: Scenario, configuration: str = "fast") -> float | None:
        """What it reached; None where it was not measured."""
        return self.figures.get((configuration, scenario.letter, scenario.key))


class Comparison(NamedTuple):
    """All queues, fastest drain first, and the limits of the same run that are one number."""

    queues: list[Queue]
    limits: dict[str, float]
    date: str
    server: dict[str, str]

    @property
    def has_ours(self) -> bool:
        """Whether pqrun was among them."""
        return any(queue.name == OURS for queue in self.queues)


def read_comparison(path: Path) -> Comparison:
    """Read the file; raises msgspec.ValidationError for another kind of file."""
    file = msgspec.json.decode(path.read_bytes(), type=_File)
    queues = [_queue(peer) for peer in file.peers.values() if peer.info.name not in PREDECESSORS]
    drain = next(scenario for scenario in SCENARIOS if scenario.letter == "d")
    queues.sort(key=lambda queue: -(queue.figure(drain) or 0.0))
    limits = {name: value for name, value in file.limits.items() if isinstance(value, int | float)}
    return Comparison(queues, limits, file.env.date, file.env.server)


def _queue(peer: _Peer) -> Queue:
    figures = {
        (configuration, letter, key): value
        for configuration, scenarios in peer.res.items()
        for letter, outcome in scenarios.items()
        for key, value in outcome.median.items()
        if value is not None
    }
    return Queue(peer.info.name, peer.info.versions, figures)
