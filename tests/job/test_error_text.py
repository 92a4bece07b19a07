"""Whatever a handler raises can be recorded."""

import threading
from typing import NoReturn

import pytest
from pydantic import BaseModel, ValidationError

from pqrun.job.storable import error_summary, error_text, unstorable_reason


def text_of(exc: BaseException, limit: int = 20_000) -> str:
    try:
        raise exc
    except BaseException as caught:  # noqa: BLE001  # SystemExit too
        return error_text(caught, limit=limit)


class Hostile(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __repr__(self) -> str:
        raise RuntimeError("no text")


class HostileNotes(Exception):
    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]  # hostile on purpose
        raise RuntimeError("no notes")


class TwoArguments(Exception):
    def __init__(self, code: int, lock: object) -> None:
        super().__init__(code, lock)


def test_type_message_and_place_are_told() -> None:
    text = text_of(ValueError("boom"))
    assert text.endswith("ValueError: boom")
    assert "test_error_text.py" in text


def test_what_cannot_be_stored_is_escaped() -> None:
    text = text_of(ValueError("bad \x00 byte \ud83d end"))
    assert text.endswith("ValueError: bad \\x00 byte \\ud83d end")
    assert unstorable_reason(text) is None


def test_members_of_a_group_are_told() -> None:
    text = text_of(ExceptionGroup("batch", [ValueError("a"), KeyError("b")]))
    assert "ValueError: a" in text
    assert "KeyError: 'b'" in text


def test_the_cause_and_the_notes_are_told() -> None:
    error = TypeError("outer")
    error.__cause__ = ValueError("inner")
    for depth in range(3):
        error.add_note(f"note {depth}")
    text = text_of(error)
    assert "ValueError: inner" in text
    assert "note 0\nnote 1\nnote 2" in text


def test_a_chain_that_bites_its_tail_ends() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    text = text_of(first)
    assert text.count("ValueError: first") == 1


@pytest.mark.parametrize("exc", [Hostile(), HostileNotes("x"), TwoArguments(1, threading.Lock()), SystemExit(1)])
def test_an_awkward_exception_still_gives_its_type(exc: BaseException) -> None:
    assert type(exc).__name__ in text_of(exc)


def test_endless_recursion_is_told_in_short() -> None:
    def recurse() -> NoReturn:
        recurse()

    try:
        recurse()
    except RecursionError as exc:
        text = error_text(exc)
    assert "RecursionError: maximum recursion depth exceeded" in text
    assert len(text) < 5_000


def test_a_long_chain_is_told_without_running_out_of_stack() -> None:
    error = ValueError("last")
    for number in range(3_000):
        following = ValueError(str(number))
        following.__cause__ = error
        error = following
    text = error_text(error)
    assert len(text) <= 20_000
    assert text.endswith("ValueError: 2999")


@pytest.mark.parametrize("limit", [400, 1_000, 20_000])
def test_a_long_message_keeps_its_type_and_its_end(limit: int) -> None:
    text = text_of(ValueError("begin " + "x" * 1_000_000 + " end"), limit)
    assert len(text) <= limit
    assert text.startswith("Traceback (most recent call last)")
    assert "ValueError: begin" in text
    assert text.endswith(" end")
    assert "characters left out" in text


def test_a_long_message_of_escapes_stays_bounded() -> None:
    assert len(text_of(ValueError("\x00" * 100_000))) <= 20_000


class Model(BaseModel):
    n: int


def refused() -> BaseException:
    try:
        Model.model_validate({"n": "hidden"})
    except ValidationError as exc:
        return exc
    raise AssertionError


def noted() -> BaseException:
    exc = ValueError("boom")
    exc.add_note("a note")
    return exc


def caused(cause: BaseException) -> BaseException:
    exc = ValueError("boom")
    exc.__cause__ = cause
    return exc


@pytest.mark.parametrize(
    ("exc", "summary"),
    [
        (ValueError("boom"), "ValueError: boom"),
        (ValueError(), "ValueError"),
        (ValueError("first\nsecond"), "ValueError: first"),
        (noted(), "ValueError: boom"),
        (caused(KeyError("k")), "ValueError: boom"),
        (refused(), "pydantic_core._pydantic_core.ValidationError: 1 validation error for Model"),
        (ExceptionGroup("many", [ValueError("a"), KeyError("b")]), "ExceptionGroup: many (2 sub-exceptions)"),
        (ValueError("x" * 1_000), "ValueError: " + "x" * 288),
    ],
)
def test_a_summary_is_type_and_first_line_of_the_message(exc: BaseException, summary: str) -> None:
    assert error_summary(text_of(exc)) == summary
    assert error_summary(text_of(exc, limit=1_000)).startswith(summary[:60])


@pytest.mark.parametrize("text", ["lost its worker once (last: w) at attempt 1 of 5", "ResultError: no", "", "\n"])
def test_the_summary_of_a_line_is_the_line(text: str) -> None:
    assert error_summary(text) == text.strip()


def test_an_exception_that_was_never_raised_has_a_summary_too_whatever_caused_it() -> None:
    timeout = TimeoutError("too long")
    timeout.__cause__ = KeyError("k")
    assert error_summary(error_text(timeout)) == "TimeoutError: too long"
    try:
        raise KeyError("k")
    except KeyError as exc:
        timeout.__cause__ = exc
    assert error_summary(error_text(timeout)) == "TimeoutError: too long"
