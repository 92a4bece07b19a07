"""Where a value that was stored and read again differs from the one that was given.

Equality decides first; this is the slow path, which finds the field, and which knows what equality does not: private
attributes are not part of a payload, NaN is never equal to itself, and some classes define no equality.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet

import msgspec
from pydantic import BaseModel

from pqrun.job.storable import child_path, unstorable_reason

__all__ = ["differences", "unstorable_values"]


def unstorable_values(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield path and reason of every text and number in a value that no JSON in PostgreSQL can hold."""
    if isinstance(value, str):
        reason = unstorable_reason(value)
        if reason is not None:
            yield path, f"{reason} cannot be stored in PostgreSQL"
    elif isinstance(value, float):
        if not math.isfinite(value):
            yield path, "NaN and infinity cannot be stored as JSON"
    else:
        for key, item in (_parts(value) or {}).items():
            yield from unstorable_values(item, _inner(path, key))


def differences(before: object, after: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield path and reason of every part that did not come back as it was given."""
    parts, others = _parts(before), _parts(after)
    if parts is None or others is None or isinstance(before, AbstractSet):
        if not _same(before, after):
            yield path, _reason(before, after)
    elif _kind(before) is not _kind(after):
        yield path, _reason(before, after)
    else:
        for key in parts.keys() | others.keys():
            inner = _inner(path, key)
            if key not in others:
                yield inner, "is not a field of the declared type, or is lost in storage"
            elif key not in parts:
                yield inner, "was not given, but comes back from storage"
            else:
                yield from differences(parts[key], others[key], inner)


def _inner(path: str, key: object) -> str:
    return child_path(path, key if isinstance(key, str | int) else str(key))


def _parts(value: object) -> Mapping[object, object] | None:
    """Return what a value consists of, or None for one that has no parts."""
    if isinstance(value, BaseModel):
        fields = {name: value.__dict__.get(name) for name in type(value).model_fields}
        return dict[object, object]({**fields, **(value.__pydantic_extra__ or {})}.items())
    if isinstance(value, msgspec.Struct):
        return {name: getattr(value, name, None) for name in value.__struct_fields__}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value) if field.compare}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, list | tuple | AbstractSet):
        return dict(enumerate(value))
    return None


def _kind(value: object) -> type:
    """Return what must stay the same for the parts to be comparable: the class, the origin of a generic model."""
    if isinstance(value, BaseModel):
        origin = value.__pydantic_generic_metadata__["origin"]
        return origin if origin is not None else type(value)
    for kind in (Mapping, list):
        if isinstance(value, kind):
            return kind
    return type(value)


def _same(before: object, after: object) -> bool:
    if before == after or (before != before and after != after):  # NaN, of float and Decimal
        return True
    return type(before) is type(after) and type(before).__eq__ is object.__eq__


def _reason(before: object, after: object) -> str:
    if isinstance(before, float) and not math.isfinite(before):
        return "NaN and infinity cannot be stored as JSON"
    if hasattr(before, "get_secret_value"):
        return "a secret is not stored (its JSON is a mask): store a reference to it, or give the field a serializer"
    if type(before) is not type(after):
        return f"{type(before).__name__} comes back from storage as {type(after).__name__}"
    return "comes back from storage different from what was given"
