"""Options are refused by name before anything is written."""

import math
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from pqrun.errors import OptionError
from pqrun.job.options import (
    JobOptions,
    check_job_type,
    check_max_attempts,
    check_priority,
    check_queue,
    check_run_after,
    check_timeout,
)


def refused(check: Callable[[object], object], value: object) -> str:
    with pytest.raises(OptionError) as caught:
        check(value)
    return str(caught.value)


@pytest.mark.parametrize("value", [0, -1, 1.5, "3", True, None, 2**31, 10**400, math.nan])
def test_max_attempts_must_be_a_whole_number_from_one(value: object) -> None:
    assert refused(check_max_attempts, value).startswith(
        "max_attempts: expected a whole number from 1 to 2147483647; got "
    )


@pytest.mark.parametrize("value", [1, 5, 2**31 - 1])
def test_max_attempts_that_fit_their_column_pass(value: int) -> None:
    assert check_max_attempts(value) == value


@pytest.mark.parametrize("value", [-32_769, 32_768, "1", 1.0, False, None])
def test_priority_must_fit_a_smallint(value: object) -> None:
    assert refused(check_priority, value).startswith("priority: ")


@pytest.mark.parametrize("value", [-32_768, 0, 32_767])
def test_priorities_at_the_edges_of_a_smallint_pass(value: int) -> None:
    assert check_priority(value) == value


@pytest.mark.parametrize(
    "value",
    [0, -1, math.nan, math.inf, -math.inf, "300", True, timedelta(0), timedelta(seconds=-1), timedelta.max, 10**400],
)
def test_an_impossible_timeout_is_refused(value: object) -> None:
    assert refused(check_timeout, value).startswith("timeout: ")


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(None, None), (300, 300.0), (0.5, 0.5), (timedelta(minutes=5), 300.0), (timedelta(days=3650), 315_360_000.0)],
)
def test_a_timeout_is_kept_in_seconds(value: object, seconds: float | None) -> None:
    assert check_timeout(value) == seconds


@pytest.mark.parametrize("check", [check_job_type, check_queue])
@pytest.mark.parametrize("value", ["", "x" * 201, "a\x00b", "\ud83d", 3, None, b"mail"])
def test_a_name_must_be_short_storable_text(check: Callable[[object], str], value: object) -> None:
    assert refused(check, value).startswith(("job_type: ", "queue: "))


@pytest.mark.parametrize("value", ["mail", "x" * 200, "ü" * 200, "a'); DELETE FROM jobs; --", "\nforged"])
def test_any_storable_text_up_to_200_characters_is_a_name(value: str) -> None:
    assert check_job_type(value) == check_queue(value) == value


def test_an_aware_instant_is_kept_in_utc() -> None:
    given = datetime(2026, 1, 1, 12, 0, 0, 5, tzinfo=timezone(timedelta(hours=2)))
    assert check_run_after(given) == (datetime(2026, 1, 1, 10, 0, 0, 5, tzinfo=UTC), None)
    summer = datetime(2026, 7, 1, 12, tzinfo=ZoneInfo("America/New_York"))
    assert check_run_after(summer) == (datetime(2026, 7, 1, 16, tzinfo=UTC), None)


def test_a_delay_is_kept_in_seconds() -> None:
    assert check_run_after(timedelta(minutes=1)) == (None, 60.0)
    assert check_run_after(timedelta(0)) == (None, 0.0)
    assert check_run_after(None) == (None, None)


def test_a_naive_datetime_is_asked_for_its_time_zone() -> None:
    assert "time zone" in refused(check_run_after, datetime(2026, 1, 1, 12, 0))  # noqa: DTZ001  # naive on purpose


@pytest.mark.parametrize(
    "value",
    [
        datetime.max.replace(tzinfo=UTC),
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-5))),
        datetime.max.replace(tzinfo=timezone(timedelta(hours=14))),
        datetime(9999, 12, 31, tzinfo=UTC),
        timedelta.max,
        timedelta(days=400_000),
        timedelta(seconds=-1),
        60,
        "2026-01-01T00:00:00Z",
        date(2026, 1, 1),
        True,
    ],
)
def test_what_no_timestamp_can_hold_is_no_run_after(value: object) -> None:
    assert refused(check_run_after, value).startswith("run_after: ")


@pytest.mark.parametrize("offset", [timedelta(hours=-14), timedelta(0), timedelta(hours=14)])
def test_the_first_instant_there_is_means_at_once(offset: timedelta) -> None:
    assert check_run_after(datetime.min.replace(tzinfo=timezone(offset))) == (datetime(1970, 1, 1, tzinfo=UTC), None)


def test_the_last_instant_can_be_shown_in_every_time_zone() -> None:
    last, _ = check_run_after(datetime(9999, 12, 30, tzinfo=UTC))
    assert last is not None
    for hours in (-23, 23):
        assert last.astimezone(timezone(timedelta(hours=hours))) == last


def test_options_are_checked_together() -> None:
    options = JobOptions.checked(queue="mail", priority=10, max_attempts=1, timeout=timedelta(minutes=1))
    assert options == JobOptions(queue="mail", priority=10, max_attempts=1, timeout_seconds=60.0)
    assert JobOptions.checked() == JobOptions()
    with pytest.raises(OptionError, match="timeout"):
        JobOptions.checked(timeout=0)


def test_the_message_says_what_was_expected_and_what_came() -> None:
    assert refused(check_max_attempts, "3") == (
        "max_attempts: expected a whole number from 1 to 2147483647; got '3' (str)"
    )
    assert len(refused(check_queue, "x" * 10_000)) < 200
    assert "\n" not in refused(check_priority, "a\nb")
