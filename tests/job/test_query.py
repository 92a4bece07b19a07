"""The query language: what each condition means, what is refused and where, and that a filter comes back from its text."""

import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pqrun.errors import OptionError, QueryError
from pqrun.job.filter import TIMES, JobFilter
from pqrun.job.query import KEYS, parse_query, query_text
from pqrun.job.state import Status

HOUR = timedelta(hours=1)

MEANINGS: dict[str, JobFilter] = {
    "": JobFilter(),
    "  \n ": JobFilter(),
    "state:failed,CANCELLED": JobFilter(statuses=[Status.FAILED, Status.CANCELLED]),
    "task:send_email queue:mail": JobFilter(job_types=["send_email"], queues=["mail"]),
    "task:send_*,other": JobFilter(job_type_patterns=["send_*"], job_types=["other"]),
    'task:"send_*"': JobFilter(job_types=["send_*"]),
    'task:"send mail "*': JobFilter(job_type_patterns=["send mail *"]),
    'queue:"a b","c,d",e': JobFilter(queues=["a b", "c,d", "e"]),
    "id:7,8": JobFilter(ids=[7, 8]),
    "priority:5,-1": JobFilter(priorities=[5, -1]),
    "dedupe:user:7": JobFilter(dedupe_keys=["user:7"]),
    "worker:web-1:4711": JobFilter(workers=["web-1:4711"]),
    "attempts:3": JobFilter(attempts_min=3, attempts_max=3),
    "attempts:>2": JobFilter(attempts_min=3),
    "attempts:>=2": JobFilter(attempts_min=2),
    "attempts:<2": JobFilter(attempts_max=1),
    "attempts:<=2": JobFilter(attempts_max=2),
    "attempts:2..4": JobFilter(attempts_min=2, attempts_max=4),
    "error:Timeout": JobFilter(error_contains="Timeout"),
    'error:"no \\"such\\" card"': JobFilter(error_contains='no "such" card'),
    "error:a,b": JobFilter(error_contains="a,b"),
    "payload.user_id:42": JobFilter(payload={"user_id": 42}),
    'payload.user_id:"42"': JobFilter(payload={"user_id": "42"}),
    'payload.name:"a b"': JobFilter(payload={"name": "a b"}),
    "payload.name:anna,b": JobFilter(payload={"name": "anna,b"}),
    "payload.user.id:7 payload.user.name:x": JobFilter(payload={"user": {"id": 7, "name": "x"}}),
    'payload."a.b":true payload.c:null': JobFilter(payload={"a.b": True, "c": None}),
    'payload.to:{"a": ["b", 1]} payload.l:[1, 2]': JobFilter(payload={"to": {"a": ["b", 1]}, "l": [1, 2]}),
    "payload.n:NaN": JobFilter(payload={"n": "NaN"}),
    "since:1h": JobFilter(created_after=HOUR),
    "since:1h before:2026-11-30": JobFilter(created_after=HOUR, created_before=datetime(2026, 11, 30, tzinfo=UTC)),
    "state:failed since:1h": JobFilter(statuses=[Status.FAILED], finished_after=HOUR),
    "state:failed,ready since:1h": JobFilter(statuses=[Status.FAILED, Status.READY], created_after=HOUR),
    "due_before:0s finished_after:1h": JobFilter(due_before=timedelta(0), finished_after=HOUR),
    "17": JobFilter(ids=[17]),
    "17 18 id:7": JobFilter(ids=[7, 17, 18]),
    "connection refused": JobFilter(error_contains="connection refused"),
    "state:failed connection task:x refused": JobFilter(
        statuses=[Status.FAILED], job_types=["x"], error_contains="connection refused"
    ),
    "exit code 137": JobFilter(error_contains="exit code 137"),
    '"17"': JobFilter(error_contains="17"),
    '"failed"': JobFilter(error_contains="failed"),
    '"TypeError: x"': JobFilter(error_contains="TypeError: x"),
    "12:30": JobFilter(error_contains="12:30"),
}


@pytest.mark.parametrize(("text", "wanted"), MEANINGS.items(), ids=MEANINGS)
def test_what_a_query_means(text: str, wanted: JobFilter) -> None:
    assert parse_query(text) == wanted


def test_the_examples_of_the_keys_are_read() -> None:
    assert not [key for key, example in KEYS.items() if parse_query(example).is_empty]


@pytest.mark.parametrize(("by_end", "field"), [(True, "finished_after"), (False, "created_after")])
@pytest.mark.parametrize("state", ["", "state:failed", "state:ready"])
def test_a_caller_may_say_what_since_is_a_time_of(by_end: bool, field: str, state: str) -> None:
    assert getattr(parse_query(f"{state} since:1h", by_end=by_end), field) == HOUR


@pytest.mark.parametrize(
    ("text", "position", "told"),
    [
        ("stat:failed", 1, "stat:failed: no such key; did you mean state:?"),
        ("queue:mail  type:send", 13, "type:send: no such key; did you mean task:?"),
        ("payloads:4111", 1, "payloads:: no such key; did you mean payload:?"),
        ("payloads.card:4111", 1, "payloads.card:: no such key; did you mean payload:?"),
        ("http://x", 1, "http: no such key; there are state, task, queue, id,"),
        ("state:faild", 7, "state:faild: no such state; did you mean failed?"),
        ("state:ready,xyz", 13, "state:xyz: no such state; expected one of scheduled, ready,"),
        ("queue:", 7, "queue: expected a value behind the colon"),
        ("queue: mail", 7, "queue: expected a value behind the colon"),
        ("queue:a,", 9, "queue: expected a value behind the comma"),
        ("queue:mail*", 7, "queue: * stands for any text in task: alone"),
        ('task:"a*"b*', 6, "a * in quotes and one outside of them"),
        ('queue:"mail', 7, "these quotes do not end"),
        ('error:"a"b', 10, "error: expected a space behind the quotes; it takes one value"),
        ("id:seven", 4, "id: expected a whole number"),
        ("id:99999999999999999999", 4, "id: expected a whole number"),
        ("id:9999999999999999999", 1, "id: the id of a job is an int; got one that no bigint holds"),
        ("priority:40000", 1, "priority: expected a whole number from -32768 to 32767; got 40000"),
        ("attempts:many", 1, "attempts: expected a number such as 3, >2,"),
        ("attempts:<0", 1, "attempts: expected a whole number from 0"),
        ("since:yesterday", 7, "since: expected 90s, 15m, 2h, 7d or 1w ago, a date"),
        ("since:2026-11-30T10:00", 7, "since: expected 90s"),
        ("created_after:1h since:1h", 18, "since: means created_after: here, which is given too"),
        ("queue:a queue:b", 9, "queue: is given twice; several values stand behind one key, with commas between"),
        ("payload:7", 1, "payload: which field? write payload.user_id:42"),
        ("payload.a:1 payload.a.b:2", 13, "payload.a.b: another condition gives a value to a part of this path"),
        ("payload.a.b:2 payload.a:1", 15, "payload.a: another condition speaks of the same value"),
        ('payload.a:{"x"', 11, "payload.a: expected JSON, as it begins"),
        ("state.x:failed", 1, "state.x:: no such key; did you mean state:?"),
        ("failed", 1, "failed: did you mean state:failed? In quotes it is a part of the error"),
        ("error:a b", 9, "words without a key are a part of the error, and error: is given too"),
        (f"queue:{'q' * 201}", 1, "queue: expected text of 1 to 200 characters"),
    ],
)
def test_what_cannot_be_read_is_refused_by_its_place(text: str, position: int, told: str) -> None:
    with pytest.raises(QueryError) as caught:
        parse_query(text)
    assert str(caught.value).startswith(f"query, character {position}: {told}")
    assert caught.value.position == position


@pytest.mark.parametrize(
    "text",
    ["payload.card:4111\x00", 'payload.card:"4111', 'error:"4111"x', "eror:4111", 'payload.a:["4111"', 'x y "4111"z'],
)
def test_no_message_holds_a_value_of_a_payload_or_an_error(text: str) -> None:
    with pytest.raises(QueryError) as caught:
        parse_query(text)
    assert "4111" not in str(caught.value)


def _storable(alphabet: st.SearchStrategy[str], least: int, most: int) -> st.SearchStrategy[str]:
    return st.text(alphabet, min_size=least, max_size=most)


# Few letters, all that mean something in a query among them, and now and then any other.
LETTERS = st.one_of(
    st.sampled_from('ab1.:,*"\\ {}[]<>='), st.characters(exclude_categories=["Cs"], exclude_characters="\x00")
)
NAMES = st.lists(_storable(LETTERS, 1, 6), min_size=1, max_size=3)
PATTERNS = st.lists(_storable(LETTERS, 1, 6).map(lambda text: f"*{text}*"), min_size=1, max_size=2)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | _storable(LETTERS, 0, 6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_storable(LETTERS, 0, 4), inner, max_size=3),
    max_leaves=8,
)
MOMENTS = st.timedeltas(min_value=timedelta(0)) | st.datetimes(timezones=st.just(UTC))
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "statuses": st.lists(st.sampled_from(Status), min_size=1),
    "job_types": NAMES,
    "job_type_patterns": PATTERNS,
    "queues": NAMES,
    "ids": st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=3),
    "priorities": st.lists(st.integers(-(2**15), 2**15 - 1), min_size=1, max_size=3),
    "dedupe_keys": NAMES,
    "workers": NAMES,
    "attempts_min": st.integers(0, 2**31 - 1),
    "attempts_max": st.integers(0, 2**31 - 1),
    "error_contains": _storable(LETTERS, 1, 10),
    "payload": st.dictionaries(_storable(LETTERS, 0, 4), JSON, min_size=1, max_size=3),
    **dict.fromkeys(TIMES, MOMENTS),
}
FILTERS = st.fixed_dictionaries({}, optional=FIELDS)


def test_the_property_below_is_about_every_field() -> None:
    assert set(FIELDS) == {field.name for field in dataclasses.fields(JobFilter)}


@given(FILTERS, st.sampled_from([None, True, False]))
def test_a_filter_comes_back_from_its_text(fields: dict[str, Any], by_end: bool | None) -> None:
    make: Callable[..., JobFilter] = JobFilter
    wanted = make(**fields)
    assert parse_query(query_text(wanted), by_end=by_end) == wanted


@given(st.text(LETTERS, max_size=40) | st.lists(st.sampled_from([*KEYS.values(), "7", "x", '"', ":"])).map(" ".join))
def test_any_text_is_read_or_refused_by_a_place_in_it(text: str) -> None:
    try:
        wanted = parse_query(text)
    except QueryError as error:
        position = error.position
    else:
        assert parse_query(query_text(wanted)) == wanted
        return
    assert 1 <= position <= len(text) + 1


def test_a_query_error_is_an_option_error() -> None:
    with pytest.raises(OptionError, match=r"^query, character 1: "):
        parse_query("stat:failed")
