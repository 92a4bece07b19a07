"""A result is stored whole and as declared, or refused by the name of what is wrong."""

import inspect
import json
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Literal, NoReturn, Optional, TypedDict, cast

import msgspec
import pytest
import typing_extensions
from pydantic import BaseModel, ConfigDict, Field, RootModel, SecretStr

from pqrun.errors import DeclarationError, ResultError
from pqrun.job.record import JsonObject
from pqrun.job.result import result_codec


class Sent(BaseModel):
    message_id: str
    count: int = 0


class Skipped(BaseModel):
    reason: str


@dataclass
class Pong:
    host: str
    at: datetime | None = None


class Size(msgspec.Struct):
    width: int


class Tagged(msgspec.Struct, tag=True):
    a: int


class AlsoTagged(msgspec.Struct, tag=True):
    a: int


class Total(TypedDict):
    total: int


class NewTotal(typing_extensions.TypedDict):
    total: int


class Root(RootModel[list[int]]):
    pass


class Rows(msgspec.Struct, array_like=True):
    a: int


class Word(Enum):
    A = "a"


class Secret(BaseModel):
    token: SecretStr


class Camel(BaseModel):
    model_config = ConfigDict(alias_generator=lambda name: name.upper())
    a: int


class WrittenOtherwise(BaseModel):
    b: int = Field(serialization_alias="outB")


class OneWay(BaseModel):
    b: int = Field(validation_alias="inB", serialization_alias="outB")


@pytest.mark.parametrize(
    ("annotation", "value", "stored"),
    [
        (None, None, None),
        (type(None), None, None),
        (NoReturn, None, None),
        (dict[str, object], {}, {}),
        (dict[str, int], {"a": 1}, {"a": 1}),
        (dict, {"a": [1]}, {"a": [1]}),
        (dict[str, Any] | None, None, None),
        (Mapping[str, Any], {"a": 1}, {"a": 1}),
        (JsonObject, {"a": {"b": [None, 1.5]}}, {"a": {"b": [None, 1.5]}}),
        (dict[Literal["a", "b"], int], {"a": 1}, {"a": 1}),
        (dict[str, Size], {"a": Size(1)}, {"a": {"width": 1}}),
        (Sent, Sent(message_id="m"), {"message_id": "m", "count": 0}),
        (Optional[Sent], None, None),  # noqa: UP045  # as older code writes it
        (Sent | Skipped | None, Skipped(reason="r"), {"reason": "r"}),
        (Sent | Size, Size(3), {"width": 3}),
        (Pong, Pong("h", datetime(2026, 1, 1, tzinfo=UTC)), {"host": "h", "at": "2026-01-01T00:00:00Z"}),
        (Size, Size(1), {"width": 1}),
        (Size | None, Size(1), {"width": 1}),
        (Tagged | AlsoTagged, AlsoTagged(1), {"type": "AlsoTagged", "a": 1}),
        (Size | Tagged, Tagged(2), {"type": "Tagged", "a": 2}),
        (Total, {"total": 1}, {"total": 1}),
        (NewTotal, {"total": 1}, {"total": 1}),
        (Total | None, {"total": 1}, {"total": 1}),
        (Camel, Camel(A=1), {"A": 1}),  # type: ignore[call-arg]  # mypy does not read generated aliases
        (WrittenOtherwise, WrittenOtherwise(b=1), {"b": 1}),
    ],
)
def test_a_result_is_stored_as_an_object_and_comes_back(annotation: object, value: object, stored: object) -> None:
    codec = result_codec(annotation, where="task")
    text = codec.dump(value)
    assert (None if text is None else json.loads(text)) == stored
    assert codec.load(text) == value


@pytest.mark.parametrize(
    ("annotation", "value", "told"),
    [
        (Sent, 5, "int"),
        (Sent, [1], "list"),
        (Sent, "hunter2", "str"),
        (Sent, None, "None"),
        (None, 5, "int"),
        (None, {}, "dict"),
        (None, Sent(message_id="hunter2"), "Sent"),
        (dict[str, Any], 5, "int"),
        (Sent, Sent.model_construct(count=1), "message_id: Field required"),
        (Sent, {"count": 1}, "message_id: Field required"),
        (Sent, {"message_id": "hunter2"}, "Sent"),
        (Sent, Skipped(reason="hunter2"), "message_id"),
        (Sent | None, Sent.model_construct(message_id="m", count="hunter2"), "count"),
        (Pong, Pong(cast(str, 5)), "host"),
        (Size, Size(cast(int, "hunter2")), "width"),
        (Size, Pong("hunter2"), "width"),
        (Total, {"total": "hunter2"}, "total"),
        (Total, {}, "total"),
        (Total, {"total": 1, "more": "hunter2"}, "more"),
        (dict[str, int], {"a": "hunter2"}, "a"),
        (dict[str, Any], {"a": float("nan")}, "a: NaN"),
        (dict[str, Any], {"a": "hunter2\x00"}, "a"),
        (dict[str, Any], {"a": {"b": datetime(2026, 1, 1, tzinfo=UTC)}}, "a.b"),
        (dict[str, Any], {1: 2}, "1"),
        (dict, {1: 2}, "1"),
        (dict, {"a": object()}, "object"),
        (Secret, Secret(token=SecretStr("hunter2")), "token: a secret"),
    ],
)
def test_a_result_that_cannot_be_stored_as_declared_is_refused(annotation: object, value: object, told: str) -> None:
    with pytest.raises(ResultError) as caught:
        result_codec(annotation, where="task").dump(value)
    assert told in str(caught.value)
    assert "task" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__context__ is None


@pytest.mark.parametrize("annotation", [None, Sent, dict[str, Any]])
def test_a_coroutine_that_was_never_awaited_is_closed_and_refused(annotation: object) -> None:
    async def forgotten() -> None: ...

    coroutine: Coroutine[Any, Any, None] = forgotten()
    with pytest.raises(ResultError, match="never awaited"):
        result_codec(annotation, where="task").dump(coroutine)
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED


@pytest.mark.parametrize(
    ("annotation", "text"),
    [(Sent, None), (None, '{"a": 1}'), (Sent, '{"count": 1}'), (Size, "[]"), (dict[str, int], '{"a": "hunter2"}')],
)
def test_a_stored_result_that_is_not_as_declared_is_refused(annotation: object, text: str | None) -> None:
    with pytest.raises(ResultError) as caught:
        result_codec(annotation, where="task").load(text)
    assert "hunter2" not in str(caught.value)


def test_readers_leave_out_what_they_do_not_know() -> None:
    assert result_codec(Sent, where="task").load('{"message_id": "m", "new": 1}') == Sent(message_id="m")


@pytest.mark.parametrize(
    ("annotation", "told"),
    [
        (int, "int"),
        (str, "str"),
        (list[Sent], "list"),
        (tuple, "tuple"),
        (Any, "Any"),
        (object, "object"),
        (Sent | int, "int"),
        (dict[int, str], "text"),
        (dict[Word, str], "text"),
        (Root, "RootModel"),
        (Rows, "array_like"),
        (OneWay, "b"),
        (Camel | WrittenOtherwise, "alias"),
        (inspect.Signature.empty, "-> None"),
    ],
)
def test_a_type_that_is_no_object_is_refused_when_it_is_declared(annotation: object, told: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        result_codec(annotation, where="task")
    assert told in str(caught.value)
    assert "task" in str(caught.value)


def test_the_codec_tells_its_annotation() -> None:
    assert result_codec(Sent | None, where="task").annotation == Sent | None
