"""Annotations: which of them name a model, and the form in which pydantic takes them.

Pydantic refuses ``typing.TypedDict`` below Python 3.12 and knows nothing of msgspec Structs. Where such types occur
in the annotation of a parameter or a result, they are rebuilt or wrapped here.
"""

import dataclasses
import functools
import operator
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Final, Literal, Union, get_args, get_origin

import msgspec
import typing_extensions
from pydantic import BaseModel, GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from pqrun.errors import DeclarationError
from pqrun.job.reasons import STRUCT_ERROR, struct_reason

__all__ = [
    "STRUCT_SCHEMA",
    "is_mapping",
    "is_model_class",
    "is_struct",
    "is_union",
    "plain_class",
    "pydantic_form",
    "struct_schema",
    "type_name",
    "typed_dict",
    "union_members",
    "unwrapped",
]

STRUCT_SCHEMA: Final = "pqrunStruct"
"""Where the JSON Schema of a Struct stands within one of pydantic's."""

# Python 3.12 brought the TypedDict that pydantic can read.
_TYPING_TYPED_DICT_IS_REFUSED: Final = sys.version_info < (3, 12)
_MODULE_PREFIX: Final = re.compile(r"(?:\w+\.|<locals>\.)+")
_QUALIFIERS: Final = frozenset(
    {typing.Required, typing.NotRequired, typing_extensions.ReadOnly, typing.Final, typing.ClassVar}
)


def type_name(annotation: object) -> str:
    """Name an annotation as its author wrote it, without modules and what Annotated adds."""
    bare = unwrapped(annotation) if get_origin(annotation) is Annotated else annotation
    if bare is None or bare is types.NoneType:
        return "None"
    if isinstance(bare, type) and not get_args(bare):
        return bare.__name__
    return _MODULE_PREFIX.sub("", str(bare))


def unwrapped(annotation: object) -> object:
    """Take off what says nothing of the type itself: Annotated, Required, NotRequired, type aliases, NewType."""
    while True:
        if get_origin(annotation) is Annotated or get_origin(annotation) in _QUALIFIERS:
            annotation = get_args(annotation)[0]
        elif isinstance(annotation, typing_extensions.TypeAliasType | typing.NewType):
            annotation = _alias_target(annotation)
        elif annotation is None:
            return types.NoneType
        else:
            return annotation


def _alias_target(alias: object) -> object:
    target: object = getattr(alias, "__value__", None) or getattr(alias, "__supertype__", None)
    return target


def plain_class(annotation: object) -> type | None:
    """Return the class that an annotation names, the origin of a generic one; None where it names no class."""
    bare = unwrapped(annotation)
    origin = get_origin(bare)
    if isinstance(origin, type):
        return origin
    return bare if isinstance(bare, type) else None


def is_model_class(annotation: object) -> bool:
    """Whether the annotation names a model: pydantic, a dataclass, a Struct, a TypedDict; not Optional, no mapping."""
    if is_union(annotation):
        return False
    cls = plain_class(annotation)
    return cls is not None and (
        issubclass(cls, BaseModel | msgspec.Struct)
        or dataclasses.is_dataclass(cls)
        or typing_extensions.is_typeddict(cls)
    )


def is_struct(annotation: object) -> bool:
    """Whether the annotation names a msgspec Struct."""
    cls = plain_class(annotation)
    return cls is not None and issubclass(cls, msgspec.Struct)


def is_mapping(annotation: object) -> bool:
    """Whether the annotation names a plain mapping, such as ``dict[str, int]``; a TypedDict is a model."""
    cls = plain_class(annotation)
    return cls is not None and issubclass(cls, Mapping) and not typing_extensions.is_typeddict(cls)


def is_union(annotation: object) -> bool:
    """Whether the annotation is a union, ``Optional`` included."""
    return get_origin(unwrapped(annotation)) in {Union, types.UnionType}


def union_members(annotation: object) -> tuple[object, ...]:
    """Return the members of a union, of nested ones too; anything else is its own only member."""
    if not is_union(annotation):
        return (annotation,)
    return tuple(inner for member in get_args(unwrapped(annotation)) for inner in union_members(member))


def pydantic_form(annotation: object) -> object:
    """Return an annotation of the same meaning that pydantic can read; mostly it is the same object."""
    return _form(annotation, ())


def _form(annotation: object, open_types: tuple[object, ...]) -> object:
    origin = get_origin(annotation)
    if isinstance(annotation, type) and origin is None:
        if issubclass(annotation, msgspec.Struct):
            return Annotated[annotation, _StructSchema(annotation)]
        if typing_extensions.is_typeddict(annotation):
            return _typed_dict_form(annotation, open_types)
        return annotation
    if isinstance(origin, type) and issubclass(origin, msgspec.Struct):
        return Annotated[annotation, _StructSchema(annotation)]
    if origin is None or origin is Literal:
        return annotation
    return _with_arguments(annotation, origin, open_types)


def _with_arguments(annotation: object, origin: object, open_types: tuple[object, ...]) -> object:
    before = get_args(annotation)
    if origin is Annotated:
        first = _form(before[0], open_types)
        return annotation if first is before[0] else Annotated[(first, *before[1:])]
    after = tuple(_form(item, open_types) for item in before)
    if all(new is old for new, old in zip(after, before, strict=True)):
        return annotation
    if origin in {Union, types.UnionType}:
        return functools.reduce(operator.or_, after)
    copy_with: Callable[[tuple[object, ...]], object] | None = getattr(annotation, "copy_with", None)
    if copy_with is not None:  # the aliases of typing, such as typing.Mapping[str, X]
        return copy_with(after)
    return types.GenericAlias(origin, after) if isinstance(origin, type) else annotation


def _typed_dict_form(annotation: type, open_types: tuple[object, ...]) -> object:
    """Rebuild a TypedDict that pydantic refuses, or whose values it would refuse."""
    is_refused = _TYPING_TYPED_DICT_IS_REFUSED and type(annotation).__module__ == "typing"
    if annotation in open_types:
        if is_refused:
            raise DeclarationError(
                f"{annotation.__name__}: a TypedDict that refers to itself must come from typing_extensions, not typing"
            )
        return annotation
    required: frozenset[str] = getattr(annotation, "__required_keys__", frozenset())
    keys: dict[str, object] = {}
    try:
        hints = typing.get_type_hints(annotation, include_extras=True)
    except NameError as exc:
        raise DeclarationError(f"{annotation.__name__}: {exc}; its keys must have types that can be imported") from exc
    for key, hint in hints.items():
        # A string annotation hides NotRequired from __required_keys__; the resolved one shows it.
        qualifier = get_origin(hint)
        bare = get_args(hint)[0] if qualifier in {typing.Required, typing.NotRequired} else hint
        form = _form(bare, (*open_types, annotation))
        is_refused = is_refused or form is not bare
        optional = qualifier is typing.NotRequired or (qualifier is not typing.Required and key not in required)
        keys[key] = typing.NotRequired[form] if optional else typing.Required[form]
    if not is_refused:
        return annotation
    rebuilt = typed_dict(annotation.__name__, keys)
    config = getattr(annotation, "__pydantic_config__", None)
    if config is not None:
        setattr(rebuilt, "__pydantic_config__", config)  # noqa: B010  # no checker knows the attribute
    return rebuilt


def typed_dict(name: str, keys: Mapping[str, object]) -> type:
    """Make a TypedDict that pydantic can read, from its name and the annotation of each key."""
    make: Callable[[str, dict[str, object]], type] = getattr(typing_extensions, "TypedDict")  # noqa: B009  # checkers want literals
    return make(name, dict(keys))


def struct_schema(struct: object) -> dict[str, object]:
    """Return the JSON Schema of a msgspec Struct, with nothing where a type of the user's own has none."""
    return msgspec.json.schema(struct, schema_hook=lambda _custom: {})


class _StructSchema:
    """Lets pydantic validate and dump a msgspec Struct through msgspec."""

    def __init__(self, struct: object) -> None:
        self._struct = struct
        self._class = plain_class(struct) or msgspec.Struct

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        del source, handler  # the Struct is known; pydantic's own reading of it would fail
        dump = core_schema.plain_serializer_function_ser_schema(_struct_builtins)
        return core_schema.no_info_plain_validator_function(self._validate, serialization=dump)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: object) -> dict[str, object]:
        del schema, handler
        # As text: pydantic would look for the definitions that it refers to among its own.
        return {STRUCT_SCHEMA: msgspec.json.encode(struct_schema(self._struct)).decode()}

    def _validate(self, value: object) -> object:
        if isinstance(value, self._class):
            return value
        try:
            converted: object = msgspec.convert(value, self._struct)
        except msgspec.ValidationError as exc:
            path, reason = struct_reason(exc)
        else:
            return converted
        raise PydanticCustomError(STRUCT_ERROR, "{reason}", {"reason": f"{path}: {reason}" if path else reason})


def _struct_builtins(value: object) -> object:
    return msgspec.to_builtins(value, str_keys=True)
