"""Whether a value that was read again is the one that was given: what ``==`` says, and what it does not see.

``1 == 1.0 == True``, ``Decimal("0.10") == Decimal("0.1")``, an enum of text equals its text, and one instant equals itself in
every zone; a handler may tell them apart, so a payload may not turn from one into the other. Three things are taken for
the same although they can be told apart: ``-0.0`` and ``0.0``, a time zone and the offset that it had, and what
``fold`` adds to a naive time. PostgreSQL or ISO 8601 cannot keep them, and what computes them rarely means them.
"""

import dataclasses
import datetime as dt
import functools
import ipaddress
import marshal
import operator
import pathlib
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from decimal import Decimal
from enum import Enum
from types import FunctionType
from typing import Any, Final
from uuid import UUID

import msgspec
from pydantic import BaseModel

__all__ = ["defines_equality", "is_plainly_same", "is_same", "is_same_leaf"]

_EQUAL_IS_SAME: Final = frozenset(
    {
        type(None),
        bool,
        int,
        float,
        str,
        bytes,
        bytearray,
        dt.date,
        dt.timedelta,
        UUID,
        ipaddress.IPv4Address,
        ipaddress.IPv6Address,
        pathlib.PosixPath,
        pathlib.WindowsPath,
    }
)
_ONLY_TEXT: Final = frozenset({str})
_CONTAINERS: Final = frozenset({dict, list, tuple})
_WITHOUT_REFERENCES: Final = 2
"""The version of marshal's format that writes a value as often as it occurs, so that equal values have equal bytes."""
_EXACT_IN_FLOAT: Final = 2**53


def is_same(before: object, after: object) -> bool:
    """Whether a quick look is enough to say that nothing has changed; False means that ``differences`` must look."""
    kind = type(before)
    if kind is not type(after):
        return False
    return before == after if kind in _EQUAL_IS_SAME else _comparison(kind)(before, after)  # type: ignore[arg-type]  # a class is hashable


def is_same_leaf(before: object, after: object) -> bool:
    """Compare two values that have no parts; a whole number may have become the float, a bytearray the bytes, that the type declares."""
    if type(before) is not type(after):
        if type(before) is bytearray and type(after) is bytes:
            return before == after
        is_whole = type(before) is int and type(after) is float
        return is_whole and before == after and abs(after) <= _EXACT_IN_FLOAT  # type: ignore[arg-type]  # a float
    if isinstance(before, dt.datetime | dt.time):
        return _is_same_time(before, after)  # type: ignore[arg-type]  # of the same type
    if isinstance(before, Decimal):
        return str(before) == str(after)
    if before == after or (before != before and after != after):  # NaN
        return True
    # Of a class that says nothing of equality, two values of it are taken for the same; a member of an Enum is only itself.
    return type(before).__eq__ is object.__eq__ and not isinstance(before, Enum)


def is_plainly_same(before: object, after: object) -> bool:
    """The same for a result, whose side effects have happened: what also is text or a number may arrive as that alone.

    A member of a StrEnum or IntEnum, Django's SafeString, numpy's float64. ``True`` is no number.
    """
    if isinstance(before, str) and type(after) is str:
        return before == after
    if isinstance(before, Enum) and isinstance(before, int) and type(after) is int:
        return before == after
    return is_same_leaf(before, after) or (isinstance(before, float) and type(after) is float and before == after)


def defines_equality(kind: type) -> bool:
    """Whether a class has an ``__eq__`` that its author wrote: what it says of two values counts, not their parts."""
    method: object = kind.__eq__
    return (
        isinstance(method, FunctionType)
        and method.__module__ != BaseModel.__module__
        and method.__code__.co_filename != "<string>"  # where dataclasses write theirs
    )


@functools.lru_cache(maxsize=4096)
def _comparison(kind: type) -> Callable[[Any, Any], bool]:  # the values are of this type
    """Return what compares two values of one type."""
    for base, compare in _COMPARISONS:
        if issubclass(kind, base):
            return compare
    if kind is dict:
        return _is_same_dict
    has_own = defines_equality(kind)
    if issubclass(kind, BaseModel):
        return _needs_a_look if has_own or kind.__eq__ is not BaseModel.__eq__ else _is_same_model
    if issubclass(kind, msgspec.Struct):
        return _needs_a_look if has_own else _is_same_struct
    if dataclasses.is_dataclass(kind) and not has_own and not hasattr(kind, "__slots__"):
        return _is_same_dataclass
    return _needs_a_look


def _needs_a_look(before: object, after: object) -> bool:
    del before, after
    return False


def _is_same_model(before: BaseModel, after: BaseModel) -> bool:
    extra = before.__pydantic_extra__
    if extra is not None and not is_same(extra, after.__pydantic_extra__):
        return False
    return _are_same_attributes(before.__dict__, after.__dict__)


def _is_same_dataclass(before: object, after: object) -> bool:
    return _are_same_attributes(vars(before), vars(after))


def _is_same_struct(before: msgspec.Struct, after: msgspec.Struct) -> bool:
    return _are_same(msgspec.structs.astuple(before), msgspec.structs.astuple(after))


def _are_same_attributes(before: Mapping[str, object], after: Mapping[str, object]) -> bool:
    kinds = [*map(type, before.values())]
    if kinds != [*map(type, after.values())]:
        return False
    if _EQUAL_IS_SAME.issuperset(kinds):
        return before == after
    return before.keys() == after.keys() and all(map(is_same, before.values(), map(after.__getitem__, before)))


def _is_same_dict(before: dict[object, object], after: dict[object, object]) -> bool:
    keys, others = [*before], [*after]
    if keys != others:
        return False  # in another order, perhaps
    if not (_ONLY_TEXT.issuperset(map(type, keys)) and _ONLY_TEXT.issuperset(map(type, others))):
        return _are_same(keys, others) and _are_same([*before.values()], [*after.values()])
    return _are_same([*before.values()], [*after.values()])


def _are_same(before: Sequence[object], after: Sequence[object]) -> bool:
    kinds = [*map(type, before)]
    if kinds != [*map(type, after)]:
        return False
    if _EQUAL_IS_SAME.issuperset(kinds):
        return before == after
    if _CONTAINERS.isdisjoint(kinds):
        compare = _comparison(kinds[0]) if kinds.count(kinds[0]) == len(kinds) else is_same
        return all(map(compare, before, after))
    return _is_same_tree(before, after) or all(map(is_same, before, after))


def _is_same_tree(before: Any, after: Any) -> bool:  # noqa: ANN401  # of any types
    """Compare lists and dicts of plain values, at any depth, by the bytes that Python writes of them: exact types, and no others."""
    try:
        return marshal.dumps(before, _WITHOUT_REFERENCES) == marshal.dumps(after, _WITHOUT_REFERENCES)
    except ValueError:
        return False


def _is_same_set(before: AbstractSet[object], after: AbstractSet[object]) -> bool:
    found = {item: item for item in after}
    return before == after and all(is_same(item, found[item]) for item in before)


def _is_same_time(before: dt.datetime | dt.time, after: dt.datetime | dt.time) -> bool:
    if (before.tzinfo is None) is not (after.tzinfo is None) or before.utcoffset() != after.utcoffset():
        return False
    # In an hour that a zone has twice, its times equal none of another zone: then the clocks are compared.
    return before == after or before.replace(tzinfo=None) == after.replace(tzinfo=None)


def _is_same_decimal(before: Decimal, after: Decimal) -> bool:
    return str(before) == str(after)


_COMPARISONS: Final[Sequence[tuple[type, Callable[[Any, Any], bool]]]] = (
    (list, _are_same),
    (tuple, _are_same),
    (set, _is_same_set),
    (frozenset, _is_same_set),
    (Enum, operator.is_),
    (dt.datetime, _is_same_time),
    (dt.time, _is_same_time),
    (Decimal, _is_same_decimal),
)
