"""What cannot be a payload is refused with the field's name and without its value."""

import enum
import json
import math
import traceback
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime
from typing import Annotated, Any, Literal, TypedDict, cast
from uuid import UUID, uuid4

import msgspec
import pydantic
import pytest
from pydantic import (
    AliasPath,
    BaseModel,
    ConfigDict,
    Field,
    RootModel,
    SecretBytes,
    SecretStr,
    field_serializer,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from pqrun.errors import DeclarationError, PayloadDecodeError, PayloadError
from pqrun.job.payload import payload_codec

SECRET = "hunter2"


def refusal_of(act: Callable[[], object], error: type[Exception] = PayloadError) -> str:
    """Return the message, having checked that the secret is nowhere in the exception, its chain or its traceback."""
    with pytest.raises(error) as caught:
        act()
    told = "".join(traceback.format_exception(caught.value)[-1:])
    assert SECRET not in told
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert SECRET not in repr(getattr(caught.value, "errors", ""))
    return str(caught.value)


class Welcome(BaseModel):
    user_id: int
    locale: str = "en"


class Ignoring(Welcome):
    model_config = ConfigDict(extra="ignore")


class Forbidding(Welcome):
    model_config = ConfigDict(extra="forbid")


@pydantic.dataclasses.dataclass
class Point:
    x: int
    y: int = 0


@dataclass
class Ping:
    host: str
    port: int = 80


class Resize(msgspec.Struct):
    path: str
    width: int = 100


class Mail(TypedDict):
    to: str


class Order(BaseModel):
    owner: Welcome
    items: list[Point] = []
    notes: dict[str, Welcome] = {}


# --- names


@pytest.mark.parametrize(
    ("model", "good"),
    [
        (Welcome, {"user_id": 1}),
        (Forbidding, {"user_id": 1}),
        (Point, {"x": 1}),
        (Ping, {"host": "h"}),
        (Resize, {"path": "p"}),
    ],
)
def test_a_misspelt_keyword_is_named(model: type[object], good: dict[str, object]) -> None:
    message = refusal_of(lambda: payload_codec(model).build((), {**good, "localee": SECRET}))
    assert "localee" in message


def test_the_right_name_is_suggested() -> None:
    assert "did you mean locale?" in refusal_of(
        lambda: payload_codec(Welcome).build((), {"user_id": 1, "localee": "x"})
    )


def test_a_misspelt_key_of_a_typed_dict_is_named() -> None:
    codec = payload_codec(Mail)
    assert "frm" in refusal_of(lambda: codec.dump(cast(Mail, {"to": "x", "frm": SECRET})))


def test_only_a_model_that_says_so_itself_drops_unknown_keywords() -> None:
    assert payload_codec(Ignoring).build((), {"user_id": 1, "localee": "de"}).user_id == 1


@pytest.mark.parametrize(
    ("kwargs", "path"),
    [
        ({"owner": {"user_id": 1, "localee": "x"}}, "owner.localee"),
        ({"owner": {"user_id": 1}, "items": [{"x": 1}, {"x": 1, "z": 2}]}, "items[1].z"),
        ({"owner": {"user_id": 1}, "notes": {"a": {"user_id": 1, "flag": 1}}}, "notes.a.flag"),
    ],
)
def test_a_misspelt_key_inside_is_named_with_its_path(kwargs: dict[str, object], path: str) -> None:
    assert f"{path}: unknown field" in refusal_of(lambda: payload_codec(Order).build((), kwargs))


def test_known_keys_inside_pass() -> None:
    built = payload_codec(Order).build(
        (), {"owner": {"user_id": 1}, "items": [{"x": 1}], "notes": {"a": {"user_id": 2}}}
    )
    assert built.items == [Point(1)]


@pytest.mark.parametrize(
    ("model", "args", "name"),
    [(Welcome, (), "user_id"), (Point, (), "x"), (Ping, (), "host"), (Resize, (), "path")],
)
def test_a_missing_field_is_named(model: type[object], args: tuple[object, ...], name: str) -> None:
    assert name in refusal_of(lambda: payload_codec(model).build(args, {}))


def test_a_positional_argument_for_a_pydantic_model_is_refused() -> None:
    assert "positional" in refusal_of(lambda: payload_codec(Welcome).build((SECRET,), {}))


# --- values


@pytest.mark.parametrize(
    ("model", "kwargs", "name"),
    [
        (Welcome, {"user_id": SECRET}, "user_id"),
        (Point, {"x": SECRET}, "x"),
        (Ping, {"host": "h", "port": SECRET}, "port"),
        (Ping, {"host": 5}, "host"),
        (Resize, {"path": "p", "width": SECRET}, "width"),
        (Mail, {"to": 5}, "to"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_by_name(
    model: type[object], kwargs: dict[str, object], name: str
) -> None:
    codec = payload_codec(model)
    assert f"{name}: " in refusal_of(lambda: codec.dump(codec.build((), kwargs)))


def test_a_value_that_would_change_its_type_is_refused() -> None:
    codec = payload_codec(Ping)
    assert "port: str comes back from storage as int" in refusal_of(lambda: codec.dump(Ping("h", cast(int, "80"))))


def test_an_instance_is_never_trusted() -> None:
    codec = payload_codec(Welcome)
    mutated = Welcome(user_id=1)
    mutated.user_id = cast(int, SECRET)
    assert "user_id" in refusal_of(lambda: codec.dump(mutated))
    assert "user_id: Field required" in refusal_of(lambda: codec.dump(Welcome.model_construct()))
    assert refusal_of(lambda: codec.dump(cast(Welcome, SECRET)))
    assert refusal_of(lambda: codec.dump(cast(Welcome, None)))


class Grown(Welcome):
    extra_field: str = "x"


def test_an_instance_of_a_subclass_would_lose_its_fields() -> None:
    assert "Grown comes back from storage as Welcome" in refusal_of(
        lambda: payload_codec(Welcome).dump(Grown(user_id=1))
    )


class Loose(BaseModel):
    x: float = 0.0
    maybe: float | None = None
    text: str = ""
    any: Any = None
    k: dict[str, Any] = {}


class LooseStruct(msgspec.Struct):
    x: float = 0.0
    maybe: float | None = None
    text: str = ""
    any: Any = None
    k: dict[str, Any] = {}


@dataclass
class LooseDataclass:
    x: float = 0.0
    maybe: float | None = None
    text: str = ""
    any: Any = None
    k: dict[str, Any] = field(default_factory=dict)


@pytest.mark.parametrize("model", [Loose, LooseStruct, LooseDataclass])
@pytest.mark.parametrize(
    ("kwargs", "path"),
    [
        ({"x": math.nan}, "x"),
        ({"x": math.inf}, "x"),
        ({"maybe": math.nan}, "maybe"),
        ({"any": {"y": math.nan}}, "any.y"),
        ({"any": [-math.inf]}, "any[0]"),
        ({"text": f"{SECRET}\x00"}, "text"),
        ({"k": {"n\x00": [1]}}, "k.n\\x00"),
        ({"any": {"t": [f"{SECRET}\ud83d"]}}, "any.t[0]"),
        ({"any": datetime(2026, 1, 1, tzinfo=UTC)}, "any"),
        ({"any": {"id": uuid4()}}, "any.id"),
        ({"any": (1, 2)}, "any"),
        ({"any": {1: "x"}}, "any"),
    ],
)
def test_what_json_in_postgresql_cannot_hold_is_refused_with_its_path(
    model: type[object], kwargs: dict[str, object], path: str
) -> None:
    codec = payload_codec(model)
    assert f"{path}" in refusal_of(lambda: codec.dump(codec.build((), kwargs)))


class NanAsConstant(BaseModel):
    model_config = ConfigDict(ser_json_inf_nan="constants")
    x: float


def test_nan_written_as_a_constant_is_refused() -> None:
    for x in (math.nan, math.inf):
        assert "x: NaN and infinity" in refusal_of(lambda x=x: payload_codec(NanAsConstant).dump(NanAsConstant(x=x)))  # type: ignore[misc]  # bound at once


class Token(BaseModel):
    token: SecretStr
    key: SecretBytes = SecretBytes(b"")


def test_secrets_are_not_stored() -> None:
    message = refusal_of(lambda: payload_codec(Token).dump(Token(token=SecretStr(SECRET))))
    assert "token: a secret is not stored" in message


class Lossy(BaseModel):
    at: datetime
    shout: str = ""

    @field_serializer("at")
    def _day_only(self, at: datetime) -> str:
        return at.date().isoformat()


class NotIdempotent(BaseModel):
    name: str

    @field_validator("name")
    @classmethod
    def _prefixed(cls, name: str) -> str:
        return f"x-{name}"


class Excluded(BaseModel):
    a: int
    b: int = Field(default=0, exclude=True)


class Bytes(BaseModel):
    data: bytes


@dataclass
class Made:
    a: int
    id: UUID = field(init=False, default_factory=uuid4)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (Lossy(at=datetime(2026, 1, 1, 12, tzinfo=UTC)), "at: "),
        (NotIdempotent(name="a"), "name: "),
        (Excluded(a=1, b=2), "b: "),
        (Bytes(data=b"\xff\x00"), "base64"),
        (Made(a=1), "id: "),
    ],
)
def test_a_model_that_does_not_survive_storage_is_refused_by_field(value: object, path: str) -> None:
    assert path in refusal_of(lambda: payload_codec(type(value)).dump(value))


def test_an_excluded_field_with_its_default_is_no_loss() -> None:
    assert payload_codec(Excluded).load(payload_codec(Excluded).dump(Excluded(a=1))) == Excluded(a=1)


def test_a_value_that_holds_itself_is_refused() -> None:
    loop: list[object] = []
    loop.append(loop)
    for model in (Loose, LooseStruct, LooseDataclass):
        assert refusal_of(lambda model=model: payload_codec(model).dump(model(any=loop)))  # type: ignore[misc]  # bound at once


class Tree(BaseModel):
    children: list["Tree"] = []


def test_nesting_ends_where_readers_end() -> None:
    tree = Tree()
    for _ in range(120):
        tree = Tree(children=[tree])
    assert "nested too deeply" in refusal_of(lambda: payload_codec(Tree).dump(tree))


class HostileEquality(BaseModel):
    a: int

    def __eq__(self, other: object) -> bool:
        raise RuntimeError(SECRET)


def test_a_comparison_that_breaks_is_told_by_type() -> None:
    assert "RuntimeError" in refusal_of(lambda: payload_codec(HostileEquality).dump(HostileEquality(a=1)))


def test_a_payload_has_a_size_limit_that_the_message_names() -> None:
    assert "characters of JSON" in refusal_of(lambda: payload_codec(Loose).dump(Loose(text="a" * 34_000_000)))


# --- reading


class Kind(enum.Enum):
    A = "a"


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]


def _leaking(value: object) -> object:
    raise PydanticCustomError("leak", f"got {value}")


class Picky(BaseModel):
    whole: int = 0
    id: UUID | None = None
    day: date | None = None
    kind: Kind | None = None
    pet: Annotated[Cat | Dog | None, Field(discriminator="kind")] = None
    pattern: str = Field(default="a", pattern="^a$")
    limited: int = Field(default=1, le=5)
    own: str = ""
    asserting: str = ""
    raising: str = ""
    leaking: Annotated[object, pydantic.AfterValidator(_leaking)] = None

    @field_validator("own")
    @classmethod
    def _own(cls, value: str) -> str:
        raise ValueError(f"cannot take {value}")

    @field_validator("asserting")
    @classmethod
    def _asserting(cls, value: str) -> str:
        assert not value, f"cannot take {value}"
        return value

    @field_validator("raising")
    @classmethod
    def _raising(cls, value: str) -> str:
        raise KeyError(value)


@pytest.mark.parametrize("name", [name for name in Picky.model_fields if name not in {"pet", "raising"}])
def test_an_undecodable_field_is_named_without_its_value(name: str) -> None:
    text = json.dumps({name: SECRET})
    assert f"{name}: " in refusal_of(lambda: payload_codec(Picky).load(text), PayloadDecodeError)
    assert f"{name}: " in refusal_of(lambda: payload_codec(Picky).build((), {name: SECRET}))


def test_an_unknown_tag_is_not_quoted() -> None:
    text = json.dumps({"pet": {"kind": SECRET}})
    assert "pet: " in refusal_of(lambda: payload_codec(Picky).load(text), PayloadDecodeError)


def test_a_validator_that_breaks_is_told_by_type_and_place() -> None:
    for act, error in (
        (lambda: payload_codec(Picky).load(json.dumps({"raising": SECRET})), PayloadDecodeError),
        (lambda: payload_codec(Picky).build((), {"raising": SECRET}), PayloadError),
    ):
        message = refusal_of(act, error)
        assert "KeyError" in message
        assert "test_payload_refusals.py:" in message


class StrictStruct(msgspec.Struct, forbid_unknown_fields=True):
    whole: int = 0
    kind: Kind | None = None
    day: date | None = None
    pattern: Annotated[str, msgspec.Meta(pattern="^a$")] = "a"
    numbers: dict[str, int] = {}

    def __post_init__(self) -> None:
        if self.whole > 5:
            raise ValueError(f"{SECRET} is too big")
        if self.whole > 4:
            raise KeyError(SECRET)


@pytest.mark.parametrize(
    ("stored", "told"),
    [
        ({"whole": SECRET}, "whole: Expected `int`, got `str`"),
        ({"kind": SECRET}, "kind: Invalid enum value"),
        ({"day": SECRET}, "day: Invalid"),
        ({"pattern": SECRET}, "pattern: Expected `str` matching regex"),
        ({"numbers": {SECRET: "x"}}, "numbers[...]: Expected `int`"),
        ({"flag": SECRET}, "unknown field `flag`"),
        ({"whole": 6}, "refused by the model's own code (ValueError)"),
        ({"whole": 5}, "KeyError"),
    ],
)
def test_an_undecodable_struct_is_told_without_its_value(stored: dict[str, object], told: str) -> None:
    assert told in refusal_of(lambda: payload_codec(StrictStruct).load(json.dumps(stored)), PayloadDecodeError)


@pytest.mark.parametrize("model", [Welcome, Resize, Ping, Mail])
@pytest.mark.parametrize("text", ["[1]", "null", "{", '"hunter2"', ""])
def test_a_stored_text_that_is_no_object_is_refused(model: type[object], text: str) -> None:
    refusal_of(lambda: payload_codec(model).load(text), PayloadDecodeError)


def test_a_model_that_forbids_extras_forbids_them_in_storage_too() -> None:
    message = refusal_of(
        lambda: payload_codec(Forbidding).load('{"user_id": 1, "flag": "hunter2"}'), PayloadDecodeError
    )
    assert "flag: " in message


def test_many_problems_are_counted() -> None:
    wide: type[BaseModel] = pydantic.create_model("Wide", **{f"f{number}": (int, ...) for number in range(14)})  # type: ignore[call-overload]  # names made here
    assert "and 4 more" in refusal_of(lambda: payload_codec(wide).load("{}"), PayloadDecodeError)


# --- declaration


class Root(RootModel[list[int]]):
    pass


class ArrayLike(msgspec.Struct, array_like=True):
    a: int


class AsList(BaseModel):
    a: int

    @model_serializer
    def _as_list(self) -> list[int]:
        return [self.a]


class AsUntypedText(BaseModel):
    a: int

    @model_serializer
    def _as_text(self):  # type: ignore[no-untyped-def]  # pydantic cannot know what it returns
        return "text"


class OneWay(BaseModel):
    value: int = Field(validation_alias="inV", serialization_alias="outV")


class ByPath(BaseModel):
    value: int = Field(validation_alias=AliasPath("a", 0))


class Dropped(BaseModel):
    value: int = Field(exclude=True)


@dataclass
class WithInitVar:
    a: int
    scale: InitVar[int] = 1


class Unreadable:
    pass


@dataclass
class HoldsUnreadable:
    it: Unreadable


class Unresolved(BaseModel):
    it: "NeverDefined"  # type: ignore[name-defined]  # noqa: F821  # unresolved on purpose


class UnresolvedStruct(msgspec.Struct):
    it: "NeverDefined"  # type: ignore[name-defined]  # noqa: F821  # unresolved on purpose


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (Root, "RootModel"),
        (ArrayLike, "array_like"),
        (AsList, "'array'"),
        (OneWay, "value"),
        (ByPath, "value"),
        (Dropped, "value"),
        (WithInitVar, "scale"),
        (HoldsUnreadable, "Unreadable"),
        (Unresolved, "NeverDefined"),
        (UnresolvedStruct, "NeverDefined"),
        (dict, "dict"),
        (int, "int"),
        (Welcome | None, "Welcome"),
        (list[int], "list[int]"),
    ],
)
def test_what_cannot_be_stored_as_an_object_is_refused_when_it_is_declared(model: type[object], told: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        payload_codec(model)
    assert told in str(caught.value)


def test_a_serializer_that_hides_its_type_is_caught_at_defer() -> None:
    assert "not a JSON object" in refusal_of(lambda: payload_codec(AsUntypedText).dump(AsUntypedText(a=1)))


class OtherNames(BaseModel):
    a: int

    @model_validator(mode="before")
    @classmethod
    def _renamed(cls, data: object) -> object:
        if isinstance(data, dict) and "old" in data:
            return {"a": data["old"]}
        return data


class HoldsOtherNames(BaseModel):
    inner: OtherNames


def test_a_validator_may_read_other_names_inside() -> None:
    assert payload_codec(HoldsOtherNames).build((), {"inner": {"old": 1}}).inner.a == 1
    assert payload_codec(OtherNames).load('{"old": 1}') == OtherNames(a=1)
