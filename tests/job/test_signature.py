"""A handler's signature decides what is stored: one model, or one key per parameter."""

import functools
import inspect
import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, Generic, Protocol, TypedDict, TypeVar, cast
from uuid import UUID, uuid4

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, RootModel

from pqrun.errors import DeclarationError, PayloadDecodeError, PayloadError
from pqrun.job.signature import Signature, read_signature

S = TypeVar("S")


class JobContext(Generic[S]):
    """Stands for the real one: a room above this."""


class Welcome(BaseModel):
    user_id: int


class Sent(BaseModel):
    message_id: str


class Resize(msgspec.Struct):
    path: str


@dataclass
class Ping:
    host: str


class Mail(TypedDict):
    to: str


class Ids(RootModel[list[int]]):
    pass


def read(function: Callable[..., object], payload: object = None) -> Signature:
    return read_signature(function, payload=payload, context=JobContext)


def refusal_of(function: Callable[..., object], payload: object = None) -> str:
    with pytest.raises(DeclarationError) as caught:
        read(function, payload)
    return str(caught.value)


# --- the wire rule


async def takes_model(ctx: JobContext[Any], payload: Welcome) -> Sent: ...  # type: ignore[empty-body]  # only read


async def takes_struct(ctx: JobContext[Any], it: Resize) -> None: ...


def takes_dataclass(ctx: JobContext[Any], it: Ping) -> None: ...


async def takes_typed_dict(ctx: JobContext[Any], *, mail: Mail) -> None: ...


async def takes_optional(ctx: JobContext[Any], it: Welcome | None) -> None: ...


async def takes_default(ctx: JobContext[Any], it: Welcome = Welcome(user_id=0)) -> None: ...  # noqa: B008  # a value


async def takes_mapping(ctx: JobContext[Any], it: dict[str, int]) -> None: ...


async def takes_two(ctx: JobContext[Any], it: Welcome, other: Resize) -> None: ...


async def takes_nothing(ctx: JobContext[Any]) -> None: ...


@pytest.mark.parametrize(
    ("function", "name", "model"),
    [
        (takes_model, "payload", Welcome),
        (takes_struct, "it", Resize),
        (takes_dataclass, "it", Ping),
        (takes_typed_dict, "mail", Mail),
    ],
)
def test_one_required_model_is_the_payload(function: Callable[..., object], name: str, model: type[object]) -> None:
    signature = read(function)
    assert signature.model_parameter == name
    assert signature.codec.model is model


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (takes_optional, ["it"]),
        (takes_default, ["it"]),
        (takes_mapping, ["it"]),
        (takes_two, ["it", "other"]),
        (takes_nothing, []),
    ],
)
def test_anything_else_is_one_key_per_parameter(function: Callable[..., object], names: list[str]) -> None:
    signature = read(function)
    assert signature.model_parameter is None
    assert [field.name for field in signature.codec.fields] == names


def test_the_signature_tells_kind_name_and_result() -> None:
    assert read(takes_model).is_async
    assert not read(takes_dataclass).is_async
    assert read(takes_model).name == "takes_model"
    assert read(takes_model).returns is Sent
    assert read(takes_nothing).returns is type(None)


async def without_result(ctx, a: int):  # type: ignore[no-untyped-def]  # on purpose
    ...


def test_a_missing_result_annotation_is_told_apart_from_none() -> None:
    assert read(without_result).returns is inspect.Signature.empty


def test_arguments_fit_the_call() -> None:
    welcome = Welcome(user_id=1)
    assert read(takes_model).arguments(welcome) == ((welcome,), {})
    assert read(takes_typed_dict).arguments({"to": "x"}) == ((), {"mail": {"to": "x"}})
    assert read(positional_only).arguments({"a": 1, "b": 2, "c": 3}) == ((1,), {"b": 2, "c": 3})
    assert read(takes_nothing).arguments({}) == ((), {})


async def positional_only(ctx: JobContext[Any], a: int, /, b: int = 2, *, c: int = 3) -> None: ...


# --- parameters as a payload


async def many(
    ctx: JobContext[Any],
    whole: int,
    at: datetime,
    json: str = "a name that models may not use",
    _hidden: bool = False,
    *,
    ids: list[UUID] | None = None,
    owner: Welcome | None = None,
    size: Resize | None = None,
    mail: Mail | None = None,
    limited: Annotated[int, Field(le=5)] = 1,
    span: timedelta = timedelta(seconds=1),
) -> None: ...


def test_parameters_come_back_as_the_handler_takes_them() -> None:
    codec = read(many).codec
    given_values = {
        "ids": [uuid4()],
        "owner": Welcome(user_id=1),
        "size": Resize("p"),
        "mail": {"to": "x"},
        "span": timedelta(days=1, microseconds=1),
    }
    built = codec.build((2**70, datetime(2026, 1, 1)), given_values)  # noqa: DTZ001  # naive stays naive
    back = cast(dict[str, object], codec.load(codec.dump(built)))
    assert back == built
    assert back["size"] == Resize("p")
    assert back["json"] == "a name that models may not use"
    assert back["owner"] == Welcome(user_id=1)


def test_defaults_are_written_and_filled_in_for_older_payloads() -> None:
    codec = read(positional_only).codec
    assert json.loads(codec.dump(codec.build((1,), {}))) == {"a": 1, "b": 2, "c": 3}
    assert codec.load('{"a": 1}') == {"a": 1, "b": 2, "c": 3}
    assert codec.load('{"a": 1, "newer": true}') == {"a": 1, "b": 2, "c": 3}
    with pytest.raises(PayloadDecodeError, match="a: Field required"):
        codec.load('{"b": 1}')


@given(
    st.lists(st.integers(0, 9), max_size=4), st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), st.integers(0, 9))
)
def test_arguments_bind_as_a_call_would(args: list[int], kwargs: dict[str, int]) -> None:
    def handler(a: int, /, b: int = 2, *, c: int = 3) -> dict[str, int]:
        return {"a": a, "b": b, "c": c}

    codec = read(positional_only).codec
    try:
        expected = handler(*args, **kwargs)
    except TypeError:
        with pytest.raises(PayloadError):
            codec.build(tuple(args), kwargs)
    else:
        assert codec.build(tuple(args), kwargs) == expected


@pytest.mark.parametrize(
    ("args", "kwargs", "told"),
    [
        (("hunter2",), {}, "a: "),
        ((), {}, "missing a required argument: 'a'"),
        ((1, 2, 3), {}, "too many positional arguments"),
        ((1,), {"d": "hunter2"}, "'d'"),
        ((1, 2), {"b": 3}, "'b'"),
        ((None,), {}, "a: "),
    ],
)
def test_wrong_arguments_are_named(args: tuple[object, ...], kwargs: dict[str, object], told: str) -> None:
    with pytest.raises(PayloadError) as caught:
        read(positional_only).codec.build(args, kwargs)
    assert told in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__context__ is None


def test_constraints_of_parameters_hold() -> None:
    with pytest.raises(PayloadError, match=r"limited: .*less than or equal to 5"):
        read(many).codec.build((1, datetime(2026, 1, 1)), {"limited": 6})  # noqa: DTZ001  # naive stays naive


def test_a_misspelt_key_inside_a_parameter_is_named() -> None:
    with pytest.raises(PayloadError, match=r"it\.userid: unknown field; did you mean user_id"):
        read(takes_two).codec.build((), {"it": {"user_id": 1, "userid": 1}, "other": {"path": "x"}})
    with pytest.raises(PayloadError, match=r"other: path: Expected `str`"):
        read(takes_two).codec.build((), {"it": {"user_id": 1}, "other": {"path": 5}})


# --- what is refused


async def unannotated(ctx: JobContext[Any], a) -> None: ...  # type: ignore[no-untyped-def]  # on purpose


async def star(ctx: JobContext[Any], *numbers: int) -> None: ...


async def double_star(ctx: JobContext[Any], **options: int) -> None: ...


async def no_parameters() -> None: ...


async def no_context(a: int) -> None: ...


async def keyword_context(*, ctx: JobContext[Any]) -> None: ...


async def takes_root_model(ctx: JobContext[Any], ids: Ids) -> None: ...


class Unreadable:
    pass


async def takes_object(ctx: JobContext[Any], a: int, it: Unreadable) -> None: ...


async def aliased(ctx: JobContext[Any], a: Annotated[int, Field(alias="b")]) -> None: ...


async def unresolved(ctx: JobContext[Any], a: "NeverDefined") -> None: ...  # type: ignore[name-defined]  # noqa: F821  # on purpose


async def unresolved_result(ctx: JobContext[Any], a: int) -> "NeverDefined": ...  # type: ignore[name-defined]  # noqa: F821  # on purpose


async def async_generator(ctx: JobContext[Any]) -> AsyncIterator[int]:
    yield 1


def generator(ctx: JobContext[Any]) -> Iterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (unannotated, "'a' has no annotation"),
        (star, "*numbers"),
        (double_star, "**options"),
        (no_parameters, "ctx: JobContext"),
        (no_context, "ctx: JobContext, not a: int"),
        (keyword_context, "ctx: JobContext"),
        (takes_root_model, "RootModel"),
        (takes_object, "parameter 'it'"),
        (aliased, "parameter 'a'"),
        (unresolved, "parameter 'a' cannot be resolved (NameError: name 'NeverDefined' is not defined)"),
        (unresolved_result, "its result cannot be resolved"),
        (async_generator, "yields"),
        (generator, "yields"),
    ],
)
def test_a_handler_that_cannot_be_is_refused_with_the_reason(function: Callable[..., object], told: str) -> None:
    message = refusal_of(function)
    assert told in message
    assert function.__name__ in message


@pytest.mark.parametrize("thing", [5, print, functools.partial(takes_nothing), Welcome, lambda: None])
def test_only_functions_are_handlers(thing: Callable[..., object]) -> None:
    assert refusal_of(thing)


def test_a_method_is_a_handler() -> None:
    class Service:
        async def work(self, ctx: JobContext[Any], a: int) -> None: ...

    assert [field.name for field in read(Service().work).codec.fields] == ["a"]


def test_text_annotations_see_the_names_of_the_module_and_of_the_closure() -> None:
    class Local(BaseModel):
        a: int

    async def handler(ctx: "JobContext[Any]", it: "Local") -> "Sent | None":
        return Sent(message_id=str(Local(a=it.a)))

    assert read(handler).codec.model is Local
    assert read(handler).returns == Sent | None


async def context_for_checkers_only(ctx: "OnlyForCheckers", a: int) -> None: ...  # type: ignore[name-defined]  # noqa: F821  # on purpose


async def context_without_annotation(ctx, a: int) -> None: ...  # type: ignore[no-untyped-def]  # on purpose


async def context_as_object(ctx: object, a: int) -> None: ...


class HasState(Protocol):
    state: int


async def context_as_protocol(ctx: HasState, a: int) -> None: ...


@pytest.mark.parametrize(
    "function", [context_for_checkers_only, context_without_annotation, context_as_object, context_as_protocol]
)
def test_a_context_that_cannot_be_judged_passes(function: Callable[..., object]) -> None:
    assert len(read(function).codec.fields) == 1


# --- payload=


async def bare_payload(ctx: JobContext[Any], payload) -> None: ...  # type: ignore[no-untyped-def]  # on purpose


def test_a_declared_model_needs_no_annotation() -> None:
    assert read(bare_payload, Welcome).codec.model is Welcome
    assert read(takes_model, Welcome).model_parameter == "payload"
    assert read(takes_typed_dict, Mail).model_parameter == "mail"


class BetterWelcome(Welcome):
    name: str


def test_a_declared_model_may_be_narrower_than_the_parameter() -> None:
    assert read(takes_model, BetterWelcome).codec.model is BetterWelcome


@pytest.mark.parametrize(
    ("function", "payload", "told"),
    [
        (takes_model, Sent, "payload=Sent, but parameter 'payload' takes Welcome"),
        (takes_typed_dict, Welcome, "takes Mail"),
        (takes_two, Welcome, "has 3"),
        (takes_nothing, Welcome, "has 1"),
        (bare_payload, int, "int"),
        (bare_payload, Welcome | None, "Welcome"),
    ],
)
def test_a_declared_model_that_does_not_fit_is_refused(
    function: Callable[..., object], payload: object, told: str
) -> None:
    assert told in refusal_of(function, payload)
