"""A key says one thing: different payloads never share one, the same payload always does."""

import enum
import ipaddress
import os
import subprocess
import sys
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, NewType, NotRequired, TypedDict
from uuid import UUID

import msgspec
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from pydantic import AnyUrl, BaseModel, ConfigDict, Field, SecretStr

from pqrun.errors import DeclarationError, DedupeKeyError
from pqrun.job.dedupe import MAX_KEY_BYTES, DedupeTemplate, compile_template, stored_key
from pqrun.job.payload import payload_codec

UserId = NewType("UserId", int)


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Odd(enum.Enum):
    PAIR = (1, 2)


class Inner(BaseModel):
    a: int = 0


class Model(BaseModel):
    user_id: int = 0
    name: str | None = None
    real: float = 0.0
    amount: Decimal = Decimal(0)
    tags: set[str] = set()
    frozen: frozenset[str] = frozenset()
    listed: list[int] = []
    pair: tuple[int, int] = (1, 2)
    table: dict[str, int] = {}
    inner: Inner = Inner()
    maybe_inner: Inner | None = None
    any: Any = None
    thing: object = None
    secret: SecretStr = SecretStr("")
    flag: bool = True
    id: UUID = UUID(int=1)
    at: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    day: date = date(2026, 1, 1)
    clock: time = time(1, 2)
    span: timedelta = timedelta(days=1)
    colour: Colour = Colour.RED
    level: Level = Level.LOW
    data: bytes = b"abc"
    choice: Literal["a", 1] = "a"
    limited: Annotated[int, Field(ge=0)] = 3
    new_type: UserId = UserId(7)
    either: int | str | None = 1
    url: AnyUrl = AnyUrl("https://example.org/")
    address: ipaddress.IPv4Address = ipaddress.IPv4Address("127.0.0.1")
    path: PurePosixPath = PurePosixPath("/a")


CODEC = payload_codec(Model)


def template(text: str) -> DedupeTemplate:
    return compile_template(text, CODEC.fields, where="task")


def key(text: str, **values: Any) -> str:
    return template(text).render(CODEC.dump(Model(**values)))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x:{usr_id}", "{usr_id} is not a field of the payload; did you mean {user_id}?"),
        ("x:{zzz}", "{zzz} is not a field"),
        ("x:{}", "a placeholder {} without a name"),
        ("x:{0}", "{0}"),
        ("x:{user_id", "expected '}'"),
        ("x:user_id}", "Single '}'"),
        ("{user_id.__class__}", "{user_id.__class__} goes into a field"),
        ("{inner.a}", "{inner.a} goes into a field"),
        ("{table[a]}", "{table[a]} goes into a field"),
        ("{user_id!r}", "{user_id} has a conversion"),
        ("{user_id:>10}", "{user_id} has a conversion or format"),
        ("{user_id:{name}}", "{user_id} has a conversion or format"),
        ("{user_id}{name}", "between {user_id} and {name}"),
        ("{user_id}%{name}", "between {user_id} and {name}"),
        ("{user_id}:{name}-%-{flag}", "between {name} and {flag}"),
        ("", "not empty"),
        ("a\x00{user_id}", "NUL"),
        ("a\ud83d", "surrogate"),
    ],
)
def test_a_template_that_cannot_be_is_refused_when_it_is_declared(text: str, told: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        template(text)
    assert told in str(caught.value)
    assert "task" in str(caught.value)


@pytest.mark.parametrize(
    "name",
    ["tags", "frozen", "listed", "pair", "table", "inner", "maybe_inner", "any", "thing", "secret"],
)
def test_a_field_without_stable_text_is_refused_when_it_is_declared(name: str) -> None:
    with pytest.raises(DeclarationError, match=rf"\{{{name}\}} has no stable text"):
        template(f"x:{{{name}}}")


class HoldsOdd(BaseModel):
    odd: Odd | None = None


def test_an_enum_of_what_is_no_single_value_is_refused() -> None:
    with pytest.raises(DeclarationError, match="Odd is not a single value"):
        compile_template("{odd}", payload_codec(HoldsOdd).fields, where="t")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("user_id", "0"),
        ("real", "0.0"),
        ("amount", "0"),
        ("flag", "true"),
        ("id", "00000000-0000-0000-0000-000000000001"),
        ("at", "2026-01-01T00:00:00Z"),
        ("day", "2026-01-01"),
        ("clock", "01:02:00"),
        ("span", "P1D"),
        ("colour", "red"),
        ("level", "1"),
        ("data", "abc"),
        ("choice", "a"),
        ("limited", "3"),
        ("new_type", "7"),
        ("either", "1"),
        ("url", "https://example.org/"),
        ("address", "127.0.0.1"),
        ("path", "/a"),
    ],
)
def test_a_value_stands_as_its_json_text_without_quotes(name: str, text: str) -> None:
    assert key(f"x:{{{name}}}:y") == f"x:{text}:y"


def test_a_template_tells_its_text_and_fields() -> None:
    compiled = template("{user_id}:{name}:{user_id}")
    assert compiled.text == "{user_id}:{name}:{user_id}"
    assert compiled.fields == ("user_id", "name", "user_id")


def test_doubled_braces_are_braces_and_a_template_may_be_constant() -> None:
    assert key("{{{user_id}}}", user_id=5) == "{5}"
    assert key("nightly") == "nightly"
    assert key("{{user_id}}") == "{user_id}"


def test_a_value_is_never_expanded_again() -> None:
    assert key("x:{name}", name="{user_id}") == "x:{user_id}"


def test_none_gives_no_key_and_differs_from_its_name() -> None:
    with pytest.raises(DedupeKeyError, match="'name' is None"):
        key("x:{name}")
    assert key("x:{name}", name="None") == "x:None"


class NanAsText(BaseModel):
    model_config = ConfigDict(ser_json_inf_nan="strings")
    x: float
    name: str = "NaN"


def test_nan_gives_no_key() -> None:
    codec = payload_codec(NanAsText)
    with pytest.raises(DedupeKeyError, match="'x' is NaN"):
        compile_template("{x}", codec.fields, where="t").render(codec.dump(NanAsText(x=float("nan"))))
    assert compile_template("{name}", codec.fields, where="t").render(codec.dump(NanAsText(x=1.0))) == "NaN"


class Camel(BaseModel):
    user_id: int = Field(alias="userId")


class Lean(msgspec.Struct, omit_defaults=True, rename="camel"):
    file_path: str
    max_width: int = 100


class Floats(msgspec.Struct):
    x: float


class Mail(TypedDict):
    to: str
    tag: NotRequired[str]


def test_a_field_is_named_as_in_python_and_read_as_it_is_stored() -> None:
    camel = payload_codec(Camel)
    assert compile_template("u:{user_id}", camel.fields, where="t").render(camel.dump(Camel(userId=5))) == "u:5"
    lean = payload_codec(Lean)
    assert compile_template("{file_path}", lean.fields, where="t").render(lean.dump(Lean("a/b"))) == "a/b"


def test_a_field_that_may_be_left_out_is_refused() -> None:
    with pytest.raises(DeclarationError, match=r"\{max_width\} can be left out"):
        compile_template("{max_width}", payload_codec(Lean).fields, where="t")
    mail = payload_codec(Mail)
    by_tag = compile_template("{tag}", mail.fields, where="t")
    assert by_tag.render(mail.dump({"to": "x", "tag": "y"})) == "y"
    with pytest.raises(DedupeKeyError, match="'tag' is not in the payload"):
        by_tag.render(mail.dump({"to": "x"}))


def test_a_float_has_one_text_however_it_was_given() -> None:
    codec = payload_codec(Floats)
    compiled = compile_template("{x}", codec.fields, where="t")
    assert compiled.render(codec.dump(Floats(1))) == compiled.render(codec.dump(Floats(1.0))) == "1.0"


def test_values_cannot_be_confused_across_the_text_between_them() -> None:
    class Pair(BaseModel):
        a: str
        b: str

    codec = payload_codec(Pair)
    compiled = compile_template("{a}:{b}", codec.fields, where="t")
    assert compiled.render(codec.dump(Pair(a="1:2", b="3"))) == "1%3A2:3"
    assert compiled.render(codec.dump(Pair(a="1", b="2:3"))) == "1:2%3A3"
    assert compiled.render(codec.dump(Pair(a="100%", b="ü"))) == "100%25:ü"
    assert compile_template("x%:{a}", codec.fields, where="t").render(codec.dump(Pair(a="1:%", b=""))) == "x%:1:%"
    wide = compile_template("{a} ü {b}", codec.fields, where="t")
    assert wide.render(codec.dump(Pair(a="ü", b="a b"))) == "%C3%BC ü a%20b"


class Texts(BaseModel):
    a: str
    b: str
    c: str


TEXTS = payload_codec(Texts)
tricky = st.text(st.sampled_from('%:2A5{}ü\\"\n-') | st.characters(codec="utf-8", exclude_characters="\0"))
separators = st.text(st.sampled_from(":2A5-ü."), min_size=1, max_size=3)
three = st.tuples(tricky, tricky, tricky)


@given(three, three, separators, separators, tricky, tricky)
@example(("1:2", "3", ""), ("1", "2:3", ""), ":", ":", "", "")
@example(("2", "", ""), ("%32", "", ""), "2", "2", "", "")
def test_different_payloads_have_different_keys(
    one: tuple[str, str, str], other: tuple[str, str, str], first: str, second: str, head: str, tail: str
) -> None:
    def literal(text: str) -> str:
        return text.replace("{", "{{").replace("}", "}}")

    text = f"{literal(head)}{{a}}{first}{{b}}{second}{{c}}{literal(tail)}"
    compiled = compile_template(text, TEXTS.fields, where="t")
    keys = [compiled.render(TEXTS.dump(Texts(a=a, b=b, c=c))) for a, b, c in (one, other)]
    assert (keys[0] == keys[1]) == (one == other)


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=400))
def test_a_stored_key_is_bounded_and_whole(text: str) -> None:
    stored = stored_key(text)
    assert len(stored.encode()) <= MAX_KEY_BYTES
    if len(text.encode()) <= MAX_KEY_BYTES:
        assert stored == text
    else:
        assert text.startswith(stored.rpartition(":")[0])


@given(st.text("aü", min_size=190, max_size=300), st.text("aü", min_size=190, max_size=300))
def test_long_keys_stay_different(one: str, other: str) -> None:
    assume(one != other)
    assert stored_key(one) != stored_key(other)


@pytest.mark.parametrize("given_key", ["", "a\x00", "\ud83d", 5, None, b"x"])
def test_a_key_that_cannot_be_stored_is_refused(given_key: Any) -> None:
    with pytest.raises(DedupeKeyError, match="dedupe_key"):
        stored_key(given_key)


def test_a_key_is_the_same_in_every_process() -> None:
    code = (
        "from tests.job.test_dedupe import key;"
        "print(key('{colour}:{level}:{choice}:{either}:{at}', tags={'a', 'b', 'c'}))"
    )
    keys = [
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    ]
    assert keys[0] == keys[1] != b""


def test_refusals_show_no_values() -> None:
    with pytest.raises(DedupeKeyError) as caught:
        compile_template("{name}", CODEC.fields, where="t").render('{"name": ["hunter2"]}')
    assert "hunter2" not in str(caught.value)
