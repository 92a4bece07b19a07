"""The waiting policies, and the judges that keep a bad one from doing harm."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pqrun.errors import OptionError
from pqrun.job.policy import (
    RETRY_DELAY_MAX,
    SLEEP_MAX,
    BackoffPolicy,
    IdlePollPolicy,
    LoopErrorPolicy,
    judge_error_sleep,
    judge_idle_sleep,
    judge_retry_delay,
)

DAY = timedelta(days=1).total_seconds()


class Answers(BackoffPolicy, IdlePollPolicy, LoopErrorPolicy):
    """Any policy, whose answer is what the function gives or raises."""

    def __init__(self, answer: Callable[[], object]) -> None:
        super().__init__()
        self.answer = answer

    def retry_delay(self, attempts: int) -> timedelta:
        return self.answer()  # type: ignore[return-value]  # users without a checker return anything

    def next_sleep(self, streak: int) -> float:
        return self.answer()  # type: ignore[return-value]  # users without a checker return anything


class RaisesInItsText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def raising(error: BaseException) -> Callable[[], object]:
    def answer() -> object:
        raise error

    return answer


REFUSED: list[tuple[str, Callable[[], object], str]] = [
    (
        "an exception",
        raising(OverflowError("date value out of range")),
        "raised OverflowError: date value out of range",
    ),
    ("an exception without a message", raising(ValueError()), "raised ValueError;"),
    ("an exception whose text raises", raising(RaisesInItsText()), "raised RaisesInItsText: (its __str__ raises)"),
    ("SystemExit", raising(SystemExit(1)), "raised SystemExit: 1"),
    ("CancelledError", raising(asyncio.CancelledError()), "raised CancelledError;"),
    ("a negative timedelta", lambda: timedelta(seconds=-5), "returned a timedelta of -5 s"),
    ("a negative number", lambda: -0.5, "returned -0.5"),
    ("the longest timedelta", lambda: timedelta.max, "returned a timedelta of 8.64e+13 s"),
    ("infinity", lambda: float("inf"), "returned inf"),
    ("NaN", lambda: float("nan"), "returned nan"),
    ("an integer beyond all floats", lambda: 10**400, "returned an integer beyond all bounds"),
    ("None", lambda: None, "returned a value of type NoneType"),
    ("text", lambda: "60", "returned a value of type str"),
    ("a boolean", lambda: True, "returned a value of type bool"),
]


@pytest.mark.parametrize(
    ("attempts", "minutes"), [(1, 1), (2, 5), (3, 30), (4, 120), (5, 360), (6, 360), (2000, 360), (10**30, 360)]
)
def test_the_default_backoff_grows_to_six_hours_and_stays_there(attempts: int, minutes: int) -> None:
    assert BackoffPolicy().retry_delay(attempts) == timedelta(minutes=minutes)
    assert judge_retry_delay(BackoffPolicy(), attempts) == (minutes * 60.0, None)


@pytest.mark.parametrize(("streak", "seconds"), [(1, 1.0), (2, 2.0), (3, 5.0), (4, 10.0), (5, 10.0), (10**30, 10.0)])
def test_the_default_idle_sleep_grows_to_ten_seconds_and_stays_there(streak: int, seconds: float) -> None:
    assert IdlePollPolicy().next_sleep(streak) == seconds
    assert judge_idle_sleep(IdlePollPolicy(), streak) == (seconds, None)


@given(
    base=st.floats(0, 1e6), most=st.floats(0, 1e6, exclude_min=True), streak=st.integers(min_value=1, max_value=10**9)
)
def test_an_idle_sleep_is_never_above_its_maximum_and_never_shrinks(base: float, most: float, streak: int) -> None:
    policy = IdlePollPolicy(base, most)
    assert policy.next_sleep(streak) <= policy.next_sleep(streak + 1) <= most
    assert policy.next_sleep(1) == min(base, most)


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf"), 10**400, "1", None, True, timedelta(seconds=1)])
def test_an_idle_policy_with_an_impossible_number_is_refused_by_name(value: float) -> None:
    with pytest.raises(OptionError, match=r"^base_seconds: expected"):
        IdlePollPolicy(base_seconds=value)
    with pytest.raises(OptionError, match=r"^max_seconds: expected"):
        IdlePollPolicy(max_seconds=value)


def test_an_idle_maximum_of_zero_is_refused_and_a_base_of_zero_is_not() -> None:
    with pytest.raises(OptionError, match=r"max_seconds: expected a number of seconds above 0; got 0"):
        IdlePollPolicy(max_seconds=0)
    assert IdlePollPolicy(base_seconds=0).next_sleep(1) == 0.0


def test_the_default_error_policy_asks_for_no_sleep() -> None:
    assert LoopErrorPolicy().next_sleep(1) == 0.0
    assert LoopErrorPolicy().next_sleep(1000) == 0.0


@pytest.mark.parametrize(("what", "answer", "problem"), REFUSED, ids=[what for what, _, _ in REFUSED])
def test_a_backoff_that_misbehaves_is_replaced_by_the_default(
    what: str, answer: Callable[[], object], problem: str
) -> None:
    value, complaint = judge_retry_delay(Answers(answer), 2)
    assert value == 300.0
    assert complaint is not None
    assert complaint.startswith("Answers.retry_delay ")
    assert problem in complaint
    assert complaint.endswith("; 300 s is used")


@pytest.mark.parametrize(("what", "answer", "problem"), REFUSED, ids=[what for what, _, _ in REFUSED])
def test_a_sleep_policy_that_misbehaves_is_replaced_by_the_default(
    what: str, answer: Callable[[], object], problem: str
) -> None:
    idle = judge_idle_sleep(Answers(answer), 3)
    assert idle.value == 5.0
    assert problem in (idle.complaint or "")
    error = judge_error_sleep(Answers(answer), 1, jitter=0.0)
    assert error.value == 0.0
    assert problem in (error.complaint or "")


@pytest.mark.parametrize(
    ("answer", "seconds"),
    [(timedelta(seconds=3.5), 3.5), (3.5, 3.5), (7, 7.0), (0, 0.0), (timedelta(0), 0.0), (RETRY_DELAY_MAX, 365 * DAY)],
)
def test_a_retry_delay_may_be_a_timedelta_or_seconds_up_to_a_year(answer: object, seconds: float) -> None:
    assert judge_retry_delay(Answers(lambda: answer), 1) == (seconds, None)


def test_a_retry_delay_over_the_cap_is_replaced() -> None:
    value, complaint = judge_retry_delay(Answers(lambda: RETRY_DELAY_MAX + timedelta(microseconds=1)), 1)
    assert value == 60.0
    assert complaint is not None


def test_a_sleep_up_to_a_day_is_taken_and_a_longer_one_is_replaced() -> None:
    assert judge_idle_sleep(Answers(lambda: SLEEP_MAX), 1) == (DAY, None)
    assert judge_error_sleep(Answers(lambda: SLEEP_MAX), 1, jitter=0.0) == (DAY, None)
    assert judge_idle_sleep(Answers(lambda: DAY + 1), 1).value == 1.0
    assert judge_error_sleep(Answers(lambda: DAY + 1), 1, jitter=0.0).value == 0.0


def test_an_idle_sleep_of_zero_does_not_become_a_tight_loop() -> None:
    assert judge_idle_sleep(Answers(lambda: 0.0), 1) == (0.01, None)


def test_an_error_sleep_has_a_floor_that_doubles_from_a_twentieth_of_a_second() -> None:
    policy = LoopErrorPolicy()
    sleeps = [judge_error_sleep(policy, errors, jitter=0.0).value for errors in range(1, 12)]
    assert sleeps == pytest.approx([0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 4.0, 4.0, 4.0])
    assert judge_error_sleep(policy, 10**30, jitter=0.999).value == pytest.approx(5.0, abs=0.01)


@given(errors=st.integers(min_value=2, max_value=10**9), jitter=st.floats(0, 1, exclude_max=True))
def test_the_error_floor_with_jitter_stays_between_a_twentieth_and_five_seconds(errors: int, jitter: float) -> None:
    value, complaint = judge_error_sleep(LoopErrorPolicy(), errors, jitter)
    assert 0.05 <= value <= 5.0
    assert complaint is None


def test_the_longer_of_the_policys_sleep_and_the_floor_holds() -> None:
    assert judge_error_sleep(Answers(lambda: 7.0), 3, jitter=0.0) == (7.0, None)
    assert judge_error_sleep(Answers(lambda: 0.01), 3, jitter=0.0) == (0.1, None)
    floored = judge_error_sleep(Answers(lambda: -1), 3, jitter=0.0)
    assert floored.value == 0.1
    assert floored.complaint is not None


def test_a_complaint_is_one_storable_line_of_bounded_length() -> None:
    _, complaint = judge_retry_delay(Answers(raising(ValueError("a\nb\x00\ud800" + "c" * 100_000))), 1)
    assert complaint is not None
    assert "\n" not in complaint
    assert "\x00" not in complaint
    assert len(complaint.encode()) < 500


def test_a_subclass_that_forgets_its_base_constructor_gets_the_default() -> None:
    class Forgetful(IdlePollPolicy):
        def __init__(self) -> None:
            self.mine = True

    value, complaint = judge_idle_sleep(Forgetful(), 4)
    assert value == 10.0
    assert complaint is not None
    assert "AttributeError" in complaint


def test_ctrl_c_during_a_policy_is_not_swallowed() -> None:
    with pytest.raises(KeyboardInterrupt):
        judge_retry_delay(Answers(raising(KeyboardInterrupt())), 1)
