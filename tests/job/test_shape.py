"""The shape of a payload: the same for every way to declare the same fields, and what has changed in one."""

import dataclasses
import enum
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal, NotRequired, cast

import msgspec
import pytest
from pydantic import BaseModel, Field, field_validator
from pydantic.dataclasses import dataclass as pydantic_dataclass
from typing_extensions import TypedDict

from pqrun import App, FieldChange, JobContext
from pqrun.job.payload import payload_codec
from pqrun.job.shape import Shape, shape_changes


def shape(model: object) -> Shape:
    found = payload_codec(cast("type[Any]", model)).shape()
    assert found is not None
    return found


def shown(model: object) -> dict[str, str]:
    """Optional fields with a question mark."""
    return {path: field.type + ("" if field.required else "?") for path, field in shape(model).items()}


class Model(BaseModel):
    path: str
    width: int = 1
    when: datetime | None = None
    tags: list[str] = []


@pydantic_dataclass
class PydanticDataclass:
    path: str
    width: int = 1
    when: datetime | None = None
    tags: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Dataclass:
    path: str
    width: int = 1
    when: datetime | None = None
    tags: list[str] = dataclasses.field(default_factory=list)


class Dict(TypedDict):
    path: str
    width: NotRequired[int]
    when: NotRequired[datetime | None]
    tags: NotRequired[list[str]]


@pytest.mark.parametrize("model", [Model, PydanticDataclass, Dataclass, Dict])
def test_the_same_fields_have_the_same_shape_however_they_are_declared(model: object) -> None:
    assert shown(model) == {
        "path": "string",
        "width": "integer?",
        "when": "string (date-time) | null?",
        "tags": "array?",
        "tags[]": "string",
    }


def test_parameters_have_a_shape_too() -> None:
    jobs = App(dsn="postgresql://localhost/never_opened")

    @jobs.task
    async def add(ctx: JobContext, a: int, b: Model, c: float = 0.0) -> None: ...

    made = add.handler.shape
    assert made is not None
    found = made() or {}
    assert {path: field.required for path, field in found.items() if "." not in path} == {
        "a": True,
        "b": True,
        "c": False,
    }
    assert found["b.path"].type == "string"


class Row(msgspec.Struct):
    path: str
    inner: "Row | None" = None
    data: bytes = b""
    renamed: int = msgspec.field(default=1, name="other")


def test_a_struct_has_a_shape_also_where_it_is_a_parameter() -> None:
    assert shown(Row) == {
        "path": "string",
        "inner": "object | null?",
        "data": "string (base64)?",
        "other": "integer?",
    }
    jobs = App(dsn="postgresql://localhost/never_opened")

    @jobs.task
    async def move(ctx: JobContext, rows: list[Row], row: Row, n: int) -> None: ...

    found = (move.handler.shape or dict)() or {}
    assert {"rows[].path", "rows[].data", "row.path", "row.other", "n"} <= found.keys()


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Card(BaseModel):
    kind: Literal["card"]
    number: str


class Cash(BaseModel):
    kind: Literal["cash"]


class Node(BaseModel):
    value: int
    children: list["Node"] = []


class Opaque:
    pass


class Rich(BaseModel, arbitrary_types_allowed=True):
    color: Color
    pay: Card | Cash = Field(discriminator="kind")
    node: Node
    by_name: dict[str, int]
    pair: tuple[int, str]
    price: Decimal
    aliased: int = Field(alias="Aliased")
    anything: Any = None
    opaque: Opaque | None = None


def test_nested_models_unions_enums_and_containers_are_read_through() -> None:
    assert shown(Rich) == {
        "color": '"blue" | "red"',
        "pay": "Card | Cash",
        "pay<Card>.kind": '"card"',
        "pay<Card>.number": "string",
        "pay<Cash>.kind": '"cash"',
        "node": "object",
        "node.value": "integer",
        "node.children": "array?",
        "node.children[]": "object",  # it refers to itself: once is enough
        "by_name": "object",
        "by_name{}": "integer",
        "pair": "array",
        "pair[0]": "integer",
        "pair[1]": "string",
        "price": "number | string",
        "Aliased": "integer",
        "anything": "any?",
        "opaque": "any | null?",
    }


def test_titles_limits_defaults_and_validators_are_no_part_of_a_shape() -> None:
    class Plain(BaseModel):
        n: int = 1

    class Adorned(BaseModel):
        """Documented."""

        n: int = Field(default=2, gt=0, lt=9, title="N", description="a number", examples=[3])

        @field_validator("n")
        @classmethod
        def check(cls, value: int) -> int:
            return value

    assert shape(Plain) == shape(Adorned)


def test_a_model_whose_schema_cannot_be_had_has_no_shape() -> None:
    class Stubborn(BaseModel):
        n: int

        @classmethod
        def __get_pydantic_json_schema__(cls, core_schema: Any, handler: Any) -> Any:
            raise RuntimeError

    assert payload_codec(Stubborn).shape() is None


class Address(BaseModel):
    street: str


class Before(BaseModel):
    same: int
    gone: str
    typed: int
    stricter: int = 1
    laxer: int
    address: Address
    nested_gone: Address
    pay: Card


class NewAddress(BaseModel):
    street: str
    city: str


class After(BaseModel):
    same: int
    typed: str
    stricter: int
    laxer: int = 1
    added: int = 1
    demanded: int
    address: NewAddress
    nested_new: Address | None = None
    pay: Card | Cash


def test_each_kind_of_change_is_told_once_by_its_path() -> None:
    changes = {change.field: change for change in shape_changes(shape(Before), shape(After))}
    assert {name: (change.change, change.is_additive) for name, change in changes.items() if "pay" not in name} == {
        "gone": ("removed", False),
        "typed": ("type", False),
        "stricter": ("required", False),
        "laxer": ("optional", True),
        "added": ("added", True),
        "demanded": ("added", False),
        "address.city": ("added", False),
        "nested_gone": ("removed", False),  # not what is below it
        "nested_new": ("added", True),
    }
    assert changes["typed"] == FieldChange(
        field="typed", change="type", before="integer", after="string", is_additive=False
    )
    assert (changes["gone"].before, changes["gone"].after) == ("string", None)
    assert (changes["added"].before, changes["added"].after) == (None, "integer")
    assert not changes["pay"].is_additive


@pytest.mark.parametrize("model", [Model, Rich, Row, Before])
def test_a_shape_is_the_same_after_it_was_stored(model: object) -> None:
    stored = msgspec.json.decode(msgspec.json.encode(shape(model)), type=Shape)
    assert shape_changes(stored, shape(model)) == ()
