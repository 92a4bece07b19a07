"""Times to recover, from logs made by hand."""

from benchmarks.chaos.log import Ended, Entry, Event, FaultBegan, FaultOver, Started
from benchmarks.chaos.report import FaultReport, Spread, measure_faults

NOTHING = Spread(None, None)


def handler(
    job_id: int, since: float, until: float | None, *, claim_id: int, pid: int = 7
) -> list[tuple[float, Event]]:
    found: list[tuple[float, Event]] = [(since, Started("t", job_id, claim_id, pid))]
    return found if until is None else [*found, (until, Ended("t", job_id, claim_id, "returned"))]


def measure(*events: tuple[float, Event]) -> list[FaultReport]:
    return measure_faults([Entry(at, "p", event) for at, event in sorted(events, key=lambda event: event[0])])


def test_jobs_of_a_killed_worker_are_back_when_the_last_of_them_has_started_elsewhere() -> None:
    (found,) = measure(
        *handler(1, 1, None, claim_id=1, pid=5),
        *handler(2, 1, None, claim_id=2, pid=5),
        *handler(3, 1, 1.5, claim_id=3, pid=5),
        (2, FaultBegan(1, "kill", "", (5,))),
        (2, FaultOver(1)),
        *handler(2, 5, 6, claim_id=4),
        *handler(1, 6, 7, claim_id=5),
        *handler(3, 9, 10, claim_id=6),
    )
    assert (found.kind, found.times, found.rescue) == ("kill", 1, Spread(4.0, 4.0))


def test_the_next_end_is_of_a_handler_that_started_after_the_fault() -> None:
    (found,) = measure(
        *handler(1, 1, 6, claim_id=1),
        (2, FaultBegan(1, "restart")),
        (5, FaultOver(1)),
        *handler(2, 7, 8, claim_id=2),
    )
    assert (found.next_end, found.rescue) == (Spread(3.0, 3.0), NOTHING)


def test_the_throughput_is_back_when_half_as_many_end_as_before() -> None:
    before = [event for n in range(20) for event in handler(n, n / 4, n / 4 + 0.1, claim_id=n)]
    (found,) = measure(
        *before,
        (5, FaultBegan(1, "restart")),
        (6, FaultOver(1)),
        *handler(30, 7, 8, claim_id=30),
        *handler(31, 9, 9.5, claim_id=31),
        *handler(32, 9, 9.6, claim_id=32),
    )
    assert found.throughput == Spread(3.5, 3.5)


def test_what_is_not_back_before_the_next_fault_is_not_counted() -> None:
    before = [event for n in range(20) for event in handler(n, n / 4, n / 4 + 0.1, claim_id=n)]
    first, _ = measure(
        *before,
        (5, FaultBegan(1, "restart")),
        (6, FaultOver(1)),
        (7, FaultBegan(2, "reset")),
        (7, FaultOver(2)),
        *handler(31, 9, 9.5, claim_id=31),
        *handler(32, 9, 9.6, claim_id=32),
    )
    assert (first.kind, first.next_end, first.throughput) == ("restart", NOTHING, NOTHING)
