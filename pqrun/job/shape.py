"""The shape of a stored payload: its fields by path, each with its type and whether it must be there; and what has changed in one.

It is read from the JSON Schema that pydantic or msgspec makes of the model, and keeps what says which payloads can be read: names, types,
requiredness. Titles, defaults, limits and validators are left out: what those refuse only the payloads themselves can tell.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec
from pydantic import TypeAdapter

from pqrun.job.annotation import STRUCT_SCHEMA, struct_schema
from pqrun.job.schema import pydantic_schema

__all__ = ["Field", "FieldChange", "Shape", "pydantic_shape_of", "shape_changes", "struct_shape_of"]

_Schema: TypeAlias = Mapping[str, Any]  # a part of a JSON Schema

_REFERENCE: Final = "#/$defs/"

ChangeKind: TypeAlias = Literal["added", "removed", "type", "required", "optional"]


class Field(msgspec.Struct, frozen=True):
    """What a shape says of one field."""

    type: str
    """In the words of JSON Schema, such as ``string (date-time) | null``."""
    required: bool


Shape: TypeAlias = dict[str, Field]
"""By path: ``user_id``, ``address.street``, ``lines[].price``, ``tags{}`` (the values of a mapping)."""


class FieldChange(msgspec.Struct, frozen=True, kw_only=True):
    """How one field of a task's payload differs from what was stored before."""

    field: str
    """Its path: ``address.street``, ``lines[].price``."""
    change: ChangeKind
    before: str | None
    """The type that it had; None for a new one."""
    after: str | None
    """The type that it has; None where it is gone."""
    is_additive: bool
    """Whether code of before and after read each other's payloads: a new field with a default, or one that got a default."""


def pydantic_shape_of(adapter: TypeAdapter[object], *, by_alias: bool) -> Shape | None:
    """Return the shape of what an adapter reads; None where the user's own code does not give its schema."""
    try:
        schema = pydantic_schema(adapter, by_alias=by_alias)
    except Exception:  # noqa: BLE001  # the border to user code
        return None
    return _shape_of(schema)


def struct_shape_of(struct: object) -> Shape | None:
    """Return the shape of a msgspec Struct; None where the user's own code does not give its schema."""
    try:
        schema = struct_schema(struct)
    except Exception:  # noqa: BLE001  # the border to user code
        return None
    return _shape_of(schema)


def _shape_of(schema: _Schema) -> Shape:
    definitions = dict(schema.get("$defs", {}))
    for name, definition in _struct_definitions(schema):
        definitions.setdefault(name, definition)
    return dict(_Reader(definitions).fields("", schema, ()))


def _struct_definitions(part: object) -> Iterator[tuple[str, _Schema]]:
    """Yield the definitions of Structs that stand in pydantic's schema as text, each as a schema of its own."""
    if isinstance(part, Mapping):
        if isinstance(text := part.get(STRUCT_SCHEMA), str):
            yield from msgspec.json.decode(text).get("$defs", {}).items()
        part = list(part.values())
    if isinstance(part, list):
        for inner in part:
            yield from _struct_definitions(inner)


class _Reader:
    """Walks one schema; ``_open`` are the definitions that a path stands in, so that one which refers to itself ends."""

    def __init__(self, definitions: Mapping[str, _Schema]) -> None:
        self._definitions = definitions

    def fields(self, path: str, schema: _Schema, open_names: tuple[str, ...]) -> Iterator[tuple[str, Field]]:
        """Yield every field below a path."""
        for name, member in self._members(schema):
            if name is not None and name in open_names:
                continue
            names = open_names if name is None else (*open_names, name)
            here = self._labelled(path, schema, name)
            required = frozenset(member.get("required", ()))
            for key, inner in member.get("properties", {}).items():
                child = f"{here}.{key}" if here else key
                yield child, Field(self._type_of(inner), key in required)
                yield from self.fields(child, inner, names)
            for suffix, inner in _containers(member):
                yield f"{here}{suffix}", Field(self._type_of(inner), True)
                yield from self.fields(f"{here}{suffix}", inner, names)

    def _labelled(self, path: str, schema: _Schema, name: str | None) -> str:
        """Tell the members of a union of objects apart."""
        objects = [other for other, member in self._members(schema) if other and "properties" in member]
        return f"{path}<{name}>" if len(objects) > 1 and name in objects else path

    def _type_of(self, schema: _Schema) -> str:
        members = list(self._members(schema))
        objects = sum("properties" in member for _, member in members)
        texts = {
            name if objects > 1 and name is not None and "properties" in member else _scalar(member)
            for name, member in members
        }
        return " | ".join(sorted(texts, key=lambda text: (text == "null", text)))

    def _members(self, schema: _Schema) -> Iterator[tuple[str | None, _Schema]]:
        """Yield what a schema may be: itself, or the members of a union, each with the name of its definition."""
        pending: list[tuple[str | None, _Schema]] = [(None, schema)]
        seen: set[str] = set()
        while pending:
            name, one = pending.pop(0)
            reference = one.get("$ref")
            union = (
                one.get("anyOf") or one.get("oneOf") or (one.get("allOf") if len(one.get("allOf", ())) == 1 else None)
            )
            if STRUCT_SCHEMA in one:
                pending.append((None, msgspec.json.decode(one[STRUCT_SCHEMA])))
            elif isinstance(reference, str):
                target = reference.removeprefix(_REFERENCE)
                if target not in seen:
                    seen.add(target)
                    pending.append((target, self._definitions.get(target, {})))
            elif union:
                pending += [(None, member) for member in union]
            else:
                yield name, one


def _containers(schema: _Schema) -> Iterator[tuple[str, _Schema]]:
    if isinstance(items := schema.get("items"), Mapping):
        yield "[]", items
    for index, item in enumerate(schema.get("prefixItems", ())):
        yield f"[{index}]", item
    if isinstance(values := schema.get("additionalProperties"), Mapping) and values:
        yield "{}", values


def _scalar(schema: _Schema) -> str:
    if "const" in schema:
        return msgspec.json.encode(schema["const"]).decode()
    if "enum" in schema:
        return " | ".join(sorted(msgspec.json.encode(value).decode() for value in schema["enum"]))
    kinds = schema.get("type", "any")
    kind = kinds if isinstance(kinds, str) else " | ".join(sorted(kinds))
    form = schema.get("format") or schema.get("contentEncoding")
    return f"{kind} ({form})" if form else kind


def shape_changes(before: Shape, after: Shape) -> tuple[FieldChange, ...]:
    """Return what differs, by path; of a field that came or went with all below it only the field itself."""
    changes: list[FieldChange] = []
    for path in sorted(before.keys() | after.keys()):
        old, new = before.get(path), after.get(path)
        if old is None and new is not None:
            if not _is_below(path, after.keys() - before.keys()):
                changes.append(_change(path, "added", None, new.type, is_additive=not new.required))
        elif new is None and old is not None:
            if not _is_below(path, before.keys() - after.keys()):
                changes.append(_change(path, "removed", old.type, None, is_additive=False))
        elif old is not None and new is not None and old.type != new.type:
            changes.append(_change(path, "type", old.type, new.type, is_additive=False))
        elif old is not None and new is not None and old.required != new.required:
            kind: ChangeKind = "required" if new.required else "optional"
            changes.append(_change(path, kind, old.type, new.type, is_additive=not new.required))
    return tuple(changes)


def _change(field: str, kind: ChangeKind, before: str | None, after: str | None, *, is_additive: bool) -> FieldChange:
    return FieldChange(field=field, change=kind, before=before, after=after, is_additive=is_additive)


def _is_below(path: str, others: set[str]) -> bool:
    """Whether one of the others holds this field."""
    return any(path.startswith((f"{other}.", f"{other}[", f"{other}{{", f"{other}<")) for other in others)
