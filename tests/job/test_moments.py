"""Times as people write them: what is read, exactly, and what is not."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pqrun.job.moments import duration, duration_text, time_ago, time_text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("90s", timedelta(seconds=90)),
        ("15m", timedelta(minutes=15)),
        ("1.5h", timedelta(minutes=90)),
        ("0.000001s", timedelta(microseconds=1)),
        ("7d", timedelta(days=7)),
        ("2w", timedelta(days=14)),
        ("2026-11-30", datetime(2026, 11, 30, tzinfo=UTC)),
        ("2026-11-30T10:00:00Z", datetime(2026, 11, 30, 10, tzinfo=UTC)),
        ("2026-11-30T10:00+02:00", datetime(2026, 11, 30, 10, tzinfo=timezone(timedelta(hours=2)))),
    ],
)
def test_what_is_read(text: str, value: datetime | timedelta) -> None:
    assert time_ago(text) == value


@pytest.mark.parametrize(
    "text",
    ["", "7", "7y", "-1h", "1.0000001s", "999999999999999w", "yesterday", "2026-11-30T10:00", "2026-13-01", "\u0661h"],
)
def test_what_is_not(text: str) -> None:
    assert time_ago(text) is None


@given(st.timedeltas(min_value=timedelta(0)))
def test_a_duration_comes_back(value: timedelta) -> None:
    assert duration(duration_text(value)) == value


@given(st.datetimes(min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30), timezones=st.just(UTC)))  # noqa: DTZ001  # as hypothesis takes them
def test_an_instant_comes_back(value: datetime) -> None:
    assert time_ago(time_text(value)) == value
