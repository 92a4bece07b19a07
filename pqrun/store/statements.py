"""The SQL files of ``store/sql`` and ``store/migrations``, with the schema's name written in.

The files are valid in psql for the default schema; three comment markers say where the name stands: ``/*$schema*/pqrun`` (an
identifier), ``/*$literal*/'pqrun.name'`` (an identifier inside a text literal), ``/*$channel*/'pqrun'`` (the name as a text literal:
the notification channel).
"""

import re
from functools import cache

from pqrun.errors import ConfigurationError

__all__ = ["SCHEMA_NAME_MAX_BYTES", "Statements", "check_schema_name", "quote_identifier", "render"]

SCHEMA_NAME_MAX_BYTES = 48
"""PostgreSQL cuts names at 63 bytes in silence; the rest is for the suffixes of our channels."""

_SCHEMA = re.compile(r"/\*\$schema\*/pqrun\b")
_LITERAL = re.compile(r"/\*\$literal\*/'pqrun([^']*)'")
_COMMENT = re.compile(r"--[^\n]*")
_CHANNEL = re.compile(r"/\*\$channel\*/'pqrun([^']*)'")


def check_schema_name(schema: str) -> str:
    """Return the name unchanged, or raise ConfigurationError: empty, too long, control characters, ``$`` or the system's."""
    if not schema or len(schema.encode("utf-8", "replace")) > SCHEMA_NAME_MAX_BYTES:
        raise ConfigurationError(
            f"schema= must be a name of 1 to {SCHEMA_NAME_MAX_BYTES} bytes, got {len(schema)} characters"
        )
    if "$" in schema or not schema.isprintable() or schema.startswith("pg_"):
        raise ConfigurationError(f"schema={schema!r} cannot be used: no control characters, no '$', and not 'pg_…'")
    return schema


def quote_identifier(name: str) -> str:
    """Return the name as a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def _quote_literal(text: str) -> str:
    escaped = text.replace("'", "''")
    return f" E'{escaped.replace(chr(92), chr(92) * 2)}'" if "\\" in text else f"'{escaped}'"


def render(template: str, schema: str) -> str:
    """Write the schema's name into the markers of a template."""
    identifier = quote_identifier(schema)
    sql = _SCHEMA.sub(lambda _: identifier, template)
    sql = _LITERAL.sub(lambda m: _quote_literal(identifier + m[1]), sql)
    return _CHANNEL.sub(lambda m: _quote_literal(schema + m[1]), sql)


@cache
def _templates() -> dict[str, str]:
    from importlib.resources import files  # a third of what our own modules cost; needed when a store is made

    folder = files("pqrun.store") / "sql"
    return {
        entry.name.removesuffix(".sql"): entry.read_text("utf-8")
        for entry in folder.iterdir()
        if entry.name.endswith(".sql")
    }


class Statements:
    """Every statement by the name of its file, for one schema."""

    def __init__(self, schema: str) -> None:
        self.schema = check_schema_name(schema)
        self._bare: dict[str, str] = {}  # made when first asked for: few have a use for them
        self._texts = {name: render(template, schema) for name, template in _templates().items()}

    def __getitem__(self, name: str) -> str:
        return self._texts[name]

    def bare(self, name: str) -> str:
        """Return a statement without its comments, which name parameters: other drivers would take those for places to fill."""
        text = self._bare.get(name)
        if text is None:
            # Before the schema's name is written in, which may look like a comment.
            text = self._bare[name] = render(_COMMENT.sub("", _templates()[name]), self.schema)
        return text

    def names(self) -> list[str]:
        """Return the names of all statements, sorted."""
        return sorted(self._texts)
