"""JobFilter: what is refused, naming the field, and what is kept."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from pqrun.errors import OptionError
from pqrun.job.filter import JobFilter
from pqrun.job.state import Status

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("statuses", "READY", "expected a collection of members of Status; got str"),
        ("statuses", ["READDY"], "expected members of Status; got something else"),
        ("statuses", [], "expected members of Status, at least one, or None for any; got none"),
        ("job_types", "send", "expected a collection of names of tasks; got str"),
        ("job_types", [""], "expected text of 1 to 200 characters; got one of 0"),
        ("queues", [7], "expected text; got 7 (int)"),
        ("queues", {"a": 1}, "expected a collection of names of queues; got dict"),
        ("queues", ["a", b"b"], "expected text; got bytes"),
        ("ids", 7, "expected a collection of ids of jobs; got int"),
        ("ids", ["7"], "the id of a job is an int; got str"),
        ("ids", [2**63], "the id of a job is an int; got one that no bigint holds"),
        ("priorities", [40_000], "expected a whole number from -32768 to 32767; got 40000"),
        ("dedupe_keys", [""], "expected keys; got something else"),
        ("error_contains", "", "expected text of at least one character; got str"),
        ("error_contains", "a\x00", "expected text; got one that PostgreSQL cannot store"),
        ("payload", {}, "expected a mapping with at least one key; got dict"),
        ("payload", [1], "expected a mapping with at least one key; got list"),
        ("created_after", datetime(2026, 1, 1), "expected a datetime with a time zone"),  # noqa: DTZ001  # the point
        ("finished_before", "yesterday", "expected a datetime with a time zone, or a timedelta: so long ago; got str"),
        ("due_after", timedelta(seconds=-1), "expected a timedelta of 0 or more: so long ago"),
    ],
)
def test_an_impossible_value_is_refused_by_its_field(field: str, value: object, told: str) -> None:
    make: Callable[..., Any] = JobFilter
    with pytest.raises(OptionError) as caught:
        make(**{field: value})
    assert str(caught.value).startswith(f"{field}: {told}")


def test_a_payload_that_cannot_be_stored_is_refused_without_its_value() -> None:
    with pytest.raises(OptionError, match=r"^payload: .*card") as caught:
        JobFilter(payload={"card": "4111\x00"})
    assert "4111" not in str(caught.value)


def test_neither_payload_nor_error_are_shown() -> None:
    shown = repr(JobFilter(payload={"card": "4111"}, error_contains="4112", queues=["mail"]))
    assert "411" not in shown
    assert "queues=('mail',)" in shown


def test_values_are_kept_once_and_in_order() -> None:
    wanted = JobFilter(ids={3, 1, 2}, statuses=[Status.READY, Status.READY], queues=["b", "a", "b"])
    assert (wanted.ids, wanted.statuses, wanted.queues) == ((1, 2, 3), (Status.READY,), ("a", "b"))


def test_a_span_is_so_long_before_the_clock_that_is_given_and_never_before_the_calendar() -> None:
    wanted = JobFilter(created_after=timedelta(hours=2), created_before=timedelta(days=10**9 - 1))
    assert wanted.time("created_after", NOW) == NOW - timedelta(hours=2)
    assert wanted.time("created_before", NOW) == datetime(1, 1, 2, tzinfo=UTC)
    assert wanted.time("due_after", NOW) is None


def test_an_instant_is_kept_in_utc() -> None:
    elsewhere = datetime(2026, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))
    assert JobFilter(due_before=elsewhere).due_before == NOW


def test_only_a_filter_without_anything_is_empty() -> None:
    assert JobFilter().is_empty
    assert not JobFilter(priorities=[0]).is_empty
