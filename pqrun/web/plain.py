"""What a page shows as JSON: the same values under the same names."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from datetime import datetime, timedelta
from enum import Enum

import msgspec

__all__ = ["plain"]


def plain(value: object) -> object:
    """Return a value as dicts, lists, text and numbers; times in ISO 8601, durations in seconds."""
    match value:
        case None | bool() | int() | float():
            return value
        case Enum():
            return value.value
        case str():
            return value
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case msgspec.Struct():
            return {name.lstrip("_"): plain(getattr(value, name)) for name in value.__struct_fields__}
        case tuple() if hasattr(value, "_fields"):  # a NamedTuple
            return {name: plain(item) for name, item in zip(getattr(value, "_fields", ()), value, strict=True)}
        case Mapping():
            return {str(key.value if isinstance(key, Enum) else key): plain(item) for key, item in value.items()}
        case list() | tuple() | AbstractSet():
            return [plain(item) for item in value]
        case _:
            return str(value)
