"""Deduplication keys: templates over payload fields, compiled when a task is declared, and what is stored of a key.

A value stands in a key as its JSON text, text without its quotes and escapes; it is never expanded again. A template
with several placeholders can be read in one way only: in every value each ``%`` and each character that occurs in
the text between placeholders is written as ``%XX``, so that what separates the values cannot come from one of them.
"""

import hashlib
import string
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Final, NoReturn

import msgspec

from pqrun.errors import DeclarationError, DedupeKeyError
from pqrun.job.fields import PayloadField
from pqrun.job.key_text import KeyText, key_text
from pqrun.job.storable import unstorable_reason

__all__ = ["MAX_KEY_BYTES", "DedupeTemplate", "compile_template", "stored_key"]

MAX_KEY_BYTES: Final = 200
"""The longest key that is stored as it is; a longer one is stored as a prefix and its sha256."""

_PREFIX_LENGTH: Final = 33
"""Characters kept of a longer key: at four bytes each, with ``:`` and a sha256, still within the limit."""

_MISSING: Final = msgspec.Raw()
_NAN: Final = frozenset({"nan", "+nan", "-nan", "snan", "-snan"})


@dataclass(frozen=True, slots=True)
class _Placeholder:
    field: PayloadField
    slot: str
    """Its attribute in what the decoder makes; a key of a TypedDict need not be a Python name."""
    text: KeyText
    literal_after: str


@dataclass(frozen=True, slots=True)
class DedupeTemplate:
    """A compiled template; make it with ``compile_template``."""

    text: str
    """As it was declared."""
    fields: tuple[str, ...]
    """The Python names of the fields it reads, in order, each as often as it occurs."""
    _head: str = dataclass_field(repr=False)
    _placeholders: tuple[_Placeholder, ...] = dataclass_field(repr=False)
    _escapes: dict[int, str] = dataclass_field(repr=False, compare=False)
    _decoder: "msgspec.json.Decoder[msgspec.Struct] | None" = dataclass_field(repr=False, compare=False)

    def render(self, payload_json: str) -> str:
        """Return the finished key of a payload, in full length, from the JSON text that is stored.

        Raises:
            DedupeKeyError: naming the field that is None, NaN, left out, or not a single value.
        """
        if self._decoder is None:
            return self._head
        values = self._decoder.decode(payload_json)
        parts = [self._head]
        for placeholder in self._placeholders:
            raw: msgspec.Raw = getattr(values, placeholder.slot)
            parts.append(self._value_text(placeholder, bytes(raw)).translate(self._escapes))
            parts.append(placeholder.literal_after)
        return "".join(parts)

    def _value_text(self, placeholder: _Placeholder, raw: bytes) -> str:
        if raw.startswith(b'"'):
            text = msgspec.json.decode(raw, type=str)
            if placeholder.text.may_be_nan and text.lower() in _NAN:
                self._refuse(placeholder, "is NaN")
            return text
        if not raw:
            self._refuse(placeholder, "is not in the payload")
        if raw == b"null":
            self._refuse(placeholder, "is None")
        if raw.startswith((b"{", b"[")):
            self._refuse(placeholder, "is stored as more than one value")
        text = raw.decode()
        # A dataclass or a Struct may hold 1 in a float field: the same value must give the same key.
        return f"{text}.0" if placeholder.text.is_float and text.lstrip("-").isdigit() else text

    def _refuse(self, placeholder: _Placeholder, reason: str) -> NoReturn:
        raise DedupeKeyError(f"dedupe_key {self.text!r}: field {placeholder.field.name!r} {reason}, so there is no key")


def compile_template(template: str, fields: Sequence[PayloadField], *, where: str) -> DedupeTemplate:
    """Compile a template such as ``"welcome:{user_id}"``; ``{{`` and ``}}`` are braces.

    Args:
        template: text with placeholders that are Python names of fields; without any, the key is always the same.
        fields: the fields of the payload.
        where: names the task in messages.

    Raises:
        DeclarationError: naming the placeholder that is no field, goes into a field, is formatted, or has no stable
            text, or the two between which values could be confused.
    """
    where = f"{where}: dedupe_key {template!r}"
    given: object = template
    if not isinstance(given, str) or not given:
        raise DeclarationError(f"{where}: a template is text that is not empty")
    reason = unstorable_reason(template)
    if reason is not None:
        raise DeclarationError(f"{where}: {reason} cannot be stored in PostgreSQL")
    literals, names = _parsed(template, where)
    known = {field.name: field for field in fields}
    placeholders = tuple(
        _placeholder(name, literal, known, where) for name, literal in zip(names, literals[1:], strict=True)
    )
    between = literals[1:-1]
    for literal, name, following in zip(between, names, names[1:], strict=False):
        if not literal or "%" in literal:
            raise DeclarationError(
                f"{where}: put text without '%' between {{{name}}} and {{{following}}}, or their values can be confused"
            )
    return DedupeTemplate(
        text=template,
        fields=tuple(names),
        _head=literals[0],
        _placeholders=placeholders,
        _escapes={ord(char): _percent(char) for char in {"%", *"".join(between)}} if len(names) > 1 else {},
        _decoder=_decoder(placeholders) if placeholders else None,
    )


def stored_key(key: str) -> str:
    """Return a finished key as it is stored: itself up to 200 bytes of UTF-8, else its first characters, ``:`` and its sha256.

    The function ``stored_key`` of the schema does the same, so that keys given in SQL are equal.

    Raises:
        DedupeKeyError: not text, empty, or with characters that PostgreSQL cannot store.
    """
    if not isinstance(key, str):
        raise DedupeKeyError(f"dedupe_key: expected text, got {type(key).__name__}")
    if not key:
        raise DedupeKeyError("dedupe_key: the key is empty; give None for no key")
    reason = unstorable_reason(key)
    if reason is not None:
        raise DedupeKeyError(f"dedupe_key: {reason} cannot be stored in PostgreSQL")
    encoded = key.encode()
    if len(encoded) <= MAX_KEY_BYTES:
        return str(key)
    return f"{key[:_PREFIX_LENGTH]}:{hashlib.sha256(encoded).hexdigest()}"


def _parsed(template: str, where: str) -> tuple[list[str], list[str]]:
    """Return the names of the placeholders and the literal texts around them, one more than there are names."""
    literals, names = [""], list[str]()
    try:
        pieces = list(string.Formatter().parse(template))
    except ValueError as exc:
        raise DeclarationError(f"{where}: {exc}; write {{{{ and }}}} for braces") from None
    for literal, name, spec, conversion in pieces:
        literals[-1] += literal
        if name is None:
            continue
        if not name:
            raise DeclarationError(f"{where}: a placeholder {{}} without a name; name a field of the payload")
        if spec or conversion:
            raise DeclarationError(
                f"{where}: {{{name}}} has a conversion or format; the JSON text of the field is used"
            )
        names.append(name)
        literals.append("")
    return literals, names


def _placeholder(name: str, literal_after: str, known: dict[str, PayloadField], where: str) -> _Placeholder:
    field = known.get(name)
    if field is None:
        raise DeclarationError(f"{where}: {{{name}}} {_why_unknown(name, known)}")
    if not field.always_stored:
        raise DeclarationError(f"{where}: {{{name}}} can be left out of the stored payload, so it cannot be in a key")
    text = key_text(field.annotation)
    if isinstance(text, str):
        raise DeclarationError(f"{where}: {{{name}}} has no stable text: {text}")
    return _Placeholder(field, f"v{list(known).index(name)}", text, literal_after)


def _why_unknown(name: str, known: dict[str, PayloadField]) -> str:
    if any(char in name for char in ".[]"):
        return "goes into a field; only whole fields can be in a key"
    import difflib  # for a message, and not light

    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f"is not a field of the payload; did you mean {{{close[0]}}}?"
    return f"is not a field of the payload; it has {', '.join(known) or 'none'}"


def _percent(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode())


def _decoder(placeholders: Sequence[_Placeholder]) -> "msgspec.json.Decoder[msgspec.Struct]":
    """Make a decoder that takes the text of just these values out of a payload, and skips the rest."""
    keys = {placeholder.slot: placeholder.field.wire_name for placeholder in placeholders}
    values = msgspec.defstruct("Values", [(slot, msgspec.Raw, _MISSING) for slot in keys], rename=keys)
    return msgspec.json.Decoder(values)
