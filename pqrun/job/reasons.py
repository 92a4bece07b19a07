"""Why a value was refused, told without the value.

What pydantic and msgspec say of a refused value can quote it: a validator's own text, an unknown tag or enum value, the
character that spoils a UUID. Here only what is known to speak of the declaration alone is passed on.
"""

import re
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias, get_args

import msgspec
from pydantic import ValidationError
from pydantic_core import ErrorDetails, PydanticSerializationError, core_schema

from pqrun.job.storable import child_path, one_line

__all__ = ["STRUCT_ERROR", "Problems", "Refusal", "explain", "struct_reason"]

Problems: TypeAlias = tuple[tuple[str, str], ...]
"""Pairs of path and reason; the empty path is the value as a whole."""

STRUCT_ERROR: Final = "struct"
"""The type of the pydantic errors that pqrun raises itself for a Struct inside of a pydantic type."""

_HERE: Final = str(Path(__file__).parent)
_TOO_DEEP: Final = "nested too deeply, or part of itself"
_SHOWN_PROBLEMS: Final = 10
_PYDANTIC_ERRORS: Final = frozenset(get_args(core_schema.ErrorType))
# Parts of messages that come from the declaration, not from the value.
_DECLARED: Final = frozenset(
    {
        "actual_length",
        "class",
        "class_name",
        "decimal_places",
        "discriminator",
        "expected",
        "expected_schemes",
        "expected_size",
        "expected_tags",
        "expected_type",
        "expected_version",
        "field_type",
        "ge",
        "gt",
        "le",
        "lt",
        "max_digits",
        "max_length",
        "method_name",
        "min_length",
        "multiple_of",
        "pattern",
        "tz_expected",
        "whole_digits",
    }
)
_OWN_WORDS: Final = {
    "assertion_error": "refused by a validator (AssertionError)",
    "json_invalid": "not valid JSON",
    "union_tag_invalid": "the tag is none of those expected",
    "uuid_parsing": "Input should be a valid UUID",
    "value_error": "refused by a validator (ValueError)",
}
_STRUCT_PATH: Final = re.compile(r"^(?P<reason>.*?)(?: - at `(?:key in )?\$(?P<path>[^`]*)`)?$", re.DOTALL)
_STRUCT_SAFE: Final = re.compile(
    r"Expected `[^`]*`.*|Object (?:missing required|contains unknown) field `[^`]*`|Invalid [A-Za-z0-9 ]+|"
    r"(?:Integer value|Number) out of range|Can't decode .*",
    re.DOTALL,
)
_UNKNOWN_TYPE: Final = re.compile(r"Unable to serialize unknown type: <class '([^']*)'>")


class Refusal(msgspec.Struct, frozen=True):
    """What is wrong with a value, in place of the value's text."""

    problems: Problems

    def __str__(self) -> str:
        shown = [f"{path}: {reason}" if path else reason for path, reason in self.problems[:_SHOWN_PROBLEMS]]
        if len(self.problems) > _SHOWN_PROBLEMS:
            shown.append(f"and {len(self.problems) - _SHOWN_PROBLEMS} more")
        return "; ".join(shown)


def explain(exc: Exception) -> Problems:
    """Turn what a model raised while it was validated or dumped into paths and reasons, without any value."""
    if isinstance(exc, ValidationError):
        details = exc.errors(include_url=False, include_input=False)
        return tuple((_location(detail["loc"]), _pydantic_reason(detail)) for detail in details)
    if isinstance(exc, msgspec.ValidationError):
        return (struct_reason(exc),)
    if isinstance(exc, msgspec.DecodeError):
        return (("", "not valid JSON"),)
    if isinstance(exc, RecursionError):
        return (("", _TOO_DEEP),)
    if isinstance(exc, PydanticSerializationError):
        return (("", _serialization_reason(str(exc))),)
    return (("", _foreign_reason(exc)),)


def struct_reason(exc: msgspec.ValidationError) -> tuple[str, str]:
    """Return path and reason of a msgspec error, without the values that some of them quote."""
    # msgspec hangs the exception of a model's own __post_init__ or of a hook under its error and repeats its text.
    if exc.__cause__ is not None:
        found = _STRUCT_PATH.match(str(exc))
        return _struct_path(found), f"refused by the model's own code ({type(exc.__cause__).__name__})"
    found = _STRUCT_PATH.match(str(exc))
    reason = found["reason"].split("'")[0].strip() if found else ""
    return _struct_path(found), reason if _STRUCT_SAFE.fullmatch(reason) else "not valid"


def _struct_path(found: re.Match[str] | None) -> str:
    path = (found["path"] or "") if found else ""
    return one_line(path.removeprefix("."))


def _location(loc: Sequence[str | int]) -> str:
    path = ""
    for part in loc:
        path = child_path(path, part)
    return path


def _pydantic_reason(detail: ErrorDetails) -> str:
    kind = detail["type"]
    context: Mapping[str, object] = detail.get("ctx", {})
    if kind == STRUCT_ERROR:
        return detail["msg"]
    if kind not in _PYDANTIC_ERRORS:
        return f"refused by a validator ({one_line(kind)})"
    if kind == "json_invalid" and "recursion" in str(context.get("error", "")):
        return _TOO_DEEP
    if kind in _OWN_WORDS:
        return _OWN_WORDS[kind]
    return detail["msg"] if _DECLARED.issuperset(context) else f"not valid ({kind})"


def _serialization_reason(text: str) -> str:
    unknown = _UNKNOWN_TYPE.search(text)
    if unknown is not None:
        return f"{unknown[1]} cannot be turned into JSON"
    if "utf-8" in text:
        return "bytes that are not UTF-8 need ser_json_bytes='base64' and val_json_bytes='base64' in the model's config"
    if "depth" in text or "Circular" in text:
        return _TOO_DEEP
    return "cannot be turned into JSON"


def _foreign_reason(exc: Exception) -> str:
    """Say where the model's own code failed: its text could hold values, its place cannot."""
    text = str(exc) if type(exc) is TypeError else ""
    if text.startswith("Encoding objects of type "):
        return f"{text.removeprefix('Encoding objects of type ').split(' ')[0]} cannot be turned into JSON"
    if text.startswith("Only dicts with "):
        return "a key must be text or a number"
    frames = [frame for frame in traceback.extract_tb(exc.__traceback__) if not frame.filename.startswith(_HERE)]
    place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"the model's own code raised {type(exc).__name__}{place}"
