"""Numbers on their way through ``jsonb``, and the types that leave open what kind of number is read.

``jsonb`` prints ``1e16`` as ``10000000000000000``. Where a float is declared that is read as the float again; where the type
leaves it open, as ``Any`` and ``float | int`` do, it would be read as a whole number. What is written as
``10000000000000000.0`` stays what it is.
"""

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Final

import msgspec

__all__ = ["expanded_numbers", "leaves_numbers_open", "struct_leaves_numbers_open"]

# No encoder of ours writes spaces, so this is where a value begins; inside of text it is rare.
_MAY_NEED_IT: Final = re.compile(r"[:,\[](?:-0|-?[0-9.]+[eE])")
_STRING_OR_NUMBER: Final = re.compile(r'"(?:[^"\\]|\\.)*"|-?[0-9]+(?:\.[0-9]+)?[eE][+-]?[0-9]+|-0(?:\.0+)?(?![0-9.])')
_CLOSED: Final = frozenset(
    {
        *("bool", "bytes", "date", "datetime", "decimal", "enum", "float", "int", "literal", "none", "str"),
        *("multi-host-url", "time", "timedelta", "to-string", "url", "uuid"),
        *(
            "default",
            "definition-ref",
            "definitions",
            "dict",
            "frozenset",
            "list",
            "nullable",
            "set",
            "tagged-union",
            "tuple",
        ),
        *("dataclass", "dataclass-args", "dataclass-field", "model", "model-field", "model-fields"),
        *("typed-dict", "typed-dict-field"),
    }
)
"""The parts of pydantic's schemas that decide alone what a number is read as."""


def expanded_numbers(text: str) -> str:
    """Return a JSON text with numbers as ``jsonb`` keeps them: in full where they have an exponent, ``-0.0`` without its sign."""
    return _STRING_OR_NUMBER.sub(_in_full, text) if _MAY_NEED_IT.search(text) else text


def _in_full(found: re.Match[str]) -> str:
    token = found.group()
    if token.startswith('"'):
        return token
    digits = format(Decimal(token) or Decimal(0), "f")
    return digits if "." in digits else f"{digits}.0"


def leaves_numbers_open(schema: object) -> bool:
    """Whether something in a core schema of pydantic takes whole numbers and others, or is written by a function."""
    if isinstance(schema, Mapping):
        kind = schema.get("type")
        if isinstance(kind, str) and kind not in _CLOSED:
            return True
        return any(leaves_numbers_open(item) for key, item in schema.items() if key not in {"metadata", "config"})
    return isinstance(schema, list | tuple) and any(map(leaves_numbers_open, schema))


def struct_leaves_numbers_open(infos: list[msgspec.inspect.Type]) -> bool:
    """Whether one of these types of msgspec takes anything, or whole numbers and others."""
    for info in infos:
        if isinstance(info, msgspec.inspect.AnyType):
            return True
        if isinstance(info, msgspec.inspect.UnionType):
            kinds = set(map(type, info.types))
            if {msgspec.inspect.IntType, msgspec.inspect.FloatType} <= kinds:
                return True
    return False
