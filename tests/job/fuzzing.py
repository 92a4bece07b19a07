"""Random models and values for them: what people put into payloads and results, and what nobody should.

A ``Kind`` is an annotation with a strategy of its values. Kinds are put together into models of every family; a value
of such a model is stored and read back by ``test_fuzz``. What is counted is the kind of each field.
"""

import contextlib
import dataclasses
import datetime as dt
import enum
import ipaddress
import pathlib
import re
import uuid
import zoneinfo
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, Optional, TypeAlias, TypeVar, Union

import msgspec
import pydantic
import typing_extensions
from hypothesis import strategies as st
from pydantic import (
    AnyUrl,
    AwareDatetime,
    Base64Bytes,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    HttpUrl,
    JsonValue,
    PlainSerializer,
    PrivateAttr,
    Secret,
    SecretBytes,
    SecretStr,
    computed_field,
    create_model,
)
from pydantic.alias_generators import to_camel

from pqrun.job.annotation import typed_dict

T = TypeVar("T")
Values: TypeAlias = st.SearchStrategy[Any]


class Kind(NamedTuple):
    """An annotation, and values of it, some of them nasty."""

    name: str
    annotation: Any
    values: Values
    is_hashable: bool = False

    def __repr__(self) -> str:
        return self.name


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Word(enum.StrEnum):
    A = "a"
    B = "b"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Odd(enum.Enum):
    NOTHING = None
    PAIR = (1, 2)
    MONEY = Decimal("1.10")
    ONE = 1
    LIKE_ONE = "1"


class Rights(enum.IntFlag):
    READ = 1
    WRITE = 2


class Text(str):
    __slots__ = ()


class Whole(int):
    pass


class Place(NamedTuple):
    x: int
    y: float = 0.5


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    weight: float | int = 1


class Square(BaseModel):
    side: int

    @computed_field  # type: ignore[prop-decorator]  # mypy's known limit with pydantic
    @property
    def area(self) -> int:
        return self.side**2


class Box(BaseModel, Generic[T]):
    item: T
    _made: int = PrivateAttr(default=0)


class Tree(BaseModel):
    children: list["Tree"] = []


class Round(msgspec.Struct, tag=True):
    radius: float


class Flat(msgspec.Struct, tag=True, rename="camel"):
    side_length: int


@dataclasses.dataclass
class Crate(Generic[T]):
    item: T


class Mail(typing_extensions.TypedDict, total=False):
    to: typing_extensions.Required[str]
    at: dt.datetime


class Unknown:
    """Nothing knows how to store it."""


UserId = NewType("UserId", int)

_NASTY_TEXT = ["", "\x00", "a\x00b", "\ud83d", "\\u0000", "NaN", "1e16", "x" * 300, "\u2028", "\U0001f600", '"\\']
_ZONES = [zoneinfo.ZoneInfo(name) for name in ("Europe/Berlin", "America/New_York", "Asia/Kolkata", "Pacific/Apia")]
_OFFSETS = st.sampled_from([0, 1, -1, 90, 330, 840, -720, 1439, -1439]).map(
    lambda m: dt.timezone(dt.timedelta(minutes=m))
)
_ODD_OFFSETS = st.integers(-86_399, 86_399).map(lambda s: dt.timezone(dt.timedelta(seconds=s)))

text = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=8) | st.sampled_from(_NASTY_TEXT)
integers = (
    st.integers(-(10**6), 10**6) | st.integers() | st.sampled_from([2**53 + 1, 2**63, 2**64, 2**70, -(2**63), 10**4250])
)
floats = st.floats() | st.sampled_from(
    [-0.0, 1e15, 1e16, 1e22, -1e16, 1e-7, 1e300, 5e-324, 1.7976931348623157e308, 2.0**53]
)
decimals = st.decimals(allow_nan=False, allow_infinity=False, places=2) | st.sampled_from(
    [Decimal(t) for t in ("0.10", "1E+400", "-0", "0E-10", "NaN", "Infinity", "1E+22", "-1.50E-7")]
)
naive = st.datetimes() | st.sampled_from(
    [dt.datetime.min, dt.datetime.max, dt.datetime(2026, 10, 25, 2, 30, fold=1)]  # noqa: DTZ001, DTZ901  # naive on purpose
)
_turning = [
    dt.datetime(2026, 10, 25, 2, 30, tzinfo=_ZONES[0], fold=1),
    dt.datetime(2026, 3, 29, 2, 30, tzinfo=_ZONES[0]),
]
_edges = [
    dt.datetime.max.replace(tzinfo=dt.timezone(dt.timedelta(hours=-5))),
    dt.datetime.min.replace(tzinfo=dt.timezone(dt.timedelta(hours=5))),
]
aware = st.datetimes(timezones=_OFFSETS | _ODD_OFFSETS | st.sampled_from(_ZONES)) | st.sampled_from(_turning + _edges)
json_like = st.recursive(
    st.none() | st.booleans() | integers | floats | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)
anything = json_like | st.sampled_from(
    [
        (1, 2), {1: "x"}, {1, 2}, Word.A, Level.LOW, Text("t"), Whole(1), Colour.RED, SecretStr("hunter2"), b"b", bytearray(b"b"),
        Decimal("1.0"), uuid.UUID(int=1), dt.date(2026, 1, 1), Cat(), Round(1.0), Place(1), Unknown(), OrderedDict(b=1, a=2),
        [[[[[[]]]]]], True, 1.0, {"a": {"b": [1.0, 1, True, 1e16, -0.0]}},
    ]
)  # fmt: skip

pets = st.builds(Cat) | st.builds(Dog, weight=floats | integers)
like_cats = st.dictionaries(st.sampled_from(["kind", "lives", "x"]), json_like, max_size=2)
trees = st.recursive(st.builds(Tree), lambda inner: st.builds(Tree, children=st.lists(inner, max_size=2)), max_leaves=4)

SCALARS = [
    Kind("int", int, integers | st.sampled_from([True, Whole(1), Level.LOW, 1.0]), is_hashable=True),
    Kind("bool", bool, st.booleans(), is_hashable=True),
    Kind("float", float, floats | st.integers(-5, 5) | st.sampled_from([2**53 + 1, True]), is_hashable=True),
    Kind("float | int", float | int, floats | integers | st.booleans(), is_hashable=True),
    Kind("str", str, text | st.sampled_from([Text("t"), Word.A]), is_hashable=True),
    Kind("bytes", bytes, text.filter(str.isprintable).map(str.encode) | st.binary(max_size=6), is_hashable=True),
    Kind("bytearray", bytearray, st.binary(max_size=6).map(bytearray)),
    Kind("Decimal", Decimal, decimals, is_hashable=True),
    Kind("Decimal | float", Decimal | float, decimals | floats),
    Kind("UUID", uuid.UUID, st.uuids(), is_hashable=True),
    Kind("UUID | str", uuid.UUID | str, st.uuids() | text | st.uuids().map(str)),
    Kind("datetime", dt.datetime, naive | aware, is_hashable=True),
    Kind("AwareDatetime", AwareDatetime, aware),
    Kind("datetime | str", dt.datetime | str, naive | aware | text),
    Kind("date", dt.date, st.dates() | st.sampled_from([dt.date.min, dt.date.max]), is_hashable=True),
    Kind("date | datetime", dt.date | dt.datetime, st.dates() | naive | aware),
    Kind("time", dt.time, st.times() | st.times(timezones=_OFFSETS) | st.just(dt.time(1, tzinfo=_ZONES[0]))),
    Kind("timedelta", dt.timedelta, st.timedeltas() | st.sampled_from([dt.timedelta.max, dt.timedelta.min]), is_hashable=True),
    Kind("str Enum", Colour, st.sampled_from(Colour), is_hashable=True),
    Kind("StrEnum", Word, st.sampled_from(Word), is_hashable=True),
    Kind("StrEnum | str", Word | str, st.sampled_from(Word) | st.sampled_from(["a", "b", "c"])),
    Kind("IntEnum", Level, st.sampled_from(Level) | st.just(1), is_hashable=True),
    Kind("IntFlag", Rights, st.sampled_from([Rights.READ, Rights.READ | Rights.WRITE, Rights(0)])),
    Kind("mixed Enum", Odd, st.sampled_from(Odd)),
    Kind("Literal", Literal["a", 1, True] | None, st.sampled_from(["a", 1, True, None, 1.0])),
    Kind("Literal enum", Literal[Word.A], st.sampled_from([Word.A, "a"])),
    Kind("NewType", UserId, integers),
    Kind("IPv4Address", ipaddress.IPv4Address, st.ip_addresses(v=4), is_hashable=True),
    Kind("IPv6Network", ipaddress.IPv6Network, st.just(ipaddress.IPv6Network("2001:db8::/32"))),
    Kind("Path", pathlib.Path, text.map(pathlib.Path)),
    Kind("AnyUrl", AnyUrl, st.sampled_from(["http://a", "HTTP://A/%41?q=ü#f", "postgresql://u:p@h/d"]).map(AnyUrl)),
    Kind("HttpUrl | str", HttpUrl | str, st.just(HttpUrl("http://a/")) | st.just("http://a/")),
    Kind("SecretStr", SecretStr, st.sampled_from(["hunter2", "", "**********"]).map(SecretStr)),
    Kind("SecretBytes", SecretBytes, st.just(SecretBytes(b"hunter2"))),
    Kind("Secret[int]", Secret[int], st.just(Secret[int](7))),
    Kind("SecretStr | str", SecretStr | str, st.sampled_from([SecretStr("hunter2"), "clear"])),
    Kind("Any", Any, anything),
    Kind("object", object, anything),
    Kind("JsonValue", JsonValue, json_like),
    Kind("constrained int", Annotated[int, Field(ge=0, le=10)], st.integers(-1, 11)),
    Kind("constrained str", Annotated[str, Field(pattern="^[ab]+$")], st.sampled_from(["a", "ab", "c", ""])),
    Kind("int to text", Annotated[int, PlainSerializer(str, return_type=str)], integers),
    Kind("text to hex", Annotated[str, PlainSerializer(lambda t: t.encode().hex(), return_type=str)], text),
    Kind("float from anything", Annotated[float, BeforeValidator(float)], floats | integers),
    Kind("float to Decimal", Annotated[Decimal, PlainSerializer(float, return_type=float)], decimals),
    Kind("Any that is stripped", Annotated[Any, BeforeValidator(lambda v: v.strip() if isinstance(v, str) else v)], anything),
    Kind("Pattern", re.Pattern, st.sampled_from([re.compile("a+"), re.compile("a", re.IGNORECASE)])),
    Kind("Fraction", Fraction, st.fractions()),
    Kind("complex", complex, st.complex_numbers()),
    Kind("ByteSize", ByteSize, st.integers(0, 2**40).map(ByteSize)),
    Kind("Base64Bytes", Base64Bytes, st.binary(max_size=4)),
    Kind("ZoneInfo", zoneinfo.ZoneInfo, st.sampled_from(_ZONES)),
    Kind("None", None, st.none()),
    Kind("Callable", Callable[[], int], st.just(int)),
    Kind("type", type, st.just(int)),
    Kind("unknown class", Unknown, st.builds(Unknown)),
    Kind("NamedTuple", Place, st.builds(Place, integers, floats | st.just(1))),
    Kind("bare dict", dict, st.dictionaries(text | st.sampled_from([1, True, None, 1.5]), anything, max_size=2)),
    Kind("bare list", list, st.lists(anything, max_size=2)),
    Kind("bare tuple", tuple, st.tuples(json_like)),
    Kind("Iterable", typing_extensions.Iterable[int], st.lists(st.integers(0, 3), max_size=2)),
    Kind("discriminated union", Annotated[Cat | Dog, Field(discriminator="kind")], pets),
    Kind("undiscriminated union", Square | Cat, st.builds(Cat) | st.builds(Square, side=st.integers(-99, 99))),
    Kind("model | dict", Cat | dict[str, Any], st.builds(Cat) | like_cats),
    Kind("computed field", Square, st.builds(Square, side=st.integers(-99, 99))),
    Kind("recursive model", Tree, trees),
    Kind("tagged Struct", Round, st.builds(Round, floats)),
    Kind("Struct union", Round | Flat, st.builds(Round, floats) | st.builds(Flat, integers)),
    Kind("TypedDict", Mail, st.fixed_dictionaries({"to": text}, optional={"at": naive | aware})),
]  # fmt: skip
_KNOWN = {
    "Any", "Decimal", "IntEnum", "IntFlag", "NamedTuple", "NewType", "None", "StrEnum", "Struct union", "TypedDict", "UUID", "bare dict",
    "bare list", "bare tuple", "bool", "bytearray", "bytes", "date", "datetime", "float", "float | int", "int", "object", "str", "str Enum",
    "tagged Struct", "time", "timedelta",
}  # fmt: skip
KNOWN_TO_MSGSPEC = [kind for kind in SCALARS if kind.name in _KNOWN]


def of(origin: Any, *arguments: Any) -> Any:
    """Write ``origin[arguments]`` where no checker reads a type."""
    return origin[arguments if len(arguments) > 1 else arguments[0]]


def _of_one(inner: Kind) -> list[Kind]:
    """Every container of one kind."""
    item, values, name = inner.annotation, inner.values, inner.name
    lists = st.lists(values, max_size=3)
    made = [
        Kind("list", of(list, item), lists),
        Kind("tuple[…]", of(tuple, item, ...), lists.map(tuple)),
        Kind("Sequence", of(Sequence, item), lists | lists.map(tuple)),
        Kind("deque", of(deque, item), lists.map(deque) | lists.map(lambda v: deque(v, maxlen=5))),
        Kind("Optional", of(Optional, item), st.none() | values),
        Kind("generic dataclass", of(Crate, item), values.map(Crate)),
        Kind("dict[str, …]", of(dict, str, item), st.dictionaries(text, values, max_size=3)),
        Kind("Mapping", of(Mapping, str, item), st.dictionaries(text, values, max_size=3)),
        Kind("OrderedDict", of(OrderedDict, str, item), st.dictionaries(text, values, max_size=3).map(OrderedDict)),
        Kind("defaultdict", of(defaultdict, str, item), st.dictionaries(text, values, max_size=2).map(lambda v: defaultdict(list, v))),
    ]  # fmt: skip
    with contextlib.suppress(pydantic.PydanticUserError):  # pydantic cannot read the item
        box = of(Box, item)
        made.append(Kind("generic model", box, values.map(lambda v: box.model_construct(item=v))))
    if inner.is_hashable:
        pairs = st.tuples(values, st.integers(0, 1))
        made += [
            Kind("set", of(set, item), st.sets(values, max_size=3)),
            Kind("frozenset", of(frozenset, item), st.frozensets(values, max_size=3)),
            Kind("dict[…, int]", of(dict, item, int), st.dictionaries(values, st.integers(0, 9), max_size=3)),
            Kind("dict[tuple, int]", of(dict, of(tuple, item, int), int), st.dictionaries(pairs, st.just(1), max_size=2)),
            Kind("Counter", of(Counter, item), st.lists(values, max_size=3).map(Counter)),
        ]  # fmt: skip
    return [kind._replace(name=f"{kind.name} of {name}") for kind in made]


def _of_two(one: Kind, other: Kind) -> list[Kind]:
    """A pair and a union."""
    first, second = one.annotation, other.annotation
    return [
        Kind(f"tuple of {one.name} & {other.name}", of(tuple, first, second), st.tuples(one.values, other.values)),
        Kind(f"union of {one.name} & {other.name}", of(Union, first, second), one.values | other.values),
    ]


@st.composite
def kinds(draw: st.DrawFn, scalars: list[Kind], depth: int = 2) -> Kind:
    """A kind of field: a scalar, or a container of kinds."""
    kind = draw(st.sampled_from(scalars))
    for _ in range(draw(st.integers(0, depth))):
        if draw(st.integers(0, 5)) == 0:
            kind = draw(st.sampled_from(_of_two(kind, draw(st.sampled_from(scalars)))))
        else:
            kind = draw(st.sampled_from(_of_one(kind)))
    return Kind(*kind)


class Shape(NamedTuple):
    """A model, its family, its fields' kinds by name, and how a value is made of its fields' values."""

    family: str
    model: Any
    fields: dict[str, Kind]
    make: Callable[[dict[str, Any]], Any]


CONFIGS: dict[str, ConfigDict] = {
    "pydantic": ConfigDict(),
    "pydantic strict": ConfigDict(strict=True),
    "pydantic, aliases": ConfigDict(alias_generator=to_camel, validate_by_name=True),
    "pydantic, extras": ConfigDict(extra="allow"),
    "pydantic, no extras": ConfigDict(extra="forbid", frozen=True),
    "pydantic, base64": ConfigDict(ser_json_bytes="base64", val_json_bytes="base64"),
    "pydantic, other times": ConfigDict(ser_json_timedelta="float", ser_json_inf_nan="strings"),
    "pydantic, enum values": ConfigDict(use_enum_values=True),
    "pydantic, anything": ConfigDict(arbitrary_types_allowed=True),
}
FAMILIES = [
    *CONFIGS,
    "pydantic dataclass",
    "dataclass",
    "dataclass with slots",
    "Struct",
    "TypedDict",
    "parameters",
    "result",
]


def make_shape(family: str, fields: dict[str, Kind]) -> Shape:
    """Make a model of a family; raises what pydantic, msgspec or Python raise when it cannot be."""
    hints = {name: kind.annotation for name, kind in fields.items()}
    model: Any
    if family in CONFIGS:
        definitions: dict[str, Any] = {name: (hint, ...) for name, hint in hints.items()}
        model = create_model("Made", __config__=CONFIGS[family], **definitions)
        return Shape(family, model, fields, lambda values: model.model_construct(**values))
    if family in {"TypedDict", "parameters", "result"}:
        model = typed_dict("Made", hints)
        return Shape(family, model, fields, dict)
    if family == "Struct":
        model = msgspec.defstruct("Made", list(hints.items()))
    else:
        model = dataclasses.make_dataclass("Made", list(hints.items()), slots=family.endswith("slots"))
        if family == "pydantic dataclass":
            model = pydantic.dataclasses.dataclass(model)
    return Shape(family, model, fields, lambda values: model(**values))


@st.composite
def shapes(draw: st.DrawFn) -> tuple[str, dict[str, Kind]]:
    """A family and one to three fields."""
    names = ["user_id", "first", "json_"][: draw(st.integers(1, 3))]
    family = draw(st.sampled_from(FAMILIES))
    # Of the others a Struct is refused when it is declared, so that no value of it would be tried.
    scalars = KNOWN_TO_MSGSPEC if family == "Struct" and draw(st.integers(0, 9)) else SCALARS
    return family, {name: draw(kinds(scalars)) for name in names}
