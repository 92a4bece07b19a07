"""Making a payload from what a caller gave, and saying what was wrong with it.

Callers are held to the names that the model declares, because a misspelt one that is dropped in silence is found
weeks later. Readers of stored payloads are not: a newer producer may know more fields.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias, TypeVar

from pydantic import BaseModel, ValidationError

from pqrun.job.fields import accepted_keywords
from pqrun.job.reasons import Problems, Refusal, explain
from pqrun.job.storable import child_path, one_line

__all__ = ["Arguments", "Construct", "call_problems", "dropped_keys", "plain_constructor", "strict_constructor"]

M = TypeVar("M")

Arguments: TypeAlias = tuple[object, ...]
Construct: TypeAlias = Callable[[Arguments, Mapping[str, object]], M | Refusal]

_CONTAINERS = (dict, list, tuple)
_SCALARS = frozenset({bool, float, int, str, type(None)})


def plain_constructor(model: Callable[..., M]) -> Construct[M]:
    """Call a constructor that refuses unknown keywords itself."""

    def construct(args: Arguments, kwargs: Mapping[str, object]) -> M | Refusal:
        try:
            return model(*args, **kwargs)
        except Exception as exc:  # noqa: BLE001  # a model's own code may raise anything; the caller names the model
            return Refusal(call_problems(model, args, kwargs, exc))

    return construct


def strict_constructor(model: Callable[..., M], keywords: frozenset[str] | None) -> Construct[M]:
    """Call a constructor of pydantic's, which would drop unknown keywords; None accepts any."""
    construct_plainly = plain_constructor(model)

    def construct(args: Arguments, kwargs: Mapping[str, object]) -> M | Refusal:
        if keywords is not None and not kwargs.keys() <= keywords:
            return Refusal(tuple(_unknown(sorted(kwargs.keys() - keywords), keywords)))
        value = construct_plainly(args, kwargs)
        # The rule, and a question that takes a tenth of the time of the next.
        if _SCALARS.issuperset(map(type, kwargs.values())):
            return value
        if isinstance(value, Refusal) or not any(isinstance(item, _CONTAINERS) for item in kwargs.values()):
            return value
        dropped = tuple(dropped_keys(kwargs, value))
        return Refusal(dropped) if dropped else value

    return construct


def call_problems(
    function: Callable[..., object], args: Arguments, kwargs: Mapping[str, object], exc: Exception
) -> Problems:
    """Explain a failed call: by its arguments where they do not fit, else by what was raised."""
    if isinstance(exc, TypeError) and not isinstance(exc, ValidationError):
        try:
            inspect.signature(function).bind(*args, **kwargs)
        except TypeError as mismatch:  # names arguments, never their values
            return (("", one_line(str(mismatch))),)
        except ValueError:  # a constructor without a signature
            pass
    return explain(exc)


def dropped_keys(given: object, built: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the keys of dicts, at any depth of what was given, that validation dropped in silence."""
    if isinstance(given, Mapping):
        if isinstance(built, Mapping):
            yield from _dropped_from_mapping(given, built, path)
        elif isinstance(built, BaseModel) or hasattr(type(built), "__dataclass_fields__"):
            yield from _dropped_from_model(given, built, path)
    elif isinstance(given, list | tuple) and isinstance(built, list | tuple) and len(given) == len(built):
        for index, (item, made) in enumerate(zip(given, built, strict=True)):
            if isinstance(item, _CONTAINERS):
                yield from dropped_keys(item, made, child_path(path, index))


def _dropped_from_mapping(
    given: Mapping[object, object], built: Mapping[object, object], path: str
) -> Iterator[tuple[str, str]]:
    # Keys may change in validation ("1" to 1); they have been dropped only where there are fewer.
    lost = len(built) < len(given)
    for key, item in given.items():
        if key in built:
            yield from dropped_keys(item, built[key], child_path(path, str(key)))
        elif lost and isinstance(key, str):
            yield child_path(path, key), "unknown field"


def _dropped_from_model(given: Mapping[object, object], built: object, path: str) -> Iterator[tuple[str, str]]:
    keywords = None if _sees_input_first(type(built)) else accepted_keywords(type(built))
    if keywords is None:
        return
    for key, item in given.items():
        if key in keywords:
            name = keywords[str(key)]
            yield from dropped_keys(item, getattr(built, name, None), child_path(path, str(key)))
        else:
            yield from _unknown([str(key)], keywords, path)


def _sees_input_first(model: type) -> bool:
    """Whether a validator of the model may have read the input under other keys."""
    decorators = getattr(model, "__pydantic_decorators__", None)
    validators = decorators.model_validators.values() if decorators is not None else ()
    return any(validator.info.mode in {"before", "wrap"} for validator in validators)


def _unknown(keys: Iterable[str], known: Iterable[str], path: str = "") -> Iterator[tuple[str, str]]:
    import difflib  # for a message, and not light

    candidates = list(known)
    for key in keys:
        close = difflib.get_close_matches(key, candidates, n=1)
        yield child_path(path, key), f"unknown field; did you mean {close[0]}?" if close else "unknown field"
