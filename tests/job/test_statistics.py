"""Histograms of times: buckets, sums, percentiles."""

from hypothesis import given
from hypothesis import strategies as st

from pqrun.job.statistics import BOUNDS_MS, BUCKETS, Histogram, MinuteCounts, bucket_of


def histogram_of(*milliseconds: int) -> Histogram:
    counts = [0] * BUCKETS
    for one in milliseconds:
        counts[bucket_of(one)] += 1
    return Histogram(tuple(counts), sum(milliseconds) / 1000)


def test_a_bound_belongs_to_the_bucket_below_it() -> None:
    assert [bucket_of(bound) for bound in BOUNDS_MS] == list(range(len(BOUNDS_MS)))
    assert [bucket_of(bound + 1) for bound in BOUNDS_MS[1:]] == list(range(2, BUCKETS))
    assert (bucket_of(0), bucket_of(10**12)) == (0, BUCKETS - 1)


def test_nothing_has_no_percentile_and_no_mean() -> None:
    assert (Histogram().count, Histogram().percentile(50), Histogram().mean_seconds) == (0, None, None)


def test_what_is_above_the_last_bound_is_told_as_that_bound() -> None:
    assert histogram_of(10**9).percentile(50) == 3600.0


def test_percentiles_lie_evenly_within_a_bucket() -> None:
    assert histogram_of(*[300] * 100).percentile(50) == 0.375  # of 250 to 500 ms, half of the way
    assert histogram_of(*[300] * 100).percentile(100) == 0.5


@given(st.lists(st.integers(0, 3_600_000), min_size=1, max_size=50), st.floats(0, 100))
def test_a_percentile_is_in_the_bucket_of_the_time_that_it_stands_for(times: list[int], percent: float) -> None:
    found = histogram_of(*times).percentile(percent)
    assert found is not None
    rank = min(max(len(times) * percent / 100, 1e-9), len(times))
    exact = sorted(times)[-int(-rank // 1) - 1]
    assert bucket_of(round(found * 1000, 6)) <= bucket_of(exact)
    upper = bucket_of(exact)
    lower = BOUNDS_MS[upper - 1] if upper else 0
    assert found * 1000 >= lower - 1e-6


@given(st.lists(st.integers(0, 10**8), max_size=20), st.lists(st.floats(0, 10**5), max_size=20))
def test_a_minute_counts_what_a_histogram_does(ran: list[int], waited: list[float]) -> None:
    counts = MinuteCounts()
    for number, milliseconds in enumerate(ran):
        (counts.done_times if number % 3 else counts.other_times).append(milliseconds)
        if number % 5 == 0:
            counts.fold()
    counts.later_waits += waited
    counts.fold()
    counts.fold()
    assert (sum(counts.run_counts), counts.run_ms) == (len(ran), sum(ran))
    assert (sum(counts.wait_counts), counts.started, len(counts.numbers)) == (len(waited), len(waited), 11)
    assert sum(counts.wait_counts[: BUCKETS - 1]) == sum(seconds <= 3600 for seconds in waited)
    assert tuple(counts.run_counts) == histogram_of(*ran).counts
