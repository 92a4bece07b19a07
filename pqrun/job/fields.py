"""The fields of payload models: what each is called in Python and in the stored JSON, and how a caller may name it."""

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import msgspec
from pydantic import BaseModel, TypeAdapter

from pqrun.errors import DeclarationError
from pqrun.job.annotation import plain_class, type_name
from pqrun.job.storable import child_path

__all__ = [
    "PayloadField",
    "PydanticShape",
    "accepted_keywords",
    "pydantic_shape",
    "struct_fields",
    "unknown_to_msgspec",
]

_Schema: TypeAlias = Mapping[str, Any]  # a part of pydantic's core schema: a tree of dicts, told apart by "type"

_STATED_EXTRAS: Final = frozenset({"allow", "ignore"})


class PayloadField(msgspec.Struct, frozen=True, kw_only=True):
    """One field of a payload."""

    name: str
    """The name in Python."""
    wire_name: str
    """The key in the stored JSON."""
    annotation: object
    required: bool
    """Whether it has no default."""
    always_stored: bool = True
    """False for a field that may be left out of the JSON although it has a value."""


class PydanticShape(msgspec.Struct, frozen=True, kw_only=True):
    """What pydantic's schema of a model says about its fields."""

    fields: tuple[PayloadField, ...]
    """With the wire names that ``by_alias`` gives."""
    by_alias: bool
    """Whether aliases stand in the JSON; else names do."""
    aliases_read_back: bool
    names_read_back: bool


def pydantic_shape(model: object, adapter: TypeAdapter[object], *, where: str) -> PydanticShape:
    """Read the fields of a model and decide which of their names stand in the JSON.

    Raises:
        DeclarationError: the model is no object of fields, or a field cannot be read back from what is written.
    """
    schemas = _field_schemas(adapter.core_schema, where)
    config = _config(model)
    for name, schema in schemas.items():
        if schema.get("init_only"):
            raise DeclarationError(f"{where}: {name} is an InitVar: it is not kept, so it cannot be stored")
        if schema.get("serialization_exclude") and _is_required(schema):
            raise DeclarationError(f"{where}: {name} is required but excluded from what is stored")
    if once := next((name for name, schema in schemas.items() if _is_read_once(schema)), None):
        raise DeclarationError(f"{where}: {once} is an iterator, which can be read only once; declare it as a list")
    if _is_read_once(adapter.core_schema):
        raise DeclarationError(f"{where}: it holds an Iterable, which can be read only once; declare it as a list")
    keys = {name: _read_keys(name, schema, config) for name, schema in schemas.items()}
    aliases = all(_alias(name, schema) in keys[name] for name, schema in schemas.items())
    names = all(name in keys[name] for name in schemas)
    if not aliases and not names:
        broken = next(name for name, schema in schemas.items() if _alias(name, schema) not in keys[name])
        raise DeclarationError(
            f"{where}: {broken} is written under a name by which it is not read; "
            "give it the same validation_alias and serialization_alias, or set validate_by_name"
        )
    hints = _annotations(model)
    fields = tuple(
        PayloadField(
            name=name,
            wire_name=_alias(name, schema) if aliases else name,
            annotation=hints.get(name, object),
            required=_is_required(schema),
            always_stored=not schema.get("serialization_exclude", False),
        )
        for name, schema in schemas.items()
    )
    return PydanticShape(fields=fields, by_alias=aliases, aliases_read_back=aliases, names_read_back=names)


def struct_fields(struct: object) -> tuple[PayloadField, ...]:
    """Read the fields of a msgspec Struct."""
    cls = plain_class(struct)
    omits_defaults = bool(cls is not None and issubclass(cls, msgspec.Struct) and cls.__struct_config__.omit_defaults)
    return tuple(
        PayloadField(
            name=field.name,
            wire_name=field.encode_name,
            annotation=field.type,
            required=field.required,
            always_stored=field.required or not omits_defaults,
        )
        for field in msgspec.structs.fields(struct)  # type: ignore[arg-type]  # a generic alias is taken too
    )


def struct_types(struct: object) -> list[tuple[str, msgspec.inspect.Type]]:
    """Return every type inside of a Struct with its path, in the words of msgspec; recursive ones once."""
    open_types: list[tuple[str, msgspec.inspect.Type]] = [("", msgspec.inspect.type_info(struct))]
    found: list[tuple[str, msgspec.inspect.Type]] = []
    seen: set[object] = set()
    while open_types:
        path, info = open_types.pop()
        found.append((path, info))
        if isinstance(info, msgspec.inspect.StructType | msgspec.inspect.DataclassType | msgspec.inspect.TypedDictType):
            if info.cls not in seen:
                seen.add(info.cls)
                open_types += [(child_path(path, field.name), field.type) for field in info.fields]
            continue
        for name in info.__struct_fields__:
            parts: object = getattr(info, name)
            several = parts if isinstance(parts, tuple) else (parts,)
            open_types += [(path, part) for part in several if isinstance(part, msgspec.inspect.Type)]
    return found


def unknown_to_msgspec(types: list[tuple[str, msgspec.inspect.Type]]) -> str | None:
    """Say which of these types msgspec can neither write nor read as it was, or None if it knows them all."""
    for path, info in types:
        if isinstance(info, msgspec.inspect.CustomType):
            return f"{path}: msgspec does not know {type_name(info.cls)}"
        if isinstance(info, msgspec.inspect.RawType):
            return f"{path}: msgspec.Raw does not come back as it was, because jsonb prints it anew"
    return None


def accepted_keywords(model: type) -> Mapping[str, str] | None:
    """Return the keywords that a pydantic model or dataclass reads, each with the field that it fills.

    None where that cannot be known or anything goes: the model itself states ``extra``, or code of its own sees the
    input first.
    """
    config = _config(model)
    if config.get("extra") in _STATED_EXTRAS:
        return None
    keywords: dict[str, str] = {}
    for name, schema in _field_schemas(TypeAdapter(model).core_schema, model.__name__).items():
        for key in _read_keys(name, schema, config, whole=False):
            keywords[key] = name
    return keywords


def _field_schemas(schema: Any, where: str) -> dict[str, _Schema]:  # noqa: ANN401  # see _Schema
    """Descend to the fields through validators and definitions."""
    definitions: dict[str, _Schema] = {}
    current: _Schema = schema
    while True:
        kind = current["type"]
        if kind in {"model-fields", "typed-dict"}:
            return dict(current["fields"])
        if kind == "dataclass-args":
            return {field["name"]: field for field in current["fields"]}
        if kind == "definitions":
            definitions = {item["ref"]: item for item in current["definitions"]}
        if kind == "definition-ref":
            current = definitions[current["schema_ref"]]
        elif "schema" in current:
            current = current["schema"]
        else:
            raise DeclarationError(f"{where}: its schema is {kind!r}, not an object with fields")


def _is_read_once(schema: object) -> bool:
    """Whether pydantic makes an iterator of the value, or of something inside of it."""
    if isinstance(schema, Mapping):
        if schema.get("serialization_exclude"):
            return False
        return schema.get("type") == "generator" or any(
            _is_read_once(item) for key, item in schema.items() if key not in {"metadata", "serialization"}
        )
    return isinstance(schema, list | tuple) and any(map(_is_read_once, schema))


def _config(model: object) -> Mapping[str, object]:
    cls = plain_class(model)
    config: Mapping[str, object] = getattr(cls, "model_config", None) or getattr(cls, "__pydantic_config__", None) or {}
    return config


def _alias(name: str, schema: _Schema) -> str:
    return str(schema.get("serialization_alias", name))


def _read_keys(name: str, schema: _Schema, config: Mapping[str, object], *, whole: bool = True) -> frozenset[str]:
    """Return the keys under which a field is read; with ``whole``, only those that hold nothing but this field."""
    alias = schema.get("validation_alias")
    if alias is None:
        return frozenset({name})
    keys: set[str] = set()
    if config.get("validate_by_alias", True) is not False:
        paths = [[alias]] if isinstance(alias, str) else alias
        if paths and isinstance(paths[0], str):  # a single AliasPath
            paths = [paths]
        keys.update(str(path[0]) for path in paths if len(path) == 1 or not whole)
    if config.get("validate_by_name") or config.get("populate_by_name"):
        keys.add(name)
    return frozenset(keys)


def _is_required(schema: _Schema) -> bool:
    if "required" in schema:
        return bool(schema["required"])
    return bool(schema["schema"]["type"] != "default")


def _annotations(model: object) -> Mapping[str, object]:
    cls = plain_class(model)
    if cls is None:
        return {}
    if issubclass(cls, BaseModel):
        return {name: field.annotation for name, field in cls.model_fields.items()}
    known = getattr(cls, "__pydantic_fields__", None)
    if known is not None and dataclasses.is_dataclass(cls):
        return {name: field.annotation for name, field in known.items()}
    try:
        return typing.get_type_hints(cls, include_extras=True)
    except (NameError, TypeError):  # names of the function in which the class was defined
        return {}
