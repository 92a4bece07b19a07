"""Which types have a text that is the same in every process, and so can stand in a deduplication key."""

import datetime as dt
import decimal
import enum
import ipaddress
import pathlib
import types
import uuid
from typing import Final, Literal, TypeAlias, get_args, get_origin

import msgspec
from pydantic import TypeAdapter

from pqrun.job.annotation import is_model_class, plain_class, type_name, union_members, unwrapped

__all__ = ["KeyText", "key_text"]

_SCALARS: Final = (
    str,
    int,
    float,
    bytes,
    decimal.Decimal,
    uuid.UUID,
    dt.date,  # datetimes too
    dt.time,
    dt.timedelta,
    ipaddress.IPv4Address,
    ipaddress.IPv6Address,
    pathlib.PurePath,
)
_SCALAR_JSON: Final = frozenset({"string", "integer", "number", "boolean"})

_Reason: TypeAlias = str


class KeyText(msgspec.Struct, frozen=True):
    """What a key must know of a field beside its JSON."""

    is_float: bool = False
    """It holds floats and no whole numbers."""
    may_be_nan: bool = False
    """NaN may be stored, as text."""


def key_text(annotation: object) -> KeyText | _Reason:
    """Return how a field of this type stands in a key, or why it cannot.

    Text, numbers, booleans, bytes, UUIDs, dates and times, addresses, paths, enums of such, literals, and unions of
    these with None can.
    """
    members = [unwrapped(member) for member in union_members(unwrapped(annotation))]
    for member in members:
        if member is not types.NoneType and not _is_single_value(member):
            return f"{type_name(member)} is not a single value such as text, a number or a date"
    classes = [cls for cls in map(plain_class, members) if cls is not None and cls is not types.NoneType]
    numbers = [cls for cls in classes if issubclass(cls, int | float | decimal.Decimal)]
    return KeyText(
        is_float=bool(numbers) and all(issubclass(cls, float) for cls in numbers),
        may_be_nan=any(issubclass(cls, float | decimal.Decimal) for cls in numbers),
    )


def _is_single_value(annotation: object) -> bool:
    if get_origin(annotation) is Literal:
        return all(_is_scalar(choice) for choice in get_args(annotation))
    if not isinstance(annotation, type) or get_origin(annotation) is not None:
        return False
    if issubclass(annotation, enum.Enum):
        return all(_is_scalar(member.value) for member in annotation)
    if issubclass(annotation, _SCALARS):
        return True
    # A secret is masked in its text, or must not be in a key if it is not.
    if annotation is object or is_model_class(annotation) or hasattr(annotation, "get_secret_value"):
        return False
    return _dumps_to_scalar(annotation)


def _is_scalar(value: object) -> bool:
    return isinstance(value, (*_SCALARS, enum.Enum))


def _dumps_to_scalar(annotation: type) -> bool:
    """Whether pydantic writes a type of its own, such as a URL, as a single value."""
    try:
        schema = TypeAdapter(annotation).json_schema(mode="serialization")
    except Exception:  # noqa: BLE001  # whatever pydantic says of a type that it cannot read: it is none of its own
        return False
    return schema.get("type") in _SCALAR_JSON
