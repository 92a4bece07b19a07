"""Where a value that was stored and read again differs from the one that was given.

``is_same`` decides first; this is the slow path, which finds the field, and which knows what a quick look does not:
private attributes are not part of a payload, NaN is never equal to itself, some classes define no equality, and others
one of their own.
"""

import dataclasses
import datetime as dt
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from pathlib import PurePath
from typing import Final

import msgspec
from pydantic import BaseModel

from pqrun.job.sameness import defines_equality, is_same_leaf
from pqrun.job.storable import child_path, unstorable_reason

__all__ = ["differences", "part_names", "secret_problems", "unstorable_values"]

_CONTAINERS: Final = (Mapping, AbstractSet, list, tuple, deque)
"""Looked into whatever their classes say: the ``==`` of Counter is that of its items."""

_NOT_FINITE: Final = "NaN and infinity cannot be stored as JSON"
_MASKED: Final = "a secret is not stored (its JSON is a mask): store a reference to it, or give the field a serializer"


def unstorable_values(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield path and reason of every text and number in a value that no JSON in PostgreSQL can hold."""
    if isinstance(value, str | PurePath):
        reason = unstorable_reason(str(value))
        if reason is not None:
            yield path, f"{reason} cannot be stored in PostgreSQL"
    elif isinstance(value, float):
        if not math.isfinite(value):
            yield path, _NOT_FINITE
    else:
        for key, item in (_parts(value) or {}).items():
            inner = _inner(path, key)
            reason = unstorable_reason(key) if isinstance(key, str) else None
            if reason is not None:
                yield inner, f"the key holds {reason}, which cannot be stored in PostgreSQL"
            yield from unstorable_values(item, inner)


def secret_problems(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield path and reason of every secret in a value: what its mask does to a reader tells nobody that it is one."""
    if hasattr(value, "get_secret_value"):
        yield path, _MASKED
    else:
        for key, item in (_parts(value) or {}).items():
            yield from secret_problems(item, _inner(path, key))


def differences(
    before: object, after: object, path: str = "", is_same: Callable[[object, object], bool] = is_same_leaf
) -> Iterator[tuple[str, str]]:
    """Yield path and reason of every part that did not come back as it was given; ``is_same`` judges what has no parts."""
    is_asked = not isinstance(before, _CONTAINERS) and defines_equality(type(before))
    if is_asked and type(before) is type(after):
        if before != after:
            yield path, _reason(before, after)
        return
    parts, others = _parts(before), _parts(after)
    if isinstance(before, AbstractSet) and isinstance(after, AbstractSet):
        if type(before) is not type(after) or not _are_same_sets(before, after):  # their items are values: no path
            yield path, _reason(before, after)
    elif parts is None or others is None:
        if not is_same(before, after):
            yield path, _reason(before, after)
    elif _kind(before) is not _kind(after):
        yield path, _reason(before, after)
    elif isinstance(before, deque) and isinstance(after, deque) and before.maxlen != after.maxlen:
        yield path, "the maxlen of a deque is not kept in storage: give the field a max_length"
    elif isinstance(after, OrderedDict) and len(after) > 1:
        yield path, "the order of keys is not kept in storage: use a list of pairs"
    else:
        yield from _different_parts(parts, others, path, is_same)


def _different_parts(
    parts: Mapping[object, object],
    others: Mapping[object, object],
    path: str,
    is_same: Callable[[object, object], bool],
) -> Iterator[tuple[str, str]]:
    keys = {key: key for key in others}
    for key in [*parts, *(others.keys() - parts.keys())]:
        inner = _inner(path, key)
        if key not in others:
            yield inner, "is not a field of the declared type, or is lost in storage"
        elif key not in parts:
            yield inner, "was not given, but comes back from storage"
        elif type(key) is not type(keys[key]):
            yield inner, f"the key, {type(key).__name__}, comes back from storage as {type(keys[key]).__name__}"
        else:
            yield from differences(parts[key], others[key], inner, is_same)


def part_names(value: object) -> list[str]:
    """Return the names of what a value consists of; none for one that has no parts or no names for them."""
    return [key for key in _parts(value) or () if isinstance(key, str)]


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
    if isinstance(value, list | tuple | deque | AbstractSet):
        return dict(enumerate(value))
    if type(value).__eq__ is object.__eq__ and not isinstance(value, type | Enum) and hasattr(value, "__dict__"):
        return dict[object, object](value.__dict__.items())  # of a class that says nothing of equality
    return None


def _are_same_sets(before: AbstractSet[object], after: AbstractSet[object]) -> bool:
    found = {item: item for item in after}
    return before == after and not any(any(differences(item, found[item])) for item in before)


def _kind(value: object) -> type:
    """Return what must stay the same for the parts to be comparable: the class, the origin of a generic model."""
    if isinstance(value, BaseModel):
        origin = value.__pydantic_generic_metadata__["origin"]
        return origin if origin is not None else type(value)
    for kind in (Mapping, list):
        if isinstance(value, kind):
            return kind
    return type(value)


def _reason(before: object, after: object) -> str:
    if isinstance(before, float) and not math.isfinite(before):
        return _NOT_FINITE
    if hasattr(before, "get_secret_value"):
        return _MASKED
    if type(before) is not type(after):
        return f"{type(before).__name__} comes back from storage as {type(after).__name__}"
    if isinstance(before, dt.datetime | dt.time) and before.tzinfo is not None:
        offset = before.utcoffset()
        if offset is None or offset % dt.timedelta(minutes=1):
            return "a time zone is kept as its offset in hours and minutes, and this one has none such: use UTC"
    return "comes back from storage different from what was given"
