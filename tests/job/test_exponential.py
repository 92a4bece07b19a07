"""``ExponentialBackoff``: how it grows, how far it is spread, and what it refuses."""

import math
from datetime import timedelta
from typing import Any

import pytest

from pqrun import BackoffPolicy, ExponentialBackoff, OptionError
from pqrun.job.policy import RETRY_DELAY_MAX, judge_retry_delay


def seconds(policy: BackoffPolicy, *attempts: int) -> list[float]:
    return [policy.retry_delay(n).total_seconds() for n in attempts]


def test_it_grows_by_its_factor_up_to_the_cap() -> None:
    policy = ExponentialBackoff(2, factor=3, cap=timedelta(minutes=1), jitter=0)
    assert seconds(policy, 1, 2, 3, 4, 5, 6) == [2, 6, 18, 54, 60, 60]


def test_by_default_it_doubles_from_a_minute_to_six_hours_spread_by_a_tenth() -> None:
    lowest, highest = ExponentialBackoff(draw=lambda: 0.0), ExponentialBackoff(draw=lambda: 1 - 2**-53)
    assert seconds(lowest, 1, 2, 3) == pytest.approx([54, 108, 216])
    assert seconds(highest, 1, 2, 3) == pytest.approx([66, 132, 264])
    assert seconds(highest, 100) == [6 * 3600]  # a longer one would be beyond the cap
    assert seconds(lowest, 100) == pytest.approx([0.9 * 6 * 3600])


def test_full_jitter_is_anything_up_to_the_delay() -> None:
    draws = iter([0.0, 0.5, 1 - 2**-53])
    policy = ExponentialBackoff(10, jitter="full", draw=lambda: next(draws))
    assert seconds(policy, 1, 1, 1) == pytest.approx([0, 5, 10])


@pytest.mark.parametrize("jitter", [0, 0.1, 1, "full"])
@pytest.mark.parametrize("attempts", [-5, 0, 1, 2, 10, 1_000, 2**31 - 1])
def test_whatever_is_drawn_the_answer_is_from_zero_to_the_cap(jitter: Any, attempts: int) -> None:
    policy = ExponentialBackoff(0.3, factor=7.7, cap=86_400.5, jitter=jitter)
    for _ in range(50):
        assert timedelta(0) <= policy.retry_delay(attempts) <= timedelta(seconds=86_400.5)
    assert judge_retry_delay(policy, attempts).complaint is None


def test_a_source_that_draws_beyond_its_bounds_leads_to_none_beyond_ours() -> None:
    for drawn in (-100.0, 100.0):
        policy = ExponentialBackoff(10, cap=20, jitter="full", draw=lambda drawn=drawn: drawn)  # type: ignore[misc]  # mypy cannot infer it
        assert seconds(policy, 1) == [0.0 if drawn < 0 else 20.0]


def test_two_policies_do_not_draw_the_same() -> None:
    assert len({ExponentialBackoff(jitter="full").retry_delay(1) for _ in range(20)}) > 1


def test_a_factor_of_one_is_a_constant_and_the_largest_bounds_are_taken() -> None:
    assert seconds(ExponentialBackoff(5, factor=1, jitter=0), 1, 2**31 - 1) == [5, 5]
    policy = ExponentialBackoff(RETRY_DELAY_MAX, cap=RETRY_DELAY_MAX, factor=1e308)
    assert policy.retry_delay(7) <= RETRY_DELAY_MAX


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"base": 0}, "base: expected seconds or a timedelta, above 0 and at most 365 days; got 0"),
        ({"base": timedelta(seconds=-1)}, "base: .*; got a timedelta of -1 s"),
        ({"base": math.nan}, "base: .*; got nan"),
        ({"base": True}, "base: .*; got a value of type bool"),
        ({"base": "1 s"}, "base: .*; got a value of type str"),
        ({"cap": timedelta(days=366)}, "cap: .*; got a timedelta of "),
        ({"cap": math.inf}, "cap: .*; got inf"),
        ({"base": 60, "cap": 59}, r"cap: expected 60 s \(the base\) or more; got 59 s"),
        ({"factor": 0.5}, "factor: expected a number, 1 or more; got 0.5"),
        ({"factor": math.inf}, "factor: .*; got inf"),
        ({"factor": "2"}, "factor: .*; got a value of type str"),
        ({"jitter": -0.1}, "jitter: expected a share from 0 to 1, or 'full'; got -0.1"),
        ({"jitter": 1.1}, "jitter: .*; got 1.1"),
        ({"jitter": True}, "jitter: .*; got a value of type bool"),
        ({"jitter": "half"}, "jitter: .*; got a value of type str"),
        ({"draw": 0.5}, "draw: expected a function that gives numbers from 0 up to 1; got 0.5"),
    ],
)
def test_a_bad_value_is_refused_by_the_name_of_its_argument(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=f"^{said}"):
        ExponentialBackoff(**options)


def test_it_shows_what_it_does() -> None:
    assert (
        repr(ExponentialBackoff(2, factor=3, cap=60, jitter="full"))
        == "ExponentialBackoff(2, factor=3, cap=60, jitter='full')"
    )
