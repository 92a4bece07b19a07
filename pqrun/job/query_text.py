"""The text of a query, read from left to right: words, keys and values. What they mean is said in ``query``."""

import json
import re
from typing import Final, NoReturn

import msgspec

from pqrun.errors import QueryError
from pqrun.job.record import JsonValue

__all__ = ["Key", "QueryText", "Word", "decoded", "key_part", "quoted"]

_SPACE: Final = re.compile(r"\s*")
_WORD: Final = re.compile(r"\S+")
_ITEM: Final = re.compile(r'[^\s,"]+')
_BARE_PART: Final = re.compile(r'[^\s.:,"]+')
_STRING: Final = r'"(?:[^"\\]|\\.)*"'
_PARTS: Final = re.compile(rf'\.([^\s.:,"]+|{_STRING})', re.DOTALL)
_KEY: Final = re.compile(rf'([A-Za-z_]\w*)((?:\.(?:[^\s.:,"]+|{_STRING}))*):', re.DOTALL)


def _no_constant(_name: str) -> NoReturn:
    raise ValueError  # NaN and infinity are no JSON


_DECODER: Final = json.JSONDecoder(strict=False, parse_constant=_no_constant)


class Word(msgspec.Struct, frozen=True):
    """A word alone, or one value of a key."""

    text: str
    is_quoted: bool
    at: int
    """Where it begins, from 0."""
    is_pattern: bool = False
    """A ``*`` stands outside of quotes."""


class Key(msgspec.Struct, frozen=True):
    """What stands before a colon."""

    name: str
    path: tuple[str, ...]
    """What follows the name after dots."""
    text: str
    """All of it as it is written, without the colon."""
    at: int


class QueryText:
    """A query and how far it is read; raises QueryError, which tells where. No message holds a value."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def is_at_end(self) -> bool:
        """Pass white space, and say whether nothing is left."""
        found = _SPACE.match(self.text, self.at)
        self.at = found.end() if found else self.at
        return self.at == len(self.text)

    def key(self) -> Key | None:
        """Read a key and its colon; None where a word alone stands."""
        found = _KEY.match(self.text, self.at)
        if found is None:
            return None
        at, self.at = self.at, found.end()
        parts = [self._part(part, at) for part in _PARTS.findall(found[2])]
        return Key(found[1], tuple(parts), found[0][:-1], at)

    def word(self) -> Word:
        """Read a word alone, up to a space, or quoted."""
        if self.text.startswith('"', self.at):
            word = self._string()
            self._end("expected a space behind the quotes")
            return word
        return self._match(_WORD, "expected a word")

    def several(self, key: Key) -> list[Word]:
        """Read values with commas between."""
        values = [self._item(f"{key.text}: expected a value behind the colon")]
        while self.text.startswith(",", self.at):
            self.at += 1
            values.append(self._item(f"{key.text}: expected a value behind the comma"))
        return values

    def one(self, key: Key) -> Word:
        """Read the only value, up to a space, or quoted."""
        if self.text.startswith('"', self.at):
            value = self._string()
            self._end(f"{key.text}: expected a space behind the quotes; it takes one value")
            return value
        return self._match(_WORD, f"{key.text}: expected a value behind the colon")

    def json(self, key: Key) -> JsonValue:
        """Read the only value as JSON, or else as text."""
        if not self.text.startswith(("{", "["), self.at):
            value = self.one(key)
            return value.text if value.is_quoted else decoded(value.text)
        at = self.at
        try:
            found: tuple[JsonValue, int] = _DECODER.raw_decode(self.text, at)
        except (ValueError, RecursionError):
            pass
        else:
            self.at = found[1]
            self._end(f"{key.text}: expected a space behind the JSON")
            return found[0]
        raise self.error(f"{key.text}: expected JSON, as it begins; text that begins so is quoted", at)

    def error(self, reason: str, at: int | None = None) -> QueryError:
        """Return the error about what stands here, or there."""
        return QueryError(reason, (self.at if at is None else at) + 1)

    def _item(self, otherwise: str) -> Word:
        """Read what stands in quotes and what does not, up to a comma or a space."""
        pieces: list[Word] = []
        while self.at < len(self.text) and self.text[self.at] != "," and not self.text[self.at].isspace():
            is_string = self.text.startswith('"', self.at)
            pieces.append(self._string() if is_string else self._match(_ITEM, otherwise))
        if not pieces:
            raise self.error(otherwise)
        stars = {piece.is_quoted for piece in pieces if "*" in piece.text}
        if len(stars) > 1:
            raise self.error("a * in quotes and one outside of them cannot stand in one name", pieces[0].at)
        text = "".join(piece.text for piece in pieces)
        return Word(text, any(piece.is_quoted for piece in pieces), pieces[0].at, is_pattern=stars == {False})

    def _match(self, pattern: re.Pattern[str], otherwise: str) -> Word:
        found = pattern.match(self.text, self.at)
        if found is None:
            raise self.error(otherwise)
        at, self.at = self.at, found.end()
        return Word(found[0], is_quoted=False, at=at)

    def _string(self) -> Word:
        at = self.at
        text, self.at = self._unquoted(at)
        return Word(text, is_quoted=True, at=at)

    def _unquoted(self, at: int) -> tuple[str, int]:
        try:
            found: tuple[str, int] = _DECODER.raw_decode(self.text, at)
        except ValueError:
            pass
        else:
            return found
        raise self.error(
            'these quotes do not end, or hold a \\ that JSON does not know; a quote in text is written \\"', at
        )

    def _part(self, part: str, at: int) -> str:
        if not part.startswith('"'):
            return part
        try:
            text: str = _DECODER.decode(part)
        except ValueError:
            pass
        else:
            return text
        raise self.error("a key in quotes holds a \\ that JSON does not know", at)

    def _end(self, otherwise: str) -> None:
        if self.at < len(self.text) and not self.text[self.at].isspace():
            raise self.error(otherwise)


def decoded(text: str) -> JsonValue:
    """Return what the text is as JSON, or else the text itself."""
    try:
        found: JsonValue = _DECODER.decode(text)
    except (ValueError, RecursionError):
        return text
    return found


def quoted(text: str) -> str:
    """Return the text in quotes."""
    return json.dumps(text, ensure_ascii=False)


def key_part(text: str) -> str:
    """Return a part of a key's path as it is written."""
    return text if _BARE_PART.fullmatch(text) else quoted(text)
