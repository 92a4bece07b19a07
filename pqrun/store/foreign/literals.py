"""Our statements as other drivers take them: placeholders of their kind, and every argument as text.

As text, because drivers differ in the types that they give to Python's values, while the statements cast each parameter themselves.
"""

import re
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache

__all__ = ["array_literal", "as_text", "parameter_names", "with_colons", "with_percents"]

_PARAMETER = re.compile(r"\$(\d+)")


def parameter_names(count: int) -> list[str]:
    """Name the parameters ``$1`` … of a statement: ``p1`` …."""
    return [f"p{number}" for number in range(1, count + 1)]


@lru_cache(maxsize=64)
def with_percents(sql: str) -> str:
    """Return a statement with ``%(p1)s`` for ``$1``, as psycopg and Django take it."""
    return _PARAMETER.sub(r"%(p\1)s", sql.replace("%", "%%"))


@lru_cache(maxsize=64)
def with_colons(sql: str) -> str:
    """Return a statement with ``:p1`` for ``$1``, as SQLAlchemy's ``text()`` takes it."""
    return _PARAMETER.sub(r":p\1", sql.replace(":", "\\:"))


def as_text(value: object) -> str | None:
    """Return an argument as PostgreSQL reads it: NULL, text, or an array literal. Raises TypeError for what no statement takes."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return array_literal([as_text(item) for item in value])
    raise TypeError(f"no statement takes a {type(value).__name__}")


def array_literal(items: Sequence[str | None]) -> str:
    """Return a one-dimensional array literal; every element that is not NULL is quoted, so that none can be taken for more than text."""
    return "{" + ",".join("NULL" if item is None else _quoted(item) for item in items) + "}"


def _quoted(item: str) -> str:
    return '"' + item.replace("\\", "\\\\").replace('"', '\\"') + '"'
