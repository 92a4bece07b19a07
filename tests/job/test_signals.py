"""What handlers raise to choose their outcome: checked where it is made, told in words, and able to travel."""

import copy
import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from pqrun import Abort, HandlerSignal, OptionError, PqrunError, RetryAfter, Snooze
from pqrun.job.outcome import SNOOZES_MAX, Counts, Snoozed, decide_snooze
from pqrun.job.record import Claim
from pqrun.job.signals import sole_exception
from pqrun.job.storable import error_summary, error_text

MINUTE = timedelta(minutes=1)
CLAIM = Claim(7, 1007)


@pytest.mark.parametrize("kind", [Snooze, RetryAfter])
@pytest.mark.parametrize(
    ("delay", "came"),
    [
        (timedelta(seconds=-1), "-1 day, 23:59:59"),
        (timedelta(days=365_251), "365251 days"),
        (60, "60 (int)"),
        ("1 min", "'1 min' (str)"),
        (None, "NoneType"),
    ],
)
def test_a_delay_that_no_job_could_have_is_refused_by_the_name_of_its_argument(
    kind: Callable[[Any], HandlerSignal], delay: object, came: str
) -> None:
    with pytest.raises(OptionError, match=r"\.delay: expected a timedelta from 0 to 365250 days; got ") as refused:
        kind(delay)
    assert str(refused.value).startswith(kind.__name__)
    assert came in str(refused.value)


@pytest.mark.parametrize("kind", [Snooze, RetryAfter])
@pytest.mark.parametrize("delay", [timedelta(0), timedelta(days=365_250)])
def test_the_bounds_of_a_delay_are_within(kind: Callable[[timedelta], Snooze | RetryAfter], delay: timedelta) -> None:
    assert kind(delay).delay_seconds == delay.total_seconds()


@pytest.mark.parametrize("make", [Abort, lambda why: Snooze(MINUTE, why), lambda why: RetryAfter(MINUTE, why)])
@pytest.mark.parametrize(
    ("reason", "came"), [(3, "int"), (b"why", "bytes"), ("", "an empty one"), (" \n", "an empty one")]
)
def test_a_reason_that_says_nothing_is_refused(make: Callable[[Any], HandlerSignal], reason: object, came: str) -> None:
    with pytest.raises(OptionError, match=r"^\w+\.reason: expected text.*got " + came):
        make(reason)


def test_they_say_what_they_are_for() -> None:
    assert str(Snooze(MINUTE)) == "in 0:01:00"
    assert str(Snooze(MINUTE, "the bank is closed")) == "in 0:01:00: the bank is closed"
    assert str(RetryAfter(MINUTE, "429")) == "in 0:01:00: 429"
    assert str(Abort("no such user")) == "no such user"


def test_a_stored_abort_begins_its_line_with_its_public_name() -> None:
    try:
        raise Abort("no such user") from KeyError("u7")
    except Abort as error:
        text = error_text(error)
    assert error_summary(text) == "pqrun.Abort: no such user"
    assert "KeyError: 'u7'" in text


def test_they_belong_to_the_tree_and_to_each_other() -> None:
    assert all(issubclass(kind, HandlerSignal) for kind in (Snooze, Abort, RetryAfter))
    assert issubclass(HandlerSignal, PqrunError)


@pytest.mark.parametrize("signal", [Snooze(MINUTE, "why"), Snooze(MINUTE), Abort("why"), RetryAfter(MINUTE, "why")])
@pytest.mark.parametrize("travel", [copy.copy, lambda signal: pickle.loads(pickle.dumps(signal))])
def test_they_arrive_from_another_process_as_they_left(signal: Any, travel: Callable[[Any], Any]) -> None:
    arrived = travel(signal)
    assert (type(arrived), str(arrived), arrived.reason) == (type(signal), str(signal), signal.reason)
    assert getattr(arrived, "delay_seconds", None) == getattr(signal, "delay_seconds", None)


def test_a_group_of_one_counts_as_what_it_holds_and_a_group_of_several_as_itself() -> None:
    abort = Abort("why")
    one = ExceptionGroup("outer", [ExceptionGroup("inner", [abort])])
    two = ExceptionGroup("outer", [abort, ValueError("x")])
    assert sole_exception(abort) is abort
    assert sole_exception(one) is abort
    assert sole_exception(two) is two


def test_a_job_may_be_snoozed_so_many_times() -> None:
    last = Counts(1, 5, snoozes=SNOOZES_MAX - 1)
    assert decide_snooze(CLAIM, last, delay_seconds=3.0, reason="why") == Snoozed(
        CLAIM, None, 3.0, is_chosen=True, reason="why"
    )
    assert decide_snooze(CLAIM, Counts(1, 5, snoozes=SNOOZES_MAX), delay_seconds=3.0, reason=None) is None


def test_the_documented_maximum_is_the_one_that_counts() -> None:
    assert f"{SNOOZES_MAX:,} times" in (Snooze.__doc__ or "")
