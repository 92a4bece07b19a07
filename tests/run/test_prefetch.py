"""How many claims to hold beyond the slots. Time is handed in."""

from pqrun.run.prefetch import PREFETCH_MAX, PREFETCH_SECONDS, PROVEN_ENDS, STALLED_SECONDS, Prefetch


def proven(concurrency: int, seconds: float, now: float = 10.0) -> Prefetch:
    prefetch = Prefetch(concurrency)
    for _ in range(PROVEN_ENDS):
        prefetch.ended("t", seconds, now)
    return prefetch


def test_nothing_is_fetched_ahead_before_a_task_has_ended_a_few_times_here() -> None:
    prefetch = Prefetch(10)
    assert prefetch.target(10.0) == 0
    for _ in range(PROVEN_ENDS - 1):
        prefetch.ended("t", 0.001, 10.0)
        assert prefetch.target(10.0) == 0
        assert prefetch.proven == []
    prefetch.ended("t", 0.001, 10.0)
    assert prefetch.proven == ["t"]
    assert prefetch.target(10.0) > 0


def test_each_task_proves_itself_alone_and_once() -> None:
    prefetch = proven(1, 0.001)
    prefetch.ended("other", 0.001, 10.0)
    for _ in range(10):
        prefetch.ended("t", 0.001, 10.0)
    assert prefetch.proven == ["t"]


def test_it_holds_what_starts_within_the_bound() -> None:
    assert proven(4, 0.1).target(10.0) == int(4 * PREFETCH_SECONDS / 0.1)
    assert proven(1, PREFETCH_SECONDS * 2).target(10.0) == 0


def test_very_short_handlers_do_not_break_the_bound() -> None:
    assert proven(100, 0.0).target(10.0) == PREFETCH_MAX


def test_while_nothing_ends_nothing_more_is_held() -> None:
    prefetch = proven(4, 0.001, now=10.0)
    assert prefetch.target(10.0 + STALLED_SECONDS) > 0
    assert prefetch.target(10.0 + STALLED_SECONDS + 0.01) == 0


def test_it_follows_run_times_that_grow() -> None:
    prefetch = proven(1, 0.001)
    before = prefetch.target(10.0)
    for _ in range(100):
        prefetch.ended("t", 1.0, 10.0)
    assert prefetch.target(10.0) == 0 < before
