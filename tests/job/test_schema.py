"""JSON Schemas of payloads and results, of every kind of model, and of Structs inside of other types."""

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from pqrun import App, JobContext
from pqrun.errors import DeclarationError

DIALECT = "https://json-schema.org/draft/2020-12/schema"


class Address(BaseModel):
    city: str


class Order(BaseModel):
    number: int = Field(gt=0, alias="no")
    to: Address | None = None


@dataclass
class Card:
    number: str
    month: int = 1


CARD = Card("x")


class Line(msgspec.Struct):
    sku: str
    count: Annotated[int, msgspec.Meta(ge=1)] = 1


class Basket(msgspec.Struct):
    lines: list[Line]


class Options(TypedDict):
    loud: bool


class Twig(msgspec.Struct):
    inner: "list[Twig]" = []


class Elsewhere:
    class Line(msgspec.Struct):
        other: bool


jobs = App()


@jobs.task(payload=Order)
async def of_model(ctx: JobContext, payload: Order) -> Order:
    raise NotImplementedError


@jobs.task
async def of_dataclass(ctx: JobContext, card: Card) -> Card | None:
    raise NotImplementedError


@jobs.task(payload=Basket)
async def of_struct(ctx: JobContext, payload: Basket) -> Basket:
    raise NotImplementedError


@jobs.task(payload=Options)
async def of_typed_dict(ctx: JobContext, payload: Options) -> dict[str, int]:
    raise NotImplementedError


@jobs.task
async def of_parameters(
    ctx: JobContext, basket: Basket, line: Elsewhere.Line, card: Card = CARD, n: int = 4, odd: Any = object
) -> None:
    raise NotImplementedError


@jobs.task
async def of_twig(ctx: JobContext, twig: Twig) -> None:
    raise NotImplementedError


@jobs.task
async def of_nothing(ctx: JobContext) -> None:
    raise NotImplementedError


def test_a_model_by_its_stored_names_with_its_limits() -> None:
    schema = of_model.payload_schema()
    assert schema["$schema"] == DIALECT
    assert schema["properties"] == {
        "no": {"exclusiveMinimum": 0, "title": "No", "type": "integer"},
        "to": {"anyOf": [{"$ref": "#/$defs/Address"}, {"type": "null"}], "default": None},
    }
    assert schema["required"] == ["no"]
    assert isinstance(schema["$defs"], dict)
    assert set(schema["$defs"]) == {"Address"}
    assert of_model.result_schema()["properties"] == schema["properties"]


def test_a_dataclass_and_a_result_that_may_be_none() -> None:
    assert of_dataclass.payload_schema()["required"] == ["number"]
    result = of_dataclass.result_schema()
    assert result["$schema"] == DIALECT
    assert isinstance(result["anyOf"], list)
    shape, none = result["anyOf"]
    assert none == {"type": "null"}
    assert isinstance(shape, dict)
    assert shape["title"] == "Card"


def test_a_struct_has_its_properties_at_the_top() -> None:
    schema = of_struct.payload_schema()
    assert schema["properties"] == {"lines": {"type": "array", "items": {"$ref": "#/$defs/Line"}}}
    assert isinstance(schema["$defs"], dict)
    assert set(schema["$defs"]) == {"Line"}
    line = schema["$defs"]["Line"]
    assert isinstance(line, dict)
    assert line["properties"] == {"sku": {"type": "string"}, "count": {"type": "integer", "minimum": 1, "default": 1}}
    assert of_struct.result_schema() == schema


def test_a_typed_dict_and_a_mapping() -> None:
    assert of_typed_dict.payload_schema()["required"] == ["loud"]
    assert of_typed_dict.result_schema()["additionalProperties"] == {"type": "integer"}


def test_parameters_have_their_defaults_and_structs_of_one_name_stay_apart() -> None:
    schema = of_parameters.payload_schema()
    properties, definitions = schema["properties"], schema["$defs"]
    assert isinstance(properties, dict)
    assert isinstance(definitions, dict)
    assert properties["n"] == {"title": "N", "type": "integer", "default": 4}
    assert isinstance(properties["card"], dict)
    assert properties["card"]["default"] == {"number": "x", "month": 1}
    assert isinstance(properties["odd"], dict)
    assert "default" not in properties["odd"]  # JSON cannot say it
    assert schema["required"] == ["basket", "line"]
    lines = [definition for name, definition in definitions.items() if name.startswith("Line")]
    assert sorted(list(line["properties"]) for line in lines if isinstance(line, dict)) == [["other"], ["sku", "count"]]  # type: ignore[arg-type]  # properties are a mapping
    assert not _dangling(schema)


def test_a_struct_that_refers_to_itself() -> None:
    schema = of_twig.payload_schema()
    assert schema["properties"] == {"inner": {"type": "array", "items": {"$ref": "#/$defs/Twig"}, "default": []}}
    assert not _dangling(schema)


def test_nothing_at_all() -> None:
    assert of_nothing.payload_schema()["properties"] == {}
    assert of_nothing.result_schema() == {"type": "null"}


def test_a_model_whose_own_code_gives_none_is_named() -> None:
    class Odd(BaseModel):
        n: int

        @classmethod
        def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> Any:
            raise RuntimeError("secret")

    @jobs.task(payload=Odd)
    async def of_odd(ctx: JobContext, payload: Odd) -> None:
        raise NotImplementedError

    with pytest.raises(DeclarationError, match=r"of_odd: its payload gives no JSON Schema \(RuntimeError\)"):
        of_odd.payload_schema()


def _dangling(schema: dict[str, Any]) -> list[str]:
    found: list[str] = []
    pending: list[Any] = [schema]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            if "$ref" in part and part["$ref"].removeprefix("#/$defs/") not in schema.get("$defs", {}):
                found.append(part["$ref"])
            pending += part.values()
        elif isinstance(part, list):
            pending += part
    return found
