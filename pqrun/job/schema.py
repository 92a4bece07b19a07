"""JSON Schemas of payloads and results: what is stored, in words that other programs read."""

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias, cast

import msgspec
from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from pqrun.job.annotation import STRUCT_SCHEMA, struct_schema
from pqrun.job.record import JsonObject, JsonValue

__all__ = ["Mode", "nullable", "pydantic_schema", "pydantic_schema_of", "struct_schema_of", "with_defaults"]

Mode: TypeAlias = Literal["validation", "serialization"]
"""What is read, or what is written: they differ where a field has a default."""

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_REFERENCE: Final = "#/$defs/"


def pydantic_schema(adapter: TypeAdapter[Any], *, by_alias: bool, mode: Mode = "validation") -> dict[str, Any]:
    """Return pydantic's own schema, where Structs stand as text under STRUCT_SCHEMA; raises what the user's code raises."""
    from pydantic.json_schema import GenerateJsonSchema  # for workers, checks and tools: what defers does not need it

    class Generate(GenerateJsonSchema):
        def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> dict[str, Any]:  # noqa: ANN401, ARG002  # pydantic's
            return {}

        def emit_warning(self, kind: Any, detail: str) -> None:  # noqa: ANN401  # of defaults that JSON cannot have: they are left out
            pass

    return adapter.json_schema(by_alias=by_alias, mode=mode, schema_generator=Generate)


def pydantic_schema_of(adapter: TypeAdapter[Any], *, by_alias: bool, mode: Mode = "validation") -> JsonObject:
    """Return the whole schema of what an adapter reads or writes; raises what the user's own code raises."""
    schema = pydantic_schema(adapter, by_alias=by_alias, mode=mode)
    return _whole(schema)


def struct_schema_of(struct: object) -> JsonObject:
    """Return the whole schema of a msgspec Struct; raises what the user's own code raises."""
    return _whole(struct_schema(struct))


def with_defaults(schema: JsonObject, defaults: Mapping[str, object]) -> JsonObject:
    """Add the defaults of parameters, where JSON can have them."""
    properties = schema.get("properties")
    if isinstance(properties, dict):
        for name, value in defaults.items():
            field = properties.get(name)
            try:
                default = cast(JsonValue, to_jsonable_python(value))
            except ValueError:  # pydantic's own are ValueErrors
                continue
            if isinstance(field, dict):
                properties[name] = field | {"default": default}
    return schema


def nullable(schema: JsonObject) -> JsonObject:
    """Return the schema of such an object, or null."""
    shared: JsonObject = {key: schema[key] for key in ("$schema", "$defs") if key in schema}
    inner: JsonObject = {key: value for key, value in schema.items() if key not in shared}
    return {**shared, "anyOf": [inner, {"type": "null"}]}


def _whole(schema: Mapping[str, Any]) -> JsonObject:
    """Put the schemas of Structs where they belong, and their definitions among the others."""
    gathered = _Gathered(dict(schema.get("$defs", {})))
    body = gathered.placed({key: value for key, value in schema.items() if key != "$defs"})
    # A Struct alone is a reference to its definition: tools that look for properties find them at the top.
    target = gathered.definitions.get(str(body.get("$ref", "")).removeprefix(_REFERENCE))
    if isinstance(target, dict) and set(body) == {"$ref"}:
        body = dict(target)
    definitions = gathered.used(body)
    return {"$schema": _DIALECT, **body, **({"$defs": definitions} if definitions else {})}


class _Gathered:
    """The definitions of one schema, those of the Structs in it included."""

    def __init__(self, definitions: dict[str, Any]) -> None:
        self.definitions: dict[str, JsonValue] = {}
        for name, definition in definitions.items():
            self.definitions[name] = self.placed(definition)

    def placed(self, part: Any) -> Any:  # noqa: ANN401  # a part of a JSON Schema
        """Return it with each Struct's text replaced by its schema."""
        if isinstance(part, list):
            return [self.placed(item) for item in part]
        if not isinstance(part, dict):
            return part
        if isinstance(text := part.get(STRUCT_SCHEMA), str):
            return {**self._struct(msgspec.json.decode(text)), **{k: v for k, v in part.items() if k != STRUCT_SCHEMA}}
        return {key: self.placed(value) for key, value in part.items()}

    def _struct(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Take over the definitions, under other names where those are taken by something else."""
        definitions: dict[str, Any] = schema.pop("$defs", {})
        names = {name: self._free(name, definition) for name, definition in definitions.items()}
        for name, definition in definitions.items():
            self.definitions[names[name]] = _renamed(definition, names)
        renamed: dict[str, Any] = _renamed(schema, names)
        return renamed

    def _free(self, name: str, definition: object) -> str:
        free, number = name, 1
        while free in self.definitions and self.definitions[free] != definition:
            number += 1
            free = f"{name}_{number}"
        return free

    def used(self, body: object) -> dict[str, JsonValue]:
        """Return the definitions that the body refers to, by whatever way."""
        pending, found = [body], set[str]()
        while pending:
            part = pending.pop()
            if isinstance(part, list):
                pending += part
            elif isinstance(part, dict):
                name = str(part.get("$ref", "")).removeprefix(_REFERENCE)
                if name in self.definitions and name not in found:
                    found.add(name)
                    pending.append(self.definitions[name])
                pending += part.values()
        return {name: definition for name, definition in self.definitions.items() if name in found}


def _renamed(part: Any, names: Mapping[str, str]) -> Any:  # noqa: ANN401  # a part of a JSON Schema
    if isinstance(part, list):
        return [_renamed(item, names) for item in part]
    if not isinstance(part, dict):
        return part
    renamed = {key: _renamed(value, names) for key, value in part.items()}
    if isinstance(reference := part.get("$ref"), str):
        name = reference.removeprefix(_REFERENCE)
        renamed["$ref"] = f"{_REFERENCE}{names.get(name, name)}"
    return renamed
