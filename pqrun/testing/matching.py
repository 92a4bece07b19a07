"""Whether a stored job is the one that a test expects, and in what it differs."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import cast

from pydantic import TypeAdapter, ValidationError

from pqrun.declaration import Declared
from pqrun.errors import ArgumentsError, PayloadError
from pqrun.job.annotation import pydantic_form
from pqrun.job.fields import PayloadField
from pqrun.job.reasons import explain
from pqrun.store.rehearsing import Unended

__all__ = ["Expectation", "describe", "payload_of"]

OPTIONS = ("queue", "due_after", "due_before", "fields")

SHOWN_CHARACTERS = 300
"""Of a payload in a message."""


def payload_of(declared: Declared, text: str) -> object:
    """Return the payload of a stored text: the model, or the arguments by name where the function's own parameters are the payload."""
    payload = declared.signature.codec.load(text)
    parameter = declared.signature.model_parameter
    return {parameter: payload} if declared.model is None and parameter is not None else payload


def describe(one: Unended) -> str:
    """Show a job with its payload on one line."""
    job = one.job
    due = f"due in {one.in_seconds:.0f} s" if one.in_seconds > 0 else "due"
    return f"id={job.id} queue={job.queue!r} {due} {_cut(job.payload_json)}"


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a test asks of a job beside its task."""

    declared: Declared
    whole: tuple[object, ...]
    """A payload, or a function of one; or nothing."""
    fields: Mapping[str, object]
    """By the name in Python, read as ``defer`` reads them."""
    queue: str | None
    due_after: datetime | timedelta | None
    due_before: datetime | timedelta | None
    text: str
    """For messages: ``" with user_id=1"``."""

    @classmethod
    def of(cls, declared: Declared, whole: tuple[object, ...], given: Mapping[str, object]) -> "Expectation":
        """Read the arguments of an assertion; raises ArgumentsError and PayloadError."""
        named = cast("Mapping[str, object] | None", given.get("fields"))
        values = {name: value for name, value in given.items() if name not in OPTIONS}
        _refuse_doubtful(declared, given, whole, has_fields=named is not None)
        fields = {**values, **(named or {})}
        if len(whole) > 1 or (whole and fields):
            raise ArgumentsError("expected one payload, or a function of it, or fields by keyword: not several of them")
        read = _read_fields(declared, fields)
        words = [f"{name}={value!r}" for name, value in fields.items()]
        words += [repr(one) if not _is_function(declared, one) else "what the function says" for one in whole]
        words += [f"{name}={given[name]!r}" for name in OPTIONS[:3] if name in given]
        return cls(
            declared=declared,
            whole=whole,
            fields=read,
            queue=cast("str | None", given.get("queue")),
            due_after=_moment("due_after", given.get("due_after")),
            due_before=_moment("due_before", given.get("due_before")),
            text=f" with {', '.join(words)}" if words else "",
        )

    def misses(self, one: Unended) -> list[str]:
        """Return in what a job of the task differs; empty: it is one that was asked for."""
        return [*self._payload_misses(one.job.payload_json), *self._other_misses(one)]

    def _payload_misses(self, text: str) -> list[str]:
        payload = self.declared.signature.codec.load(text)
        misses = [
            f"{name}: {_value(payload, name)!r}, expected {expected!r}"
            for name, expected in self.fields.items()
            if _value(payload, name) != expected
        ]
        for asked in self.whole:
            if not _is_function(self.declared, asked):
                misses += self._differences(text, asked)
            elif not cast("Callable[[object], object]", asked)(payload_of(self.declared, text)):
                misses.append("the function says no")
        return misses

    def _differences(self, text: str, asked: object) -> list[str]:
        stored = json.loads(text)
        expected = json.loads(self.declared.signature.codec.dump(asked))
        return [
            f"{key}: {_shown(stored, key)}, expected {_shown(expected, key)}"
            for key in {**stored, **expected}
            if key not in stored or key not in expected or stored[key] != expected[key]
        ]

    def _other_misses(self, one: Unended) -> list[str]:
        misses = []
        if self.queue is not None and one.job.queue != self.queue:
            misses.append(f"queue: {one.job.queue!r}, expected {self.queue!r}")
        if self.due_after is not None and _beyond(one, self.due_after) < 0:
            misses.append(f"due at {one.job.run_after}, expected not before {self.due_after}")
        if self.due_before is not None and _beyond(one, self.due_before) > 0:
            misses.append(f"due at {one.job.run_after}, expected not after {self.due_before}")
        return misses


def _refuse_doubtful(
    declared: Declared, given: Mapping[str, object], whole: Sequence[object], *, has_fields: bool
) -> None:
    """A keyword that is an option here and a field there could mean either."""
    names = {field.name for field in declared.signature.codec.fields}
    both = next((name for name in given if name in OPTIONS and name in names), None)
    if both is not None and not whole and not has_fields:
        raise ArgumentsError(
            f"{both!r} is a field of {declared.signature.codec.name} and an option here: give the field as fields={{{both!r}: ...}}; "
            f"with fields= (it may be empty), {both}= is the option"
        )


def _read_fields(declared: Declared, given: Mapping[str, object]) -> dict[str, object]:
    codec = declared.signature.codec
    known = {field.wire_name: field for field in codec.fields} | {field.name: field for field in codec.fields}
    unknown = [name for name in given if name not in known]
    if unknown:
        raise ArgumentsError(
            f"{codec.name} has no field {unknown[0]!r}; it has {', '.join(field.name for field in codec.fields)}"
        )
    return {known[name].name: _read(codec.name, known[name], value) for name, value in given.items()}


def _read(model: str, field: PayloadField, value: object) -> object:
    """Return the value as the payload would hold it; raises PayloadError where ``defer`` would."""
    if field.annotation is object:
        return value
    try:
        adapter: TypeAdapter[object] = TypeAdapter(pydantic_form(field.annotation))  # type: ignore[arg-type]  # any annotation
        return adapter.validate_python(value)
    except ValidationError as error:
        problems = tuple((f"{field.name}{'.' if path else ''}{path}", reason) for path, reason in explain(error))
    raise PayloadError(f"{model}: " + "; ".join(f"{path}: {reason}" for path, reason in problems), problems)


def _is_function(declared: Declared, asked: object) -> bool:
    return callable(asked) and not declared.signature.codec.is_instance(asked)


def _value(payload: object, name: str) -> object:
    return payload.get(name) if isinstance(payload, Mapping) else getattr(payload, name)


def _moment(name: str, value: object) -> datetime | timedelta | None:
    if value is None or isinstance(value, timedelta) or (isinstance(value, datetime) and value.tzinfo is not None):
        return value
    raise ArgumentsError(f"{name} takes an aware datetime, or a timedelta from now; got {value!r:.80}")


def _beyond(one: Unended, moment: datetime | timedelta) -> float:
    """Return how many seconds after the moment a job is due."""
    if isinstance(moment, timedelta):
        return one.in_seconds - moment.total_seconds()
    return (one.job.run_after - moment).total_seconds()


def _shown(payload: Mapping[str, object], key: str) -> str:
    return _cut(json.dumps(payload[key], ensure_ascii=False)) if key in payload else "nothing"


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"
