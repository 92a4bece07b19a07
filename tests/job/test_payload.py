"""What is deferred comes back equal and of the same types, whatever kind of model it is."""

import dataclasses
import enum
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NotRequired, TypedDict, TypeVar
from uuid import UUID, uuid4

import msgspec
import pydantic
import pytest
import typing_extensions
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    Json,
    PrivateAttr,
    SecretStr,
    computed_field,
    field_serializer,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel

from pqrun.errors import PayloadDecodeError, PayloadError
from pqrun.job.payload import PayloadField, is_model_class, payload_codec

T = TypeVar("T")


def there_and_back(value: T) -> T:
    """Store a value and read it as PostgreSQL's jsonb gives it back: keys in another order, numbers reprinted."""
    codec = payload_codec(type(value))
    stored = json.loads(codec.dump(value), parse_float=Decimal)
    return codec.load(msgspec.json.Encoder(decimal_format="number", order="sorted").encode(stored).decode())


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    name: str


class Rich(BaseModel):
    whole: int
    real: float
    amount: Decimal
    id: UUID
    at: datetime
    naive: datetime
    day: date
    clock: time
    span: timedelta
    colour: Colour
    level: Level
    tags: set[str]
    frozen: frozenset[int]
    pair: tuple[int, str]
    data: bytes
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    pets: list[Cat | Dog]
    by_id: dict[UUID, Cat]
    maybe: int | None = None


def rich(**changes: object) -> Rich:
    values: dict[str, object] = {
        "whole": 2**70,
        "real": 0.1,
        "amount": Decimal("0.10"),
        "id": uuid4(),
        "at": datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=timezone(timedelta(hours=2))),
        "naive": datetime(2026, 1, 1, 12, 0, 0, 1),  # noqa: DTZ001  # naive stays naive
        "day": date(2026, 2, 28),
        "clock": time(23, 59, 59, 999999),
        "span": timedelta(days=1, microseconds=1),
        "colour": Colour.BLUE,
        "level": Level.HIGH,
        "tags": {"a", "b"},
        "frozen": frozenset({1, 2}),
        "pair": (1, "x"),
        "data": b"abc",
        "pet": Dog(name="Rex"),
        "pets": [Cat(), Dog(name="Rex")],
        "by_id": {uuid4(): Cat(lives=3)},
    }
    return Rich.model_validate(values | changes)


@pytest.mark.parametrize("whole", [2**53 + 1, 2**63, 2**70, -1, 0])
@pytest.mark.parametrize("real", [0.1, 1e22, 1e-7, 1.7976931348623157e308, 5e-324, -0.0])
def test_numbers_come_back_exactly(whole: int, real: float) -> None:
    value = rich(whole=whole, real=real)
    back = there_and_back(value)
    assert (back.whole, back.real) == (whole, real)
    assert type(back.real) is float


@pytest.mark.parametrize("amount", ["0.10", "1E+400", "-0", "123456789012345678901234567890.123"])
def test_decimals_keep_their_digits(amount: str) -> None:
    assert str(there_and_back(rich(amount=Decimal(amount))).amount) == amount


def test_a_rich_model_comes_back_equal_and_of_the_same_types() -> None:
    value = rich()
    back = there_and_back(value)
    assert back == value
    for name, item in value.__dict__.items():
        assert type(getattr(back, name)) is type(item), name
    assert back.naive.tzinfo is None
    assert back.at.utcoffset() == timedelta(hours=2)


class Aliased(BaseModel):
    value_: str = Field(alias="value")


class Camel(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)
    user_id: int
    nested_model: Aliased


class WrittenOtherwise(BaseModel):
    value: int = Field(serialization_alias="outV")


class ReadByChoice(BaseModel):
    value: int = Field(validation_alias=AliasChoices("value", "v"))


def test_aliases_stand_in_the_json_and_read_back() -> None:
    codec = payload_codec(Camel)
    value = codec.build((), {"userId": 1, "nestedModel": {"value": "x"}})
    assert json.loads(codec.dump(value)) == {"userId": 1, "nestedModel": {"value": "x"}}
    assert there_and_back(value) == value == codec.build((), {"user_id": 1, "nested_model": Aliased(value="x")})
    assert [(item.name, item.wire_name) for item in codec.fields] == [
        ("user_id", "userId"),
        ("nested_model", "nestedModel"),
    ]


def test_names_stand_in_the_json_where_aliases_would_not_read_back() -> None:
    codec = payload_codec(WrittenOtherwise)
    assert codec.dump(WrittenOtherwise(value=1)) == '{"value":1}'
    assert [item.wire_name for item in codec.fields] == ["value"]
    assert there_and_back(ReadByChoice(value=2)) == ReadByChoice(v=2)  # type: ignore[call-arg]  # mypy knows no choices


class Extras(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)
    a: int


class Derived(Frozen):
    b: list[Frozen] = []


class Box(BaseModel, Generic[T]):
    item: T


class Private(BaseModel):
    a: int
    _made: datetime = PrivateAttr(default_factory=lambda: datetime.now(UTC))


class Computed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    side: int

    @computed_field  # type: ignore[prop-decorator]  # mypy's known limit with pydantic
    @property
    def area(self) -> int:
        return self.side**2


class Validated(BaseModel):
    name: str

    @field_validator("name")
    @classmethod
    def _stripped(cls, name: str) -> str:
        return name.strip()

    @model_validator(mode="after")
    def _not_empty(self) -> "Validated":
        if not self.name:
            raise ValueError("empty")
        return self


class Tree(BaseModel):
    children: list["Tree"] = []


class JsonInside(BaseModel):
    rules: Json[list[int]]


class Base64(BaseModel):
    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
    data: bytes


class NanAsText(BaseModel):
    model_config = ConfigDict(ser_json_inf_nan="strings")
    x: float


class ClearSecret(BaseModel):
    token: SecretStr

    @field_serializer("token", when_used="json")
    def _clear(self, token: SecretStr) -> str:
        return token.get_secret_value()


@pytest.mark.parametrize(
    "value",
    [
        Extras(a=1, more=[1, {"x": None}]),  # type: ignore[call-arg]  # mypy does not read extra
        Frozen(a=1),
        Derived(a=1, b=[Frozen(a=2)]),
        Box[int](item=3),
        Box[Frozen](item=Frozen(a=1)),
        Private(a=1),
        Computed(side=3),
        Validated(name="x"),
        Tree(children=[Tree(), Tree(children=[Tree()])]),
        JsonInside(rules="[1, 2]"),  # type: ignore[arg-type]  # what Json takes
        Base64(data=b"\xff\x00"),
        NanAsText(x=math.inf),
        ClearSecret(token=SecretStr("hunter2")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_feature_of_a_pydantic_model_comes_back_equal(value: BaseModel) -> None:
    back = there_and_back(value)
    assert type(back) is type(value)
    assert back.model_dump() == value.model_dump()


def test_nan_comes_back_where_the_model_writes_it_as_text() -> None:
    assert math.isnan(there_and_back(NanAsText(x=math.nan)).x)


@pydantic.dataclasses.dataclass(frozen=True)
class Point:
    x: int
    y: float = Field(default=0.5, alias="why")


@dataclass
class Inner:
    ids: list[UUID]


@dataclass(slots=True, kw_only=True)
class Outer:
    inner: Inner
    at: datetime
    tags: set[str] = field(default_factory=set)
    note: str | None = None


@dataclass(eq=False)
class WithoutEquality:
    a: int


class PostInit(msgspec.Struct):
    a: int

    def __post_init__(self) -> None:
        if self.a < 0:
            raise ValueError(f"negative {self.a}")


class Sized(msgspec.Struct, rename="camel", tag="sized", frozen=True):
    file_path: str
    max_width: int = 100


class Plain(msgspec.Struct, eq=False):
    whole: int
    real: float
    amount: Decimal
    id: UUID
    at: datetime
    day: date
    span: timedelta
    colour: Colour
    level: Level
    tags: set[str]
    pair: tuple[int, str]
    data: bytes
    size: Sized | None = None


@pytest.mark.parametrize(
    "value",
    [
        Point(1, why=2.0),
        Outer(inner=Inner([uuid4()]), at=datetime(2026, 1, 1, tzinfo=UTC), tags={"a"}),
        Sized("a/b"),
        PostInit(1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_dataclasses_and_structs_come_back_equal(value: object) -> None:
    back = there_and_back(value)
    assert back == value
    assert type(back) is type(value)


def test_a_rich_struct_comes_back_with_its_types() -> None:
    value = Plain(
        whole=2**70,
        real=1e22,
        amount=Decimal("0.10"),
        id=uuid4(),
        at=datetime(2026, 1, 1, 12, 0, 0, 5, tzinfo=timezone(timedelta(hours=2))),
        day=date(2026, 1, 1),
        span=timedelta(days=1, microseconds=1),
        colour=Colour.RED,
        level=Level.LOW,
        tags={"a"},
        pair=(1, "x"),
        data=b"\xff\x00",
        size=Sized("a"),
    )
    back = there_and_back(value)
    for name in value.__struct_fields__:
        assert getattr(back, name) == getattr(value, name)
        assert type(getattr(back, name)) is type(getattr(value, name))


@dataclass
class Crate(Generic[T]):
    item: T


class Bag(msgspec.Struct, Generic[T]):
    item: T


@pytest.mark.parametrize("model", [Crate[int], Bag[int], Box[int]])
def test_generic_models_check_their_arguments(model: Any) -> None:
    codec = payload_codec(model)
    assert codec.load(codec.dump(codec.build((), {"item": 1}))).item == 1
    with pytest.raises(PayloadError, match=r"\[int\]: item: "):
        codec.dump(codec.build((), {"item": "x"}))


def test_a_class_without_equality_is_compared_by_its_fields() -> None:
    assert there_and_back(WithoutEquality(3)).a == 3


class Mail(TypedDict):
    to: str
    copies: NotRequired[list[str]]


class NewMail(typing_extensions.TypedDict, total=False):
    to: typing_extensions.Required[str]
    when: datetime


class Parcel(TypedDict):
    mail: Mail
    size: Sized


class NewParcel(typing_extensions.TypedDict):
    sizes: list[Sized]


class Chain(typing_extensions.TypedDict):
    rest: NotRequired["Chain"]


class Configured(TypedDict):
    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]  # as pydantic documents it
    to: str


@pytest.mark.parametrize(
    ("model", "value"),
    [
        (Mail, {"to": "x"}),
        (Mail, {"to": "x", "copies": ["y"]}),
        (NewMail, {"to": "x", "when": datetime(2026, 1, 1, tzinfo=UTC)}),
        (Parcel, {"mail": {"to": "x"}, "size": Sized("a")}),
        (NewParcel, {"sizes": [Sized("a")]}),
        (Chain, {"rest": {"rest": {}}}),
        (Configured, {"to": "x"}),
    ],
)
def test_typed_dicts_of_both_modules_come_back_equal(model: type[dict[str, object]], value: dict[str, object]) -> None:
    codec = payload_codec(model)
    assert codec.is_instance(value)
    assert codec.load(codec.dump(value)) == value
    assert codec.build((), value) == codec.build((value,), {}) == value


def test_a_rebuilt_typed_dict_keeps_its_configuration() -> None:
    with pytest.raises(PayloadDecodeError, match="more: "):
        payload_codec(Configured).load('{"to": "x", "more": 1}')


def test_the_constructor_s_own_arguments_build_a_payload() -> None:
    assert payload_codec(Sized).build(("a",), {"max_width": 3}) == Sized("a", 3)
    assert payload_codec(Inner).build(([],), {}) == Inner([])
    assert payload_codec(Point).build((1,), {"why": 2.0}) == Point(1, 2.0)
    assert payload_codec(Validated).build((), {"name": " x "}) == Validated(name="x")


class OwnConstructor(BaseModel):
    number: int

    def __init__(self, text: str, /, *, base: int = 10) -> None:
        super().__init__(number=int(text, base))


def test_a_constructor_of_the_author_s_own_is_called_as_it_is() -> None:
    value = payload_codec(OwnConstructor).build(("ff",), {"base": 16})
    assert value.number == 255


def test_fields_tell_name_key_annotation_and_default() -> None:
    assert payload_codec(Sized).fields == (
        PayloadField(name="file_path", wire_name="filePath", annotation=str, required=True),
        PayloadField(name="max_width", wire_name="maxWidth", annotation=int, required=False),
    )
    assert [(item.name, item.required) for item in payload_codec(Mail).fields] == [("to", True), ("copies", False)]
    assert [(item.name, item.wire_name, item.required) for item in payload_codec(Point).fields] == [
        ("x", "x", True),
        ("y", "why", False),
    ]
    assert payload_codec(Box[int]).fields[0].annotation is int


def test_readers_leave_out_fields_that_they_do_not_know() -> None:
    assert payload_codec(Frozen).load('{"a": 1, "flag": true}') == Frozen(a=1)
    assert payload_codec(Sized).load('{"type": "sized", "filePath": "x", "flag": 1}') == Sized("x")
    assert payload_codec(Inner).load('{"ids": [], "flag": 1}') == Inner([])
    assert payload_codec(Mail).load('{"to": "x", "flag": 1}') == {"to": "x"}


def test_defaults_are_written_too() -> None:
    assert json.loads(payload_codec(Sized).dump(Sized("x"))) == {"type": "sized", "filePath": "x", "maxWidth": 100}
    assert json.loads(payload_codec(Derived).dump(Derived(a=1))) == {"a": 1, "b": []}


def test_text_that_looks_like_an_escape_is_plain_text() -> None:
    class Text(BaseModel):
        text: str

    for text in ("\\u0000", "NaN and Infinity", "\\ud83d", "\x01\x1f", "\U0001f600"):
        assert there_and_back(Text(text=text)).text == text


@given(st.builds(Frozen, a=st.integers()))
def test_any_whole_number_comes_back_or_is_too_long_for_python(value: Frozen) -> None:
    assert there_and_back(value) == value


class Loose(BaseModel):
    x: float
    text: str
    any: Any = None


json_like = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab.\x00", max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.floats(), st.text(st.characters(codec="utf-8")), json_like | st.floats() | st.tuples(st.just(1)))
def test_a_payload_is_stored_without_loss_or_refused(x: float, text: str, anything: object) -> None:
    codec = payload_codec(Loose)
    value = Loose(x=x, text=text, any=anything)
    stored: str | None = None
    errors: tuple[tuple[str, str], ...] = ()
    try:
        stored = codec.dump(value)
    except PayloadError as refusal:
        errors = refusal.errors
    assert (stored is None) is bool(errors)
    if stored is not None:
        assert "\x00" not in json.dumps(json.loads(stored), ensure_ascii=False).replace("\\u0000", "\x00")
        assert codec.load(stored) == value


@pytest.mark.parametrize("annotation", [Rich, Box[int], Point, Outer, Sized, Mail, NewMail, Annotated[Rich, "doc"]])
def test_model_classes_are_known(annotation: object) -> None:
    assert is_model_class(annotation)


@pytest.mark.parametrize(
    "annotation",
    [int, str, dict, dict[str, int], Mapping[str, object], list[Rich], Rich | None, Rich | Point, Any, None, Colour],
)
def test_everything_else_is_no_model_class(annotation: object) -> None:
    assert not is_model_class(annotation)


def test_an_instance_is_told_from_an_argument() -> None:
    codec = payload_codec(Frozen)
    assert codec.is_instance(Frozen(a=1))
    assert codec.is_instance(Derived(a=1))
    assert not codec.is_instance({"a": 1})
    assert payload_codec(Box[int]).is_instance(Box[int](item=1))
    assert dataclasses.is_dataclass(payload_codec(Inner).model)
