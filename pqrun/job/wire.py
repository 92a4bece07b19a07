"""Values of one declared type as the JSON text that is stored, and back.

Nothing is stored that does not validate again: a value is dumped, read from that very text, and compared with what was
given. So an instance that was changed behind its validators, a masked secret, a NaN that became null, an alias that
works one way only and a serializer that loses something are all refused while somebody can still mend them.
"""

import json
from collections.abc import Callable, Iterator
from typing import Final, Generic, Self, TypeVar

import msgspec
from pydantic import BaseModel, PydanticUserError, TypeAdapter
from pydantic.dataclasses import is_pydantic_dataclass, rebuild_dataclass

from pqrun.errors import DeclarationError
from pqrun.job.annotation import plain_class, type_name
from pqrun.job.difference import differences, part_names, secret_problems, unstorable_values
from pqrun.job.fields import struct_types, unknown_to_msgspec
from pqrun.job.numbers import expanded_numbers, leaves_numbers_open, struct_leaves_numbers_open
from pqrun.job.reasons import Problems, Refusal, explain
from pqrun.job.sameness import is_plainly_same, is_same, is_same_leaf
from pqrun.job.storable import MAX_JSON_CHARACTERS, child_path, json_problems

__all__ = ["Wire", "pydantic_adapter", "pydantic_wire", "struct_wire"]

T = TypeVar("T")

_STRUCT_ENCODER: Final = msgspec.json.Encoder()


class Wire(Generic[T]):
    """One type's way into storage and back; both ways answer with a ``Refusal`` instead of raising."""

    __slots__ = ("_decode", "_encode", "_encode_field", "_is_open", "_is_same_leaf")

    def __init__(
        self,
        encode: Callable[[T], bytes],
        decode: Callable[[str], T],
        encode_field: Callable[[T, str], object],
        *,
        is_open: bool,
    ) -> None:
        self._encode = encode
        self._decode = decode
        self._encode_field = encode_field
        self._is_open = is_open  # to whole numbers and others
        self._is_same_leaf = is_same_leaf

    def of_results(self) -> Self:
        """Take members of a StrEnum and the like for the text or number that they also are; see ``is_plainly_same``."""
        self._is_same_leaf = is_plainly_same
        return self

    def dump(self, value: T) -> str | Refusal:
        """Return the JSON text of an object that reads back as this value, or what stands against it."""
        try:
            text = self._encode(value).decode()
            if not text.startswith("{"):
                return Refusal((("", f"{type(value).__name__} is dumped to something that is not a JSON object"),))
            if self._is_open:
                text = expanded_numbers(text)
            back = self._decode(text)
            if _is_plainly_storable(text) and is_same(value, back):
                return text
            return self._examined(text, value, back)
        except Exception as exc:  # noqa: BLE001  # a model's own code may raise anything; the caller names the model
            return Refusal(_found(unstorable_values, value) or self._located(value, explain(exc)))

    def load(self, text: str) -> T | Refusal:
        """Return the value of a stored text, or why there is none."""
        try:
            return self._decode(text)
        except Exception as exc:  # noqa: BLE001  # a model's own code may raise anything; the caller names the model
            return Refusal(explain(exc))

    def _located(self, value: T, problems: Problems) -> Problems:
        """Name the fields that cannot be written, where an encoder has not said which, and the secrets among them."""
        found: list[tuple[str, str]] = []
        if not any(path for path, _ in problems):
            for name in part_names(value):
                try:
                    self._encode_field(value, name)
                except Exception as exc:  # noqa: BLE001  # as above
                    found += [(child_path(name, path) if path else name, reason) for path, reason in explain(exc)]
        secrets = dict(_found(secret_problems, value))
        return tuple((path, secrets.get(path, reason)) for path, reason in found or problems)

    def _examined(self, text: str, value: T, back: T) -> str | Refusal:
        """Look at every part of a value."""
        if len(text) > MAX_JSON_CHARACTERS:
            return Refusal((("", f"{len(text)} characters of JSON, more than the {MAX_JSON_CHARACTERS} allowed"),))
        problems = tuple(json_problems(json.loads(text)))
        if not problems:
            problems = tuple(differences(value, back, is_same=self._is_same_leaf))
        return Refusal(problems) if problems else text


def pydantic_adapter(annotation: object, *, where: str) -> TypeAdapter[object]:
    """Make pydantic's adapter of a type; raises ``DeclarationError`` with pydantic's reason if it cannot."""
    try:
        _complete(plain_class(annotation))
        adapter: TypeAdapter[object] = TypeAdapter(annotation)  # type: ignore[arg-type]  # any annotation, known at run time only
        # A class with unresolved names gives an adapter whose validator complains at its first use.
        _ = adapter.validator.validate_json, adapter.serializer.to_json
    except (PydanticUserError, NameError, TypeError, ValueError, AttributeError) as exc:
        reason = (str(exc).splitlines() or [""])[0]
        raise DeclarationError(f"{where}: {type_name(annotation)} cannot be read by pydantic: {reason}") from exc
    return adapter


def _complete(cls: type | None) -> None:
    """Resolve the names that were unknown when a class was defined; raises what names the one that still is."""
    if cls is None:
        return
    if issubclass(cls, BaseModel):
        cls.model_rebuild()
    elif is_pydantic_dataclass(cls):
        rebuild_dataclass(cls)


def pydantic_wire(adapter: TypeAdapter[T], *, by_alias: bool) -> Wire[T]:
    """Make the wire of a type that pydantic validates; ``by_alias`` says which names stand in the JSON."""
    to_json = adapter.serializer.to_json

    def encode(value: T) -> bytes:
        # round_trip leaves out computed fields and writes what can be read again; types are checked by the reading.
        return to_json(value, by_alias=by_alias, round_trip=True, warnings=False)

    def encode_field(value: T, name: str) -> bytes:
        return to_json(value, include={name}, by_alias=by_alias, round_trip=True, warnings=False)

    is_open = leaves_numbers_open(adapter.core_schema)
    return Wire(encode, adapter.validator.validate_json, encode_field, is_open=is_open)


def struct_wire(struct: object, *, where: str) -> Wire[object]:
    """Make the wire of a type that msgspec validates; raises ``DeclarationError`` with msgspec's reason if it cannot."""
    try:
        decoder: msgspec.json.Decoder[object] = msgspec.json.Decoder(struct)
        types = struct_types(struct)
    except (TypeError, NameError, ValueError) as exc:
        reason = (str(exc).splitlines() or [""])[0]
        raise DeclarationError(f"{where}: {type_name(struct)} cannot be read by msgspec: {reason}") from exc
    unknown = unknown_to_msgspec(types)
    if unknown is not None:
        raise DeclarationError(f"{where}: {unknown}; give it a type that msgspec knows, or declare a pydantic model")
    is_open = struct_leaves_numbers_open([info for _, info in types])
    return Wire(_STRUCT_ENCODER.encode, decoder.decode, _encode_struct_field, is_open=is_open)


def _encode_struct_field(struct: object, name: str) -> bytes:
    return _STRUCT_ENCODER.encode(getattr(struct, name))


def _is_plainly_storable(text: str) -> bool:
    """Whether a look at the text is enough: both encoders escape only what is a control character."""
    return len(text) <= MAX_JSON_CHARACTERS and "\\u" not in text and "NaN" not in text and "Infinity" not in text


def _found(look: Callable[[object], Iterator[tuple[str, str]]], value: object) -> Problems:
    try:
        return tuple(look(value))
    except Exception:  # noqa: BLE001  # a value that refers to itself, or raises when it is looked at
        return ()
