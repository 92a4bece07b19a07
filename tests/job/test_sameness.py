"""A handler gets what was deferred, of the same types: also where ``==`` sees no difference, and where ``jsonb`` makes one."""

import dataclasses
import enum
import subprocess
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import asyncpg
import msgspec
import pytest
from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, Secret, SecretBytes, SecretStr, create_model

from pqrun.errors import DeclarationError, PayloadError
from pqrun.job.numbers import expanded_numbers
from pqrun.job.payload import payload_codec
from pqrun.job.result import result_codec
from pqrun.job.sameness import is_same
from pqrun.job.storable import dump_object

BERLIN = ZoneInfo("Europe/Berlin")


class Word(enum.StrEnum):
    A = "a"


class Level(enum.IntEnum):
    LOW = 1


class Text(str):
    __slots__ = ()


class Odd(enum.Enum):
    ONE = 1


FAMILIES: dict[str, Callable[[Any], Any]] = {
    "pydantic": lambda annotation: create_model("Made", f=(annotation, ...)),
    "dataclass": lambda annotation: dataclasses.make_dataclass("Made", [("f", annotation)]),
    "slots": lambda annotation: dataclasses.make_dataclass("Made", [("f", annotation)], slots=True),
    "Struct": lambda annotation: msgspec.defstruct("Made", [("f", annotation)]),
}


def made(family: str, annotation: Any, value: Any) -> Any:
    """An instance that nobody has validated."""
    model = FAMILIES[family](annotation)
    return model.model_construct(f=value) if family == "pydantic" else model(f=value)


async def through_jsonb(connection: asyncpg.Connection, value: Any) -> Any:
    codec = payload_codec(type(value))
    return codec.load(await connection.fetchval("SELECT $1::text::jsonb::text", codec.dump(value)))


ALIKE: list[tuple[Any, Any]] = [
    (int, True),
    (int, 1.0),
    (int, Level.LOW),
    (float, True),
    (float, 2**53 + 1),
    (str, Word.A),
    (str, Text("t")),
    (Any, Word.A),
    (Any, Level.LOW),
    (Any, Odd.ONE),
    (Any, {"a": [Word.A]}),
    (Any, (1, 2)),
    (Any, Decimal(1)),
    (list[int], [1, True]),
    (dict[str, int], {Word.A: 1}),
    (set[int], {True}),
    (tuple[int, str], (1.0, "a")),
]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("annotation", "value"), ALIKE, ids=repr)
def test_what_is_equal_and_of_another_type_is_refused_by_its_field(family: str, annotation: Any, value: Any) -> None:
    given = made(family, annotation, value)
    with pytest.raises(PayloadError) as caught:
        payload_codec(type(given)).dump(given)
    assert caught.value.errors[0][0].startswith("f")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_whole_number_may_be_given_for_a_float_and_a_derived_dict_for_a_dict(family: str) -> None:
    number, mapping = made(family, float, 3), made(family, dict[str, int], Counter("aab"))
    array = made(family, list[bytes], [bytearray(b"a")])
    for given, expected in ((number, 3.0), (mapping, {"a": 2, "b": 1}), (array, [b"a"])):
        codec = payload_codec(type(given))
        arrived = codec.load(codec.dump(given)).f
        assert (arrived, type(arrived)) == (expected, type(expected))


@pytest.mark.parametrize("family", ["pydantic", "dataclass", "Struct"])
@pytest.mark.parametrize(
    "number",
    [1e15, 1e16, -1e16, 1e22, 1.5e300, 1e-7, 5e-324, 1.7976931348623157e308, 2**70, 2**64, -(2**63), 2**53 + 1],
)
@pytest.mark.parametrize("annotation", [Any, float | int, dict[str, Any], list[float | int]], ids=str)
async def test_a_number_keeps_its_type_where_the_declaration_leaves_it_open(
    connection: asyncpg.Connection, family: str, number: float, annotation: Any
) -> None:
    value = {"n": [number]} if annotation == dict[str, Any] else [number] if annotation == list[float | int] else number
    given = made(family, annotation, value)
    arrived = await through_jsonb(connection, given)
    assert repr(arrived.f) == repr(value)


async def test_a_negative_zero_arrives_as_zero_and_is_not_refused(connection: asyncpg.Connection) -> None:
    for family in FAMILIES:
        assert str((await through_jsonb(connection, made(family, float, -0.0))).f) == "0.0"


def test_a_negative_zero_is_refused_where_its_digits_count() -> None:
    given = made("pydantic", Annotated[Decimal, PlainSerializer(float, return_type=float)], Decimal("-0"))
    with pytest.raises(PayloadError, match="f: comes back from storage different"):
        payload_codec(type(given)).dump(given)


async def test_numbers_of_the_low_level_api_keep_their_types(connection: asyncpg.Connection) -> None:
    value = {"n": [1e16, 1e22, 1, 1.0, 2**70, -1e300, "1e16", {"1e16": '\\"1e16'}]}
    stored = await connection.fetchval("SELECT $1::text::jsonb::text", dump_object(value, "payload"))
    assert repr(msgspec.json.decode(stored)) == repr(value)


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("[1e16,1.5e+17,1E-7,-2e16]", "[10000000000000000.0,150000000000000000.0,0.0000001,-20000000000000000.0]"),
        ('{"1e16":"1e16 \\" 1e16"}', '{"1e16":"1e16 \\" 1e16"}'),
        ("[-0.0,-0,-0.5,10,0]", "[0.0,0.0,-0.5,10,0]"),
    ],
)
def test_numbers_are_written_as_jsonb_keeps_them_and_text_is_left_alone(text: str, full: str) -> None:
    assert expanded_numbers(text) == full


# --- time


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "at",
    [
        datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN),
        datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1),
        datetime(2026, 3, 29, 2, 30, tzinfo=BERLIN),
        datetime(2026, 7, 1, tzinfo=BERLIN),
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-5))),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=5))),
        datetime(2026, 10, 25, 2, 30, fold=1),  # noqa: DTZ001  # naive stays naive
    ],
    ids=repr,
)
def test_a_datetime_keeps_its_clock_and_its_offset_also_in_an_hour_that_comes_twice(family: str, at: datetime) -> None:
    given = made(family, datetime, at)
    codec = payload_codec(type(given))
    arrived = codec.load(codec.dump(given)).f
    assert arrived.replace(tzinfo=None) == at.replace(tzinfo=None, fold=0)
    assert arrived.utcoffset() == at.utcoffset()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "at", [datetime(1800, 1, 1, tzinfo=BERLIN), datetime(2026, 1, 1, tzinfo=timezone(timedelta(seconds=1)))]
)
def test_an_offset_with_seconds_is_refused_and_told(family: str, at: datetime) -> None:
    given = made(family, datetime, at)
    with pytest.raises(PayloadError, match=r"f: a time zone is kept as its offset.*use UTC"):
        payload_codec(type(given)).dump(given)


def test_a_time_whose_zone_has_no_offset_of_its_own_is_refused() -> None:
    given = made("pydantic", time, time(12, tzinfo=BERLIN))
    with pytest.raises(PayloadError, match="f: a time zone is kept as its offset"):
        payload_codec(type(given)).dump(given)


def test_a_payload_is_the_same_text_wherever_the_host_stands() -> None:
    code = (
        "from datetime import datetime, UTC; from dataclasses import make_dataclass; from msgspec import defstruct;"
        "from pydantic import create_model; from pqrun.job.payload import payload_codec;"
        "fields = [('naive', datetime), ('aware', datetime)];"
        "values = dict(naive=datetime(2026, 1, 1, 12), aware=datetime(2026, 1, 1, 12, tzinfo=UTC));"
        "models = [create_model('P', naive=datetime, aware=datetime), make_dataclass('D', fields), defstruct('S', fields)];"
        "codecs = [payload_codec(model) for model in models];"
        "texts = [c.dump(m(**values)) for c, m in zip(codecs, models)];"
        "print(texts, [repr(c.load(t)) for c, t in zip(codecs, texts)])"
    )
    told = set()
    for zone in ("UTC", "America/New_York", "Asia/Kolkata"):
        env = {"TZ": zone, "PYTHONPATH": ":".join(sys.path)}
        told.add(subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True).stdout)
    (text,) = told
    assert b"2026-01-01T12:00:00Z" in text


# --- containers


def test_the_order_of_keys_is_not_kept_so_an_ordered_dict_of_several_is_refused() -> None:
    annotation = OrderedDict[str, int]
    for family in ("pydantic", "dataclass"):
        single = made(family, annotation, OrderedDict(a=1))
        codec = payload_codec(type(single))
        assert codec.load(codec.dump(single)).f == {"a": 1}
        with pytest.raises(PayloadError, match="f: the order of keys is not kept in storage: use a list of pairs"):
            codec.dump(type(single)(f=OrderedDict(b=1, a=2)))


def test_a_deque_is_looked_into_and_its_limit_is_not_kept() -> None:
    given = made("pydantic", deque[Any], deque([Level.LOW]))
    with pytest.raises(PayloadError, match=r"f\[0\]: Level comes back from storage as int"):
        payload_codec(type(given)).dump(given)
    with pytest.raises(PayloadError, match="f: the maxlen of a deque"):
        payload_codec(type(given)).dump(type(given).model_construct(f=deque([1], maxlen=3)))


@pytest.mark.parametrize("family", ["pydantic", "dataclass"])
def test_the_keys_of_a_counter_are_looked_at(family: str) -> None:
    given = made(family, Counter[Level], Counter({1: 2}))
    with pytest.raises(PayloadError, match=r"f\[1\]: the key, int, comes back from storage as Level"):
        payload_codec(type(given)).dump(given)


@pytest.mark.parametrize("annotation", [Iterable[int], list[Iterable[int]], Iterable[int] | None])
def test_an_iterator_is_refused_when_it_is_declared(annotation: Any) -> None:
    for family in ("pydantic", "dataclass"):
        with pytest.raises(DeclarationError, match="f is an iterator"):
            payload_codec(FAMILIES[family](annotation))


def test_an_iterator_that_is_not_stored_may_be_declared() -> None:
    model = create_model("Made", f=(Iterable[int] | None, Field(default=None, exclude=True)))
    assert payload_codec(model).load(payload_codec(model).dump(model())).f is None  # type: ignore[attr-defined]  # made here


class Opaque:
    """Says nothing of equality."""

    def __init__(self, number: int) -> None:
        self.number = number

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(
            lambda value: value if isinstance(value, Opaque) else Opaque(value),
            serialization=core_schema.plain_serializer_function_ser_schema(lambda value: value.number % 10),
        )


def test_a_class_without_equality_is_compared_by_what_it_holds() -> None:
    codec = payload_codec(create_model("Made", f=(Opaque, ...)))
    assert codec.load(codec.dump(codec.build((), {"f": 7}))).f.number == 7  # type: ignore[attr-defined]  # made here
    with pytest.raises(PayloadError, match=r"f\.number: comes back from storage different"):
        codec.dump(codec.build((), {"f": 17}))


# --- names of fields, and secrets


@pytest.mark.parametrize(
    "known", [IPv4Address, Path, SecretStr, Fraction, complex, BaseModel, list[IPv4Address], dict[str, Path] | None]
)
def test_a_struct_with_a_type_that_msgspec_does_not_know_is_refused_when_it_is_declared(known: Any) -> None:
    with pytest.raises(DeclarationError, match="f: msgspec does not know"):
        payload_codec(FAMILIES["Struct"](known))


def test_text_that_jsonb_prints_anew_is_refused_when_it_is_declared() -> None:
    with pytest.raises(DeclarationError, match=r"f: msgspec\.Raw does not come back as it was"):
        payload_codec(FAMILIES["Struct"](msgspec.Raw))


@pytest.mark.parametrize("name", ["a\x00", "\udcff"])
def test_a_path_that_is_no_text_is_refused(name: str) -> None:
    given = made("pydantic", Path, Path(name))
    with pytest.raises(PayloadError, match=r"f: .*cannot be stored in PostgreSQL"):
        payload_codec(type(given)).dump(given)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"a": {"\ud83d": 1}}, r"f\.a\.\\ud83d: the key holds a lone surrogate"),
        ({"a": int}, "f: .*cannot be turned into JSON"),
        ({None: 1}, "f"),
    ],
)
def test_what_no_encoder_writes_is_told_by_its_field(family: str, value: Any, told: str) -> None:
    given = made(family, dict, value)
    with pytest.raises(PayloadError, match=told):
        payload_codec(type(given)).dump(given)


SECRETS: list[tuple[Any, Any]] = [
    (SecretStr, SecretStr("hunter2")),
    (SecretBytes, SecretBytes(b"hunter2")),
    (Secret[int], Secret[int](4711)),
    (Secret[datetime], Secret[datetime](datetime(2026, 1, 1, tzinfo=UTC))),
    (SecretStr | str, SecretStr("hunter2")),
    (SecretStr | None, SecretStr("hunter2")),
    (list[SecretStr], [SecretStr("hunter2")]),
    (dict[str, Secret[str]], {"k": Secret[str]("hunter2")}),
    (Any, SecretStr("hunter2")),
]


@pytest.mark.parametrize("family", ["pydantic", "dataclass"])
@pytest.mark.parametrize(("annotation", "value"), SECRETS, ids=repr)
def test_a_secret_is_refused_wherever_it_stands_and_never_shown(family: str, annotation: Any, value: Any) -> None:
    given = made(family, annotation, value)
    with pytest.raises(PayloadError, match=r"f.*a secret is not stored") as caught:
        payload_codec(type(given)).dump(given)
    assert "hunter2" not in str(caught.value)
    assert "4711" not in str(caught.value)


def test_a_validator_that_breaks_in_our_hands_is_not_told_to_be_in_our_code() -> None:
    from pydantic import BeforeValidator

    model = create_model("Made", f=(Annotated[float, BeforeValidator(float)], ...))
    with pytest.raises(PayloadError) as caught:
        payload_codec(model).dump(model.model_construct(f=10**400))
    assert "the model's own code raised OverflowError" in str(caught.value)
    assert "wire.py" not in str(caught.value)


# --- results, and the quick look


def test_results_are_held_to_the_same_rule() -> None:
    codec = result_codec(dict[str, Any], where="task")
    assert codec.load(codec.dump({"n": 1e16})) == {"n": 1e16}
    assert isinstance(codec.load(codec.dump({"n": 1e16})), dict)
    assert codec.load(codec.dump({"a": Word.A, "b": [Level.LOW, Text("t")]})) == {"a": "a", "b": [1, "t"]}
    for value in ({"a": Odd.ONE}, {"a": (1,)}, {"a": Decimal("1.0")}):
        with pytest.raises(Exception, match="a: "):
            codec.dump(value)
    assert result_codec(dict[str, int], where="task").dump(defaultdict(int, a=1)) == '{"a":1}'


class Extras(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: Any = None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (1, 1.0),
        (Decimal("0.10"), Decimal("0.1")),
        ({1: "a"}, {True: "a"}),
        ({"a": 1}, {"b": 1}),
        ({1, False}, {True, 0}),
        ([[1]], [[True]]),
        (Extras(a=1), Extras(a=True)),
        (Extras(b=1), Extras(b=1.0)),  # type: ignore[call-arg]  # mypy does not read extra
        (datetime(2026, 1, 1, 12, tzinfo=UTC), datetime(2026, 1, 1, 13, tzinfo=timezone(timedelta(hours=1)))),
        (datetime(2026, 1, 1), datetime(2026, 1, 1, tzinfo=UTC)),  # noqa: DTZ001  # naive on purpose
        (float("nan"), float("nan")),
    ],
    ids=repr,
)
def test_the_quick_look_lets_nothing_pass_that_a_handler_can_tell(one: object, other: object) -> None:
    assert not is_same(one, other)


@pytest.mark.parametrize(
    "value",
    [{"b": 1, "a": [1.5, None, {"x": "y"}]}, Extras(a={1: (2, 3)}, b=2), {1, "a"}, Level.LOW, [Decimal("1.0")]],  # type: ignore[call-arg]  # as above
    ids=["dict", "model", "set", "enum", "list"],
)
def test_the_quick_look_knows_what_is_the_same(value: Any) -> None:
    import copy

    assert is_same(value, copy.deepcopy(value))


def test_abstract_types_take_what_arrives_for_them() -> None:
    for annotation, value in ((Sequence[int], [1]), (Mapping[str, int], {"a": 1})):
        given = made("pydantic", annotation, value)
        codec = payload_codec(type(given))
        assert codec.load(codec.dump(given)).f == value


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


def test_another_member_of_an_enum_is_another_value() -> None:
    painted = Annotated[Colour, PlainSerializer(lambda colour: "blue")]
    kept, changed = made("pydantic", painted, Colour.BLUE), made("pydantic", painted, Colour.RED)
    codec = payload_codec(type(kept))
    assert codec.load(codec.dump(kept)) == kept
    with pytest.raises(PayloadError, match="f: comes back from storage different"):
        payload_codec(type(changed)).dump(changed)
