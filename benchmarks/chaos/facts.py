"""What the logs and the rows say, sorted by call and by job, for ``checker`` and ``report``."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from benchmarks.chaos.log import (
    CancelAnswered,
    CancelAsked,
    Committed,
    Deferred,
    Deferring,
    Ended,
    Entry,
    Exited,
    FaultBegan,
    FaultOver,
    Met,
    RetryAnswered,
    RetryAsked,
    RolledBack,
    Started,
    Told,
)

__all__ = ["Answer", "At", "Call", "Facts", "JobFacts", "Row", "gather"]

E = TypeVar("E")


class Row(NamedTuple):
    """A row of ``jobs`` at the end."""

    job_id: int
    job_type: str
    token: str
    status: str
    attempts: int
    max_attempts: int
    claim_id: int | None = None
    key: str | None = None
    error: str = ""
    snoozes: int = 0


class At(NamedTuple, Generic[E]):
    """An event and its time."""

    at: float
    event: E


class Answer(NamedTuple):
    """When a call was answered; None for a retry of which nobody knows."""

    at: float
    outcome: str | None


@dataclass
class Call:
    """One ``defer``."""

    at: float
    deferring: Deferring
    answered_at: float | None = None
    deferred: Deferred | None = None
    is_committed: bool = True
    """Its transaction, where it has one, was committed for certain."""
    is_rolled_back: bool = False

    @property
    def is_acknowledged(self) -> bool:
        """Whether the producer may rely on it."""
        return self.deferred is not None and self.is_committed


@dataclass
class JobFacts:
    """All that is known of one job."""

    job_id: int
    call: Call | None = None
    """What created it, where that was answered."""
    starts: list[At[Started]] = field(default_factory=list)
    ends: dict[int, At[Ended]] = field(default_factory=dict)
    """By claim."""
    told: list[At[Told]] = field(default_factory=list)
    cancels: list[Answer] = field(default_factory=list)
    cancels_asked: int = 0
    retries: list[Answer] = field(default_factory=list)
    """Those that were accepted, and those in doubt."""
    rows: list[Row] = field(default_factory=list)
    effects: int = 0

    @property
    def row(self) -> Row | None:
        """The one row, if there is exactly one."""
        return self.rows[0] if len(self.rows) == 1 else None


@dataclass
class Facts:
    """All that is known."""

    calls: dict[str, Call] = field(default_factory=dict)
    """By token."""
    jobs: dict[int, JobFacts] = field(default_factory=dict)
    rows_of: dict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))
    """By token."""
    starts_of: Counter[str] = field(default_factory=Counter)
    """By token."""
    met: list[str] = field(default_factory=list)
    exits: list[Exited] = field(default_factory=list)

    def job(self, job_id: int) -> JobFacts:
        """What is known of a job, made if it is new."""
        return self.jobs.setdefault(job_id, JobFacts(job_id))


def gather(entries: Sequence[Entry], rows: Iterable[Row], effects: Iterable[int]) -> Facts:
    """Sort everything; ``entries`` in the order of their times, ``effects`` the job id of each effect."""
    facts = Facts()
    batches: dict[str, list[Call]] = defaultdict(list)
    for entry in entries:
        _take_in(facts, batches, entry)
    for row in rows:
        facts.job(row.job_id).rows.append(row)
        facts.rows_of[row.token].append(row)
    for job_id in effects:
        facts.job(job_id).effects += 1
    return facts


def _take_in(facts: Facts, batches: dict[str, list[Call]], entry: Entry) -> None:
    match entry.event:
        case Deferring() as deferring:
            call = Call(entry.at, deferring, is_committed=deferring.batch is None)
            facts.calls[deferring.token] = call
            if deferring.batch is not None:
                batches[deferring.batch].append(call)
        case Deferred() as deferred:
            call = facts.calls[deferred.token]
            call.answered_at, call.deferred = entry.at, deferred
            if deferred.created:
                facts.job(deferred.job_id).call = call
        case Committed(batch):
            for call in batches[batch]:
                call.is_committed, call.answered_at = True, entry.at
        case RolledBack(batch):
            for call in batches[batch]:
                call.is_rolled_back = True
        case _:
            _take_in_later(facts, entry)


def _take_in_later(facts: Facts, entry: Entry) -> None:
    match entry.event:
        case Started() as started:
            facts.job(started.job_id).starts.append(At(entry.at, started))
            facts.starts_of[started.token] += 1
        case Ended() as ended:
            facts.job(ended.job_id).ends[ended.claim_id] = At(entry.at, ended)
        case Told() as told:
            facts.job(told.job_id).told.append(At(entry.at, told))
        case CancelAsked(job_id):
            facts.job(job_id).cancels_asked += 1
        case CancelAnswered(job_id, outcome):
            facts.job(job_id).cancels.append(Answer(entry.at, outcome))
        case RetryAsked(job_id):
            facts.job(job_id).retries.append(Answer(entry.at, None))
        case RetryAnswered(job_id, accepted):
            facts.job(job_id).retries.pop()  # the one that was asked for: a job has one producer
            if accepted:
                facts.job(job_id).retries.append(Answer(entry.at, "accepted"))
        case Met(error):
            facts.met.append(error)
        case Exited() as exited:
            facts.exits.append(exited)
        case FaultBegan() | FaultOver():
            pass
        case _:
            raise AssertionError(entry)
