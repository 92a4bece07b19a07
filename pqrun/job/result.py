"""Results: what a handler returns, as the JSON object that is stored, and back.

A result is checked against the declared type after the handler has run. Its side effects have happened then, so a
refusal ends the job; a retry would only repeat them.
"""

import functools
import inspect
import operator
import types
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Generic, Literal, NoReturn, TypeVar, cast, get_args, get_origin

import typing_extensions
from pydantic import TypeAdapter

from pqrun.errors import DeclarationError, ResultError
from pqrun.job.annotation import (
    is_mapping,
    is_model_class,
    is_struct,
    pydantic_form,
    type_name,
    union_members,
    unwrapped,
)
from pqrun.job.fields import pydantic_shape
from pqrun.job.payload import refuse_shape
from pqrun.job.reasons import Refusal
from pqrun.job.record import JsonObject
from pqrun.job.schema import nullable, pydantic_schema_of, struct_schema_of
from pqrun.job.wire import Wire, pydantic_adapter, pydantic_wire, struct_wire

__all__ = ["ResultCodec", "result_codec"]

R = TypeVar("R")

_EXPECTED = "a model, a dataclass, a Struct, a TypedDict, a mapping with text keys, or None"


class ResultCodec(Generic[R]):
    """One result type's way into storage and back; make it with ``result_codec``."""

    __slots__ = ("_allows_none", "_schema", "_where", "_wire", "annotation")

    def __init__(
        self,
        *,
        annotation: object,
        where: str,
        wire: Wire[R] | None,
        allows_none: bool,
        schema: Callable[[], JsonObject] | None = None,
    ) -> None:
        self.annotation = annotation
        self._where = where
        self._wire = wire
        self._allows_none = allows_none
        self._schema = schema

    def schema(self) -> JsonObject:
        """Return the JSON Schema of what is stored, made anew at each call; raises what the model's own code raises."""
        if self._schema is None:
            return {"type": "null"}
        return nullable(self._schema()) if self._allows_none else self._schema()

    def dump(self, value: object) -> str | None:
        """Return the JSON text of the object to store, or None for a result of None.

        A coroutine that a handler returned instead of awaiting is closed and refused.

        Raises:
            ResultError: naming the field that is missing, not valid or not storable, or the type that came instead.
        """
        if value is None and self._allows_none:
            return None
        if self._wire is None or value is None:
            self._refuse_shape(value)
        text = self._wire.dump(cast(R, value))
        if isinstance(text, Refusal):
            if inspect.iscoroutine(value):
                self._refuse_shape(value)
            if not is_model_class(type(value)) and not is_mapping(type(value)):
                self._refuse(type(value).__name__)
            raise ResultError(f"the result of {self._where} does not satisfy {type_name(self.annotation)}: {text}")
        return text

    def load(self, text: str | None) -> R:
        """Return the result of a stored text.

        Raises:
            ResultError: naming what does not satisfy the declared type.
        """
        if text is None:
            if not self._allows_none:
                raise ResultError(f"{self._where} has stored no result, but declares {type_name(self.annotation)}")
            return cast(R, None)
        if self._wire is None:
            raise ResultError(f"{self._where} has stored a result, but declares None")
        value = self._wire.load(text)
        if isinstance(value, Refusal):
            raise ResultError(
                f"the stored result of {self._where} does not satisfy {type_name(self.annotation)}: {value}"
            )
        return value

    def _refuse_shape(self, value: object) -> NoReturn:
        if inspect.iscoroutine(value):
            value.close()
            self._refuse("a coroutine that was never awaited")
        self._refuse(type_name(type(value)))

    def _refuse(self, came: str) -> NoReturn:
        raise ResultError(f"{self._where} must return {type_name(self.annotation)}; it returned {came}")


def result_codec(annotation: object, *, where: str) -> ResultCodec[object]:
    """Make the codec of a handler's return annotation; ``where`` names the handler in messages.

    Raises:
        DeclarationError: no annotation, or one that is not a model, a dataclass, a Struct, a TypedDict, a mapping with
            text keys, None, or a union of these.
    """
    if annotation is inspect.Signature.empty:
        raise DeclarationError(f"{where} declares no result; write `-> None`, or the type that it returns")
    members = [unwrapped(member) for member in union_members(annotation)]
    kinds = [member for member in members if not _is_nothing(member)]
    for kind in kinds:
        _check_kind(kind, where)
    wire, schema = _wire(kinds, where) if kinds else (None, None)
    return ResultCodec(
        annotation=annotation,
        where=where,
        wire=None if wire is None else wire.of_results(),
        allows_none=len(kinds) < len(members),
        schema=schema,
    )


def _is_nothing(annotation: object) -> bool:
    return annotation in {types.NoneType, typing_extensions.Never, typing_extensions.NoReturn}


def _check_kind(annotation: object, where: str) -> None:
    if is_model_class(annotation):
        refuse_shape(annotation, where=f"{where}: {type_name(annotation)}")
    elif not is_mapping(annotation):
        raise DeclarationError(f"{where} returns {type_name(annotation)}; a result is {_EXPECTED}")
    elif not _has_text_keys(annotation):
        raise DeclarationError(f"{where} returns {type_name(annotation)}; the keys of a result must be text")


def _has_text_keys(annotation: object) -> bool:
    arguments = get_args(annotation)
    if not arguments:
        return True  # a bare dict: its keys are checked when it is dumped
    key = unwrapped(arguments[0])
    if get_origin(key) is Literal:
        return all(isinstance(choice, str) for choice in get_args(key))
    return isinstance(key, type) and issubclass(key, str) and not issubclass(key, Enum)


def _wire(kinds: Sequence[object], where: str) -> tuple[Wire[object], Callable[[], JsonObject]]:
    """Return the way into storage, and what makes the schema."""
    union = functools.reduce(operator.or_, kinds)
    if all(is_struct(kind) for kind in kinds):
        try:
            return struct_wire(union, where=where), functools.partial(struct_schema_of, union)
        except DeclarationError:
            if len(kinds) == 1:
                raise  # a union of Structs without tags: pydantic tries one after the other
    adapter = pydantic_adapter(pydantic_form(union), where=where)
    by_alias = _writes_aliases(kinds, where)
    schema = functools.partial(pydantic_schema_of, adapter, by_alias=by_alias, mode="serialization")
    return pydantic_wire(adapter, by_alias=by_alias), schema


def _writes_aliases(kinds: Sequence[object], where: str) -> bool:
    models = [kind for kind in kinds if is_model_class(kind) and not is_struct(kind)]
    adapters: list[tuple[object, TypeAdapter[object]]] = [
        (model, pydantic_adapter(pydantic_form(model), where=where)) for model in models
    ]
    shapes = [pydantic_shape(model, adapter, where=f"{where}: {type_name(model)}") for model, adapter in adapters]
    if all(shape.aliases_read_back for shape in shapes):
        return True
    if all(shape.names_read_back for shape in shapes):
        return False
    raise DeclarationError(f"{where}: its results are read under aliases in one model and under names in another")
