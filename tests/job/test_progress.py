"""What a report may be."""

from datetime import timedelta
from typing import Any

import pytest

from pqrun.errors import OptionError
from pqrun.job.progress import MESSAGE_MAX, Report, check_every, check_report


@pytest.mark.parametrize("value", [0, 0.0, 0.4, 1, 1.0, 5e-324])
def test_a_number_from_nought_to_one_is_a_value(value: float) -> None:
    report = check_report(value)
    assert report == Report(float(value), None)
    assert type(report.value) is float


@pytest.mark.parametrize(
    "value", [-0.001, 1.0000001, 40, float("nan"), float("inf"), float("-inf"), 10**400, True, None, "0.4", [0.4], 1j]
)
def test_anything_else_is_refused_by_its_name(value: Any) -> None:
    with pytest.raises(OptionError, match="value: expected a number from 0 to 1; got "):
        check_report(value)


@pytest.mark.parametrize("message", ["", "half of the pages", "zwei\nZeilen", "ž" * MESSAGE_MAX])
def test_a_message_that_fits_is_kept_as_it_is(message: str) -> None:
    assert check_report(0.5, message).message == message


def test_a_long_message_is_cut_with_an_ellipsis() -> None:
    message = check_report(0.5, "ab" * MESSAGE_MAX).message
    assert message == ("ab" * MESSAGE_MAX)[: MESSAGE_MAX - 1] + "…"
    assert check_report(0.5, "x" * MESSAGE_MAX + "\x00").message == "x" * (MESSAGE_MAX - 1) + "…"


@pytest.mark.parametrize(
    ("message", "said"),
    [("a\x00b", "NUL"), ("\ud83d", "lone surrogate"), (b"bytes", "got bytes"), (7, "expected text or None; got int")],
)
def test_a_message_that_cannot_be_stored_is_refused_by_its_name(message: Any, said: str) -> None:
    with pytest.raises(OptionError, match=f"message: .*{said}"):
        check_report(0.5, message)


@pytest.mark.parametrize(("every", "seconds"), [(0.05, 0.05), (1, 1.0), (timedelta(seconds=2), 2.0)])
def test_a_pause_between_two_looks(every: float | timedelta, seconds: float) -> None:
    assert check_every(every) == seconds


@pytest.mark.parametrize("every", [0, 0.049, -1, float("nan"), float("inf"), True, None, "1", timedelta(0)])
def test_no_pause_is_refused(every: Any) -> None:
    with pytest.raises(OptionError, match=r"every: expected seconds or a timedelta, 0\.05 s or more; got "):
        check_every(every)
