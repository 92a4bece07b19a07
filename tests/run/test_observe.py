"""Who is dead, by observation. Time is handed in."""

import pytest

from pqrun.run.observe import GAP_SECONDS, LOCKED_SECONDS, Observer, slow_limit
from pqrun.store.registry import Beat


def beat(number: int, worker: int = 2, *, has_lock: bool = True) -> Beat:
    return Beat(worker, number, f"w{worker}", has_lock)


def watch(observer: Observer, others: list[Beat], start: float, seconds: int) -> tuple[list[Beat], list[Beat]]:
    """Beat once a second while the others stand still; return the last answer."""
    answer: tuple[list[Beat], list[Beat]] = ([], [])
    for step in range(seconds + 1):
        answer = observer.observe(others, start + step)
    return answer


@pytest.mark.parametrize(("stale", "limit"), [(0.5, 2.0), (2.0, 2.0), (12.0, 12.0), (1200.0, 30.0)])
def test_the_slow_limit_lies_between_2_and_30_seconds(stale: float, limit: float) -> None:
    assert slow_limit(stale) == limit


def test_a_counter_that_stands_still_for_3_seconds_asks_for_the_lock() -> None:
    observer = Observer(30.0)
    assert watch(observer, [beat(7)], 100.0, 2) == ([], [])
    assert observer.observe([beat(7)], 100.0 + LOCKED_SECONDS - 0.01) == ([], [])
    assert observer.observe([beat(7)], 100.0 + LOCKED_SECONDS) == ([beat(7)], [])


def test_only_a_free_lock_confirms_it() -> None:
    assert Observer.confirmed([beat(7, 2), beat(9, 3)], {3}) == [beat(9, 3)]
    assert Observer.confirmed([beat(7, 2)], frozenset()) == []


def test_without_a_session_lock_only_the_slow_limit_counts() -> None:
    observer = Observer(10.0)
    still = [beat(7, has_lock=False)]
    assert watch(observer, still, 100.0, 9) == ([], [])
    assert observer.observe(still, 110.0) == ([], still)


def test_with_a_held_lock_the_slow_limit_counts_too() -> None:
    assert watch(Observer(10.0), [beat(7)], 100.0, 10) == ([], [beat(7)])


def test_a_counter_that_moves_is_alive() -> None:
    observer = Observer(2.0)
    for step in range(100):
        assert observer.observe([beat(step)], 100.0 + step) == ([], [])


def test_each_change_starts_the_observation_anew() -> None:
    observer = Observer(30.0)
    watch(observer, [beat(7)], 100.0, 2)
    assert watch(observer, [beat(8)], 103.0, 2) == ([], [])
    assert observer.observe([beat(8)], 106.0) == ([beat(8)], [])


def test_a_pause_of_the_observer_condemns_nobody() -> None:
    observer = Observer(30.0)
    still = [beat(7, 2), beat(7, 3, has_lock=False)]
    watch(observer, still, 100.0, 2)
    woken = 102.0 + 3600.0
    assert observer.observe(still, woken) == ([], [])
    assert watch(observer, still, woken, 2) == ([], [])


def test_a_gap_just_over_the_limit_restarts_and_one_at_the_limit_does_not() -> None:
    at, over = Observer(30.0), Observer(30.0)
    for observer, gap in ((at, GAP_SECONDS), (over, GAP_SECONDS + 0.01)):
        observer.observe([beat(7)], 100.0)
        observer.observe([beat(7)], 101.0)
        observer.observe([beat(7)], 101.0 + gap)
    assert at.observe([beat(7)], 103.5) == ([beat(7)], [])
    assert over.observe([beat(7)], 103.5) == ([], [])


def test_an_error_restarts_every_observation() -> None:
    observer = Observer(30.0)
    watch(observer, [beat(7)], 100.0, 2)
    observer.reset()
    assert watch(observer, [beat(7)], 103.0, 2) == ([], [])


def test_a_worker_that_was_away_is_observed_from_its_return() -> None:
    observer = Observer(30.0)
    watch(observer, [beat(7)], 100.0, 2)
    observer.observe([], 103.0)
    assert observer.observe([beat(7)], 104.0) == ([], [])


def test_a_new_worker_is_not_judged_by_the_first_look() -> None:
    observer = Observer(2.0)
    watch(observer, [beat(1, 2)], 100.0, 1)
    assert observer.observe([beat(1, 2), beat(0, 3)], 102.0) == ([], [beat(1, 2)])
