"""A form made of the JSON Schema of a payload, and the payload that its fields say.

Scalars get a field of their own kind; everything else a text of JSON, which its model checks like the rest. Nothing is validated here: what
cannot be read is passed on as text, and the model says what is wrong with it.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from pqrun.job.record import JsonValue
from pqrun.web.visit import Form

__all__ = ["FIELD_PREFIX", "Field", "fields_of", "payload_of", "with_problems"]

JsonSchema: TypeAlias = Mapping[str, Any]

FIELD_PREFIX: Final = "field."
"""Before the name of a payload's field, in the name of the form's: a payload may have a field of any name."""

FIELDS_MOST: Final = 100

_INPUTS: Final = {"integer": "number", "number": "decimal", "boolean": "boolean", "string": "text"}
_FORMATS: Final = {"date": "date", "email": "email", "uri": "url"}


class Field(NamedTuple):
    """One field of the form."""

    name: str
    kind: str
    """text, number, decimal, boolean, choice, date, email, url or json."""
    is_required: bool
    is_nullable: bool
    description: str
    expects: str
    """Limits and type, in words."""
    choices: tuple[str, ...] = ()
    """JSON texts."""
    value: str = ""
    """The default, or what was entered."""
    problem: str = ""


def fields_of(schema: JsonSchema | None) -> list[Field] | None:
    """Return the fields of an object's schema; None where it has none to offer."""
    if schema is None:
        return None
    definitions = schema.get("$defs", {})
    top = _resolved(schema, definitions)
    properties = top.get("properties")
    if not isinstance(properties, Mapping) or len(properties) > FIELDS_MOST:
        return [] if top.get("type") == "object" and not top.get("additionalProperties") else None
    required = frozenset(top.get("required", ()))
    return [_field(name, part, definitions, name in required) for name, part in properties.items()]


def _resolved(schema: JsonSchema, definitions: JsonSchema) -> JsonSchema:
    for _ in range(10):
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return schema
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        schema = {**definitions.get(reference.rpartition("/")[2], {}), **rest}
    return schema


def _field(name: str, schema: JsonSchema, definitions: JsonSchema, is_required: bool) -> Field:
    part = _resolved(schema, definitions)
    members = [_resolved(member, definitions) for member in part.get("anyOf", ())]
    others = [member for member in members if member.get("type") != "null"]
    is_nullable = len(others) < len(members)
    if is_nullable and len(others) == 1:
        part = {**others[0], **{key: value for key, value in part.items() if key != "anyOf"}}
    kind, choices = _kind(part)
    has_default = "default" in part and part["default"] is not None
    return Field(
        name=name,
        kind=kind,
        is_required=is_required,
        is_nullable=is_nullable,
        description=str(part.get("description", "")),
        expects=_expects(part, kind, is_nullable),
        choices=choices,
        value=_as_text(kind, part["default"]) if has_default else "",
    )


def _kind(part: JsonSchema) -> tuple[str, tuple[str, ...]]:
    options = part.get("enum", [part["const"]] if "const" in part else None)
    if isinstance(options, list):
        return "choice", tuple(json.dumps(option, ensure_ascii=False) for option in options)
    kind = part.get("type")
    if not isinstance(kind, str) or kind not in _INPUTS:
        return "json", ()
    return _FORMATS.get(str(part.get("format")), "text") if kind == "string" else _INPUTS[kind], ()


_LIMITS: Final = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "exclusiveMinimum": "more than {}",
    "exclusiveMaximum": "less than {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "pattern": "matches {}",
}


def _expects(part: JsonSchema, kind: str, is_nullable: bool) -> str:
    type_ = str(part.get("type", "any JSON")) if kind != "choice" else "one of these"
    form = f" ({part['format']})" if "format" in part else ""
    limits = [words.format(part[key]) for key, words in _LIMITS.items() if key in part]
    words = [("JSON: " if kind == "json" else "") + type_ + form, *limits]
    return ", ".join(words) + ("; empty: null" if is_nullable else "")


def _as_text(kind: str, value: object) -> str:
    if kind in ("text", "date", "email", "url") and isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def payload_of(fields: list[Field], form: Form) -> tuple[dict[str, JsonValue], list[Field]]:
    """Return the payload that was entered, and the fields with what was entered; an empty one that is not required is left out."""
    payload: dict[str, JsonValue] = {}
    entered: list[Field] = []
    for field in fields:
        text = form.get(FIELD_PREFIX + field.name)
        entered.append(field._replace(value=text))
        if text == "":
            if field.is_required:
                payload[field.name] = None if field.is_nullable else "" if field.kind == "text" else None
            elif field.is_nullable and field.value == "":
                payload[field.name] = None
            continue
        payload[field.name] = _read(field.kind, text)
    return payload, entered


def _read(kind: str, text: str) -> JsonValue:
    if kind in ("text", "date", "email", "url"):
        return text
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return text
    found: JsonValue = value
    return found


def with_problems(fields: list[Field], problems: tuple[tuple[str, str], ...]) -> tuple[list[Field], list[str]]:
    """Put each problem at its field; return those that belong to none."""
    by_name: dict[str, list[str]] = {}
    names = {field.name for field in fields}
    rest: list[str] = []
    for path, reason in problems:
        top = path.partition(".")[0].partition("[")[0]
        if top in names:
            by_name.setdefault(top, []).append(reason if path == top else f"{path}: {reason}")
        else:
            rest.append(f"{path}: {reason}" if path else reason)
    return [field._replace(problem="; ".join(by_name.get(field.name, ()))) for field in fields], rest
