"""What PostgreSQL can store: the one rule for all text, JSON and error reports that are written.

A ``text`` or ``jsonb`` value holds neither NUL nor lone surrogates, and ``jsonb`` no NaN and no infinity. Payloads and
results that hold such are refused with the path to it; error reports show it escaped, because they must always
be written.
"""

import json
import math
import re
import traceback
from collections.abc import Iterator, Mapping
from typing import Final

from pqrun.errors import PayloadError
from pqrun.job.numbers import expanded_numbers

__all__ = [
    "MAX_JSON_CHARACTERS",
    "MAX_JSON_DEPTH",
    "check_text",
    "child_path",
    "dump_object",
    "error_summary",
    "error_text",
    "json_problems",
    "one_line",
    "replace_unstorable",
    "unstorable_reason",
]

MAX_JSON_DEPTH: Final = 200
"""How deeply objects and arrays of a payload or result may nest; what reads them stops soon after."""

MAX_JSON_CHARACTERS: Final = 32 * 1024 * 1024
"""The longest JSON text that is accepted; ``jsonb`` ends at 256 MiB and takes up to eight times the text's length."""

_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")
# C0 and C1 controls, line and paragraph separators, and marks that turn the direction of what follows.
_NOT_ON_ONE_LINE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
# Between the tracebacks of one chain; where a text was cut in its middle; before the lines of an exception group.
_CHAINED: Final = re.compile(
    r"^(?:The above exception was the direct cause of the following exception"
    r"|During handling of the above exception, another exception occurred):$",
    re.MULTILINE,
)
_CUT: Final = re.compile(r"… \d+ characters left out …$")
_GROUP_MARGIN: Final = "  | "
_SUMMARY_MAX: Final = 300
_SHORT_ESCAPES: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_MAX_KEY_IN_PATH: Final = 60
_MAX_INT_BITS: Final = 14_000  # below the 4300 digits up to which Python turns an int into text
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"))


def unstorable_reason(text: str) -> str | None:
    """Say what in this text PostgreSQL cannot store, or None if it can store all of it."""
    found = _UNSTORABLE.search(text)
    if found is None:
        return None
    if found.group() == "\x00":
        return "a NUL character (\\x00)"
    return f"a lone surrogate ({_escape(found)})"


def check_text(text: str, where: str) -> str:
    """Return the text as it is, or raise ``PayloadError`` naming ``where`` if PostgreSQL cannot store it."""
    reason = unstorable_reason(text)
    if reason is not None:
        raise PayloadError(f"{where}: {reason} cannot be stored in PostgreSQL", ((where, reason),))
    return text


def replace_unstorable(text: str) -> str:
    r"""Show NUL as ``\x00`` and a lone surrogate as ``\ud83d``; leave everything else as it is."""
    return _UNSTORABLE.sub(_escape, text)


def one_line(text: str) -> str:
    """Escape control characters, so that a record stays one physical line whatever a name holds."""
    return _NOT_ON_ONE_LINE.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    character = found.group()
    if character in _SHORT_ESCAPES:
        return _SHORT_ESCAPES[character]
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def child_path(path: str, key: str | int) -> str:
    """Extend a path by a key (``a.b``) or an index (``a[0]``); long keys are cut, control characters escaped."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    shown = one_line(key)
    if len(shown) > _MAX_KEY_IN_PATH:
        shown = f"{shown[:_MAX_KEY_IN_PATH]}…"
    return f"{path}.{shown}" if path else shown


def dump_object(value: Mapping[str, object], where: str) -> str:
    """Return the JSON text of a low-level payload or result.

    Objects, arrays (lists and tuples), text, numbers, booleans and None, nothing else: a datetime or a UUID must be
    turned into text by whoever knows how it is to be read. Whole numbers stay exact.

    Raises:
        PayloadError: naming ``where`` and the path to what cannot be stored.
    """
    if not isinstance(value, Mapping):
        raise PayloadError(f"{where}: expected a dict, got {type(value).__name__}")
    for path, reason in json_problems(value):
        raise PayloadError(f"{where}: {path or 'the object'}: {reason}", ((path, reason),))
    text = expanded_numbers(_ENCODER.encode(dict(value)))
    if len(text) > MAX_JSON_CHARACTERS:
        raise PayloadError(f"{where}: {len(text)} characters of JSON, more than the {MAX_JSON_CHARACTERS} allowed")
    return text


def json_problems(value: object, path: str = "", depth: int = 1) -> Iterator[tuple[str, str]]:
    """Yield path and reason of everything in a JSON-like value that PostgreSQL cannot store as ``jsonb``."""
    if depth > MAX_JSON_DEPTH:
        yield path, f"nested more than {MAX_JSON_DEPTH} levels deep, or part of itself"
    elif isinstance(value, dict) or (depth == 1 and isinstance(value, Mapping)):
        for key, item in value.items():
            if not isinstance(key, str):
                yield path, f"a key must be text, not {type(key).__name__}"
                continue
            inner = child_path(path, key)
            reason = unstorable_reason(key)
            if reason is not None:
                yield inner, f"the key holds {reason}, which cannot be stored in PostgreSQL"
            yield from json_problems(item, inner, depth + 1)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from json_problems(item, child_path(path, index), depth + 1)
    else:
        reason = _scalar_reason(value)
        if reason is not None:
            yield path, reason


def _scalar_reason(value: object) -> str | None:
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, str):
        reason = unstorable_reason(value)
        return None if reason is None else f"{reason} cannot be stored in PostgreSQL"
    if isinstance(value, int):
        return None if value.bit_length() <= _MAX_INT_BITS else "a whole number of more than 4200 digits"
    if isinstance(value, float):
        return None if math.isfinite(value) else "NaN and infinity cannot be stored as JSON"
    return f"{type(value).__name__} is not JSON: turn it into text, numbers, lists and dicts first"


def error_text(exc: BaseException, *, limit: int = 20_000) -> str:
    """Return the traceback of an exception as text that can be stored, at most ``limit`` characters. Never raises.

    Causes, contexts, notes and the members of a group are in it. What is too long loses its middle: the last lines,
    which hold type and message, stay.
    """
    try:
        pieces = list(traceback.TracebackException.from_exception(exc, compact=True).format())
    except Exception:  # noqa: BLE001  # whatever a hostile exception does, its failure must still be recorded
        pieces = [_last_resort(exc)]
    # A piece begins with the type of its exception: cut in its own middle, it keeps it however long the message is.
    text = "".join(_shortened(piece, limit // 4) for piece in pieces)
    return _shortened(replace_unstorable(text).rstrip("\n"), limit)


def error_summary(text: str) -> str:
    """Return the line of a stored error that names its type and message: the first of the message, where that has several.

    The lines below it, notes included, are left out: they may quote what was refused, as pydantic's do, or say nothing at all.
    """
    section = _CHAINED.split(text)[-1].strip("\n")
    lines = [line for line in section.splitlines() if not _CUT.match(line)]
    margin = _GROUP_MARGIN if any(line.startswith(_GROUP_MARGIN) for line in lines) else ""
    frames = [number for number, line in enumerate(lines) if line.startswith(f'{margin}  File "')]
    for line in lines[frames[-1] + 1 if frames else 0 :]:
        said = line.removeprefix(margin)
        if said and not said[0].isspace() and said.partition(" ")[0] != "Traceback":
            return said[:_SUMMARY_MAX]
    return section[:_SUMMARY_MAX]


def _last_resort(exc: BaseException) -> str:
    try:
        frames = "".join(traceback.format_tb(exc.__traceback__))
    except Exception:  # noqa: BLE001  # the type alone is still worth recording
        frames = ""
    return f"{frames}{type(exc).__qualname__}: <its text could not be read>\n"


def _shortened(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    mark = f"\n… {len(text) - limit} characters left out …\n"
    head = (limit - len(mark)) // 3
    return f"{text[:head]}{mark}{text[len(text) - (limit - len(mark) - head) :]}"
