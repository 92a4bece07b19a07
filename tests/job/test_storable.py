"""One rule says what PostgreSQL can store, for text, JSON and errors."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from types import MappingProxyType
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pqrun.errors import PayloadError
from pqrun.job.storable import (
    MAX_JSON_CHARACTERS,
    MAX_JSON_DEPTH,
    check_text,
    dump_object,
    one_line,
    replace_unstorable,
    unstorable_reason,
)

any_text = st.text(st.characters(exclude_categories=()))


def test_text_without_nul_and_surrogates_passes_unchanged() -> None:
    assert check_text("plain ü \U0001f600 \\u0000", "name") == "plain ü \U0001f600 \\u0000"


@pytest.mark.parametrize(("text", "shown"), [("a\x00b", "NUL"), ("a\ud83d", "\\ud83d"), ("\udc00", "\\udc00")])
def test_text_that_cannot_be_stored_is_refused_by_name(text: str, shown: str) -> None:
    with pytest.raises(PayloadError) as caught:
        check_text(text, "title")
    assert str(caught.value).startswith("title: ")
    assert shown in str(caught.value)


@given(any_text)
def test_replaced_text_can_always_be_stored(text: str) -> None:
    replaced = replace_unstorable(text)
    assert unstorable_reason(replaced) is None
    assert "\x00" not in replaced.encode().decode()
    if unstorable_reason(text) is None:
        assert replaced == text


def test_what_cannot_be_stored_is_shown_as_an_escape() -> None:
    assert replace_unstorable("bad \x00 byte \ud83d end\n") == "bad \\x00 byte \\ud83d end\n"


@given(any_text)
def test_a_record_is_one_physical_line(text: str) -> None:
    line = one_line(text)
    assert len(line.splitlines()) <= 1
    assert line.encode().decode() == line
    assert not any(ord(char) < 32 or 0x7F <= ord(char) < 0xA0 for char in line)


def test_control_characters_are_shown_escaped() -> None:
    assert one_line("a\n2026 ERROR forged\x1b[0m\u2028\u202e") == "a\\n2026 ERROR forged\\x1b[0m\\u2028\\u202e"


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_characters="\x00")),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(codec="utf-8", exclude_characters="\x00")), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(st.dictionaries(st.text(st.characters(codec="utf-8", exclude_characters="\x00")), json_values))
def test_what_is_accepted_comes_back_equal(value: dict[str, object]) -> None:
    assert json.loads(dump_object(value, "payload")) == value


@given(st.dictionaries(any_text, any_text | st.floats() | json_values, max_size=4))
def test_a_dict_is_stored_whole_or_refused(value: dict[str, object]) -> None:
    text: str | None = None
    errors: tuple[tuple[str, str], ...] = ()
    try:
        text = dump_object(value, "payload")
    except PayloadError as refusal:
        errors = refusal.errors
    assert (text is None) is bool(errors)
    if text is not None:
        assert json.loads(text) == value
        assert unstorable_reason("".join(map(str, json.loads(text)))) is None


@pytest.mark.parametrize("number", [2**53 + 1, 2**63, 2**70, -1, 10**400])
def test_whole_numbers_stay_exact(number: int) -> None:
    assert json.loads(dump_object({"n": number}, "payload")) == {"n": number}


def test_plain_text_that_looks_like_an_escape_is_kept() -> None:
    assert json.loads(dump_object({"text": "\\u0000"}, "payload")) == {"text": "\\u0000"}


class Custom:
    """Not JSON."""


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"text": "a\x00b"}, "text"),
        ({"k": {"n\x00": [1]}}, "k.n\\x00"),
        ({"k": ["\ud83d"]}, "k[0]"),
        ({"any": {"y": float("nan")}}, "any.y"),
        ({"any": [float("-inf")]}, "any[0]"),
        ({"when": datetime(2026, 1, 1, tzinfo=UTC)}, "when"),
        ({"id": UUID(int=1)}, "id"),
        ({"amount": Decimal("0.1")}, "amount"),
        ({"data": b"abc"}, "data"),
        ({"tags": {"a"}}, "tags"),
        ({"x": Custom()}, "x"),
        ({"n": 1 << 20_000}, "n"),
        ({"a": {1: "x"}}, "a"),
        ({1: "x"}, "the object"),
        ({None: 1}, "the object"),
    ],
)
def test_what_json_cannot_hold_is_refused_with_its_path(value: Mapping[str, object], path: str) -> None:
    with pytest.raises(PayloadError) as caught:
        dump_object(value, "payload")
    assert str(caught.value).startswith(f"payload: {path}: ")


@pytest.mark.parametrize("value", [[1], "x", None, 5])
def test_a_payload_that_is_no_object_is_refused(value: Mapping[str, object]) -> None:
    with pytest.raises(PayloadError, match="expected a dict"):
        dump_object(value, "payload")


def test_a_dict_that_holds_itself_is_refused() -> None:
    loop: dict[str, object] = {}
    loop["again"] = loop
    with pytest.raises(PayloadError, match="part of itself"):
        dump_object(loop, "payload")


def test_nesting_has_a_limit() -> None:
    def nested(levels: int) -> dict[str, object]:
        value: dict[str, object] = {}
        for _ in range(levels - 2):
            value = {"a": value}
        return {"a": value}

    assert dump_object(nested(MAX_JSON_DEPTH), "payload")
    with pytest.raises(PayloadError, match=f"{MAX_JSON_DEPTH} levels"):
        dump_object(nested(MAX_JSON_DEPTH + 1), "payload")


def test_size_has_a_limit_that_the_message_names() -> None:
    assert len(dump_object({"x": "a" * 10_000_000}, "payload")) > 10_000_000
    with pytest.raises(PayloadError, match=str(MAX_JSON_CHARACTERS)):
        dump_object({"x": "a" * MAX_JSON_CHARACTERS}, "payload")


def test_any_mapping_and_tuples_are_accepted() -> None:
    assert dump_object(MappingProxyType({"a": (1, 2)}), "payload") == '{"a":[1,2]}'


def test_no_refusal_shows_the_value() -> None:
    with pytest.raises(PayloadError) as caught:
        dump_object({"token": "hunter2\x00"}, "payload")
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(caught.value.errors)
