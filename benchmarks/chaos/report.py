"""What a run came to: counts, times to recover, violations with the whole story of their jobs; as text and as JSON."""

import statistics
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.chaos.checker import Violation
from benchmarks.chaos.facts import Facts
from benchmarks.chaos.log import Ended, Entry, FaultBegan, FaultOver, Started

__all__ = ["LegReport", "Spread", "measure_faults", "print_report", "story", "summarise"]

RATE_SECONDS = 5.0
"""Before a fault: so long is the throughput measured that is to come back."""

WINDOW_SECONDS = 1.0

BACK = 0.5
"""The part of the throughput before that counts as back."""


class Spread(msgspec.Struct, frozen=True):
    """Seconds; None where nothing was measured."""

    p50: float | None
    longest: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """The spread of these."""
        return cls(round(statistics.median(values), 2), round(max(values), 2)) if values else cls(None, None)

    def __str__(self) -> str:
        return "" if self.p50 is None else f"{self.p50:.1f} / {self.longest:.1f}"


class FaultReport(msgspec.Struct, frozen=True):
    """All faults of one kind."""

    kind: str
    times: int
    next_end: Spread
    """From the moment it is over to the end of a handler that started after that; not counted where the next fault came first."""
    rescue: Spread
    """From its beginning to the last start elsewhere of what ran on the workers that it hit: one after the other, and no sooner than
    the observers have had some seconds without another fault."""
    throughput: Spread
    """From the moment it is over until handlers end half as often as before it; as above."""


class LegReport(msgspec.Struct, frozen=True):
    """One database's part of a run."""

    name: str
    seed: str
    seconds: float
    drain_seconds: float
    acknowledged: int
    unanswered: int
    """Calls of which the producer does not know whether they came to anything."""
    rolled_back: int
    outcomes: dict[str, int]
    starts: int
    repeated_starts: int
    side_by_side: int
    """Starts while an earlier run of the same job had not ended (its worker was stopped, cut off, or gave it up)."""
    told: dict[str, int]
    """Events of the workers."""
    faults: list[FaultReport]
    violations: list[str]


class _Fault(msgspec.Struct):
    began: float
    event: FaultBegan
    over: float


class _Runs:
    """Starts and ends, for looking up by time."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.starts = [(e.at, e.event) for e in entries if isinstance(e.event, Started)]
        self.ends = [(e.at, e.event) for e in entries if isinstance(e.event, Ended)]
        self.end_times = [at for at, _ in self.ends]
        self.started_at = {event.claim_id: at for at, event in self.starts}
        self.ended_at = {event.claim_id: at for at, event in self.ends}
        self.starts_of: dict[int, list[float]] = defaultdict(list)
        for at, event in self.starts:
            self.starts_of[event.job_id].append(at)

    def next_end(self, since: float, until: float) -> float | None:
        """Seconds until a handler ends that has started since, if that is before the next fault."""
        for at, event in self.ends[bisect_right(self.end_times, since) : bisect_left(self.end_times, until)]:
            if self.started_at.get(event.claim_id, 0.0) > since:
                return at - since
        return None

    def rescue(self, pids: Sequence[int], began: float) -> float | None:
        """Seconds until the last job that ran on these has started again."""
        again = []
        for at, event in self.starts:
            is_open = event.pid in pids and at < began and self.ended_at.get(event.claim_id, began) >= began
            later = [start for start in self.starts_of[event.job_id] if start > began]
            if is_open and later and event.claim_id not in self.ended_at:
                again.append(later[0] - began)
        return max(again, default=None)

    def throughput_back(self, began: float, over: float, until: float) -> float | None:
        """Seconds until the rate is back, if it is before the next fault."""
        before = self._count(began - RATE_SECONDS, began) / RATE_SECONDS
        first = bisect_left(self.end_times, over)
        for at in self.end_times[first : bisect_left(self.end_times, until)]:
            if self._count(at, at + WINDOW_SECONDS) >= BACK * before * WINDOW_SECONDS:
                return at - over
        return None

    def _count(self, since: float, until: float) -> int:
        return bisect_left(self.end_times, until) - bisect_left(self.end_times, since)

    def side_by_side(self) -> int:
        """How many starts came while an earlier run of the same job went on."""
        last: dict[int, float] = {}
        count = 0
        for at, event in self.starts:
            count += last.get(event.job_id, 0.0) > at
            last[event.job_id] = max(last.get(event.job_id, 0.0), self.ended_at.get(event.claim_id, 0.0))
        return count


def measure_faults(entries: Sequence[Entry]) -> list[FaultReport]:
    """Times to recover, per kind, in the order of their first appearance."""
    began = [(e.at, e.event) for e in entries if isinstance(e.event, FaultBegan)]
    over = {e.event.number: e.at for e in entries if isinstance(e.event, FaultOver)}
    faults = [_Fault(at, event, over.get(event.number, at)) for at, event in began]
    runs = _Runs(entries)
    kinds: dict[str, list[tuple[float | None, float | None, float | None]]] = defaultdict(list)
    for number, fault in enumerate(faults):
        until = faults[number + 1].began if number + 1 < len(faults) else float("inf")
        kinds[fault.event.kind].append((
            runs.next_end(fault.over, until),
            runs.rescue(fault.event.pids, fault.began),
            runs.throughput_back(fault.began, fault.over, until),
        ))  # fmt: skip
    return [
        FaultReport(
            kind, len(times), *(Spread.of([t for t in column if t is not None]) for column in zip(*times, strict=True))
        )
        for kind, times in kinds.items()
    ]


def summarise(
    name: str,
    seed: str,
    entries: Sequence[Entry],
    facts: Facts,
    violations: Sequence[Violation],
    *,
    drain_seconds: float,
) -> LegReport:
    """Count and measure everything."""
    calls = facts.calls.values()
    created = [call for call in calls if call.is_acknowledged and call.deferred is not None and call.deferred.created]
    jobs = facts.jobs.values()
    return LegReport(
        name=name,
        seed=seed,
        seconds=round(entries[-1].at - entries[0].at, 1) if entries else 0.0,
        drain_seconds=round(drain_seconds, 1),
        acknowledged=len(created),
        unanswered=sum(not call.is_acknowledged and not call.is_rolled_back for call in calls),
        rolled_back=sum(call.is_rolled_back for call in calls),
        outcomes=dict(sorted(Counter(row.status for job in jobs for row in job.rows).items())),
        starts=sum(len(job.starts) for job in jobs),
        repeated_starts=sum(max(len(job.starts) - 1, 0) for job in jobs),
        side_by_side=_Runs(entries).side_by_side(),
        told=dict(sorted(Counter(telling.event.what for job in jobs for telling in job.told).items())),
        faults=measure_faults(entries),
        violations=[f"{one.rule}: {one.what} (job {one.job_id}, {one.token})" for one in violations],
    )


def story(entries: Sequence[Entry], facts: Facts, violation: Violation) -> list[str]:
    """Everything about one job: what was logged of it, the faults meanwhile, and its rows."""
    job_id, token = violation.job_id, violation.token
    rows = facts.rows_of.get(token or "", []) + (facts.jobs[job_id].rows if job_id in facts.jobs else [])
    call = facts.jobs[job_id].call if job_id in facts.jobs else None
    tokens = {row.token for row in rows} | ({token} if token else set()) | ({call.deferring.token} if call else set())
    about = [
        entry
        for entry in entries
        if getattr(entry.event, "token", "") in tokens or getattr(entry.event, "job_id", 0) == job_id
    ]
    if about:
        faults = [
            e
            for e in entries
            if isinstance(e.event, FaultBegan | FaultOver) and about[0].at - 60 < e.at < about[-1].at + 60
        ]
        about = sorted([*about, *faults], key=lambda entry: entry.at)
    return [
        *(f"{entry.at:.3f} {entry.source} {entry.event}" for entry in about),
        *(str(row) for row in dict.fromkeys(rows)),
    ]


def print_report(leg: LegReport, console: Console) -> None:
    """The text of one leg."""
    counts = Table("measure", "value", title=f"{leg.name}, seed {leg.seed}", title_justify="left")
    counts.add_row("seconds under load, and to drain", f"{leg.seconds:g}, {leg.drain_seconds:g}")
    counts.add_row("acknowledged jobs", f"{leg.acknowledged:,}")
    counts.add_row("calls without an answer, rolled back", f"{leg.unanswered:,}, {leg.rolled_back:,}")
    counts.add_row("ended", ", ".join(f"{name} {count:,}" for name, count in leg.outcomes.items()))
    counts.add_row("starts, repeated, side by side", f"{leg.starts:,}, {leg.repeated_starts:,}, {leg.side_by_side:,}")
    counts.add_row("told by workers", ", ".join(f"{name} {count:,}" for name, count in leg.told.items()))
    console.print(counts)
    times = Table("fault", "times", "next end, s", "jobs back elsewhere, s", "half of the throughput back, s")
    for fault in leg.faults:
        times.add_row(fault.kind, str(fault.times), str(fault.next_end), str(fault.rescue), str(fault.throughput))
    times.caption = "p50 / longest"
    console.print(times)
