"""Random values of random models are refused by name, or arrive as they were; through PostgreSQL itself.

``python -m pytest tests/job/test_fuzz.py -s`` prints what became of each kind of field; ``PQRUN_FUZZ_EXAMPLES=50000`` looks
longer, and at other models each time.
"""

import dataclasses
import datetime as dt
import functools
import inspect
import os
import re
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from pqrun.errors import DeclarationError, PayloadError, PqrunError, ResultError
from pqrun.job.parameters import Parameter, parameters_codec
from pqrun.job.payload import payload_codec
from pqrun.job.result import result_codec
from tests.job.fuzzing import FAMILIES, Kind, Shape, make_shape, shapes
from tests.support.database import Databases, connected, run

EXAMPLES = int(os.environ.get("PQRUN_FUZZ_EXAMPLES", "1000"))
IS_LONG = "PQRUN_FUZZ_EXAMPLES" in os.environ
VALUES_PER_MODEL = 4
BATCH = 500
COLUMNS = ("values", "refused at declaration", "refused at defer", "arrived")


class Codec(NamedTuple):
    """What the three kinds of codec have in common."""

    build: Callable[[dict[str, Any]], Any] | None
    dump: Callable[[Any], str | None]
    load: Callable[[str], Any]


class Sent(NamedTuple):
    """A text on its way, and what must arrive."""

    shape: Shape
    codec: Codec
    value: Any
    text: str


def make_codec(shape: Shape) -> Codec:
    if shape.family == "parameters":
        parameters = [
            Parameter(declared=inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY), annotation=kind.annotation)
            for name, kind in shape.fields.items()
        ]
        of_call = parameters_codec("made()", parameters)
        return Codec(lambda values: of_call.build((), values), of_call.dump, of_call.load)
    if shape.family == "result":
        of_result = result_codec(shape.model, where="made()")
        return Codec(None, of_result.dump, of_result.load)
    codec = payload_codec(shape.model)
    return Codec(lambda values: codec.build((), values), codec.dump, codec.load)


def same(before: Any, after: Any, *, is_result: bool = False) -> bool:
    """Compare as a handler could: by types, digits, offsets and parts. Not the code that ``dump`` compares with.

    What a result holds that also is text or a number (a member of a StrEnum) may arrive as that alone.
    """
    inner = functools.partial(same, is_result=is_result)
    if (
        is_result
        and type(after) in (str, int, float)
        and isinstance(before, type(after))
        and not isinstance(before, bool)
    ):
        return bool(before == after) or before != before
    if type(before) is int and type(after) is float:
        return bool(before == after and abs(before) <= 2**53)  # declared as a float
    if isinstance(before, BaseModel):
        origin = before.__pydantic_generic_metadata__["origin"] or type(before)
        return (
            (after.__pydantic_generic_metadata__["origin"] or type(after)) is origin
            and all(inner(getattr(before, name), getattr(after, name)) for name in type(before).model_fields)
            and inner(before.model_extra, after.model_extra)
        )
    if type(before) is not type(after) and not (isinstance(before, dict) and type(after) is dict):
        return False
    if isinstance(after, OrderedDict):
        return inner(list(before.items()), list(after.items()))
    if isinstance(before, Mapping):
        return len(before) == len(after) and all(
            key in after and inner(key, next(k for k in after if k == key)) and inner(item, after[key])
            for key, item in before.items()
        )
    if isinstance(before, AbstractSet):
        return before == after and all(inner(item, next(k for k in after if k == item)) for item in before)
    if isinstance(before, list | tuple | deque):
        return len(before) == len(after) and all(map(inner, before, after))
    if isinstance(before, msgspec.Struct):
        return inner(msgspec.structs.astuple(before), msgspec.structs.astuple(after))
    if dataclasses.is_dataclass(before):
        return all(inner(getattr(before, item.name), getattr(after, item.name)) for item in dataclasses.fields(before))
    return same_leaf(before, after)


def same_leaf(before: Any, after: Any) -> bool:
    """The same of what has no parts."""
    if isinstance(before, dt.datetime | dt.time):
        is_same_clock = before.replace(fold=0, tzinfo=None) == after.replace(tzinfo=None)
        return bool(is_same_clock and before.utcoffset() == after.utcoffset())
    if isinstance(before, Decimal):
        return str(before) == str(after)
    return bool(before == after) or before != before


class Tally:
    """What became of the values, by kind of field and by family."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = {}

    def count(self, names: list[str], column: str) -> None:
        for name in names:
            self.counts.setdefault(name, Counter()).update(["values", column])

    def table(self) -> str:
        lines = [f"{'':34}" + "".join(f"{column:>24}" for column in COLUMNS)]
        lines += [
            f"{name[:33]:34}" + "".join(f"{row[column]:>24}" for column in COLUMNS)
            for name, row in sorted(self.counts.items())
        ]
        return "\n".join(lines)


class Post:
    """Carries texts through ``jsonb``, many in one statement."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._waiting: list[Sent] = []
        self.carried = 0
        self.complaints: list[str] = []
        """Told at the end: hypothesis must not see a test fail for what it sent before."""

    def send(self, sent: Sent) -> None:
        self._waiting.append(sent)
        if len(self._waiting) >= BATCH:
            self.deliver()

    def deliver(self) -> None:
        waiting, self._waiting = self._waiting, []
        self.carried += len(waiting)
        for sent, stored in zip(waiting, run(self._through_jsonb([item.text for item in waiting])), strict=True):
            try:
                reason = self._complaint(sent, stored)
            except PqrunError as refusal:
                reason = f"is refused: {refusal}"
            if reason is not None:
                self.complaints.append(f"{sent.shape.family} {sent.shape.fields} {sent.value!r} {reason} ({stored})")

    def _complaint(self, sent: Sent, stored: str) -> str | None:
        arrived = sent.codec.load(stored)
        if not same(sent.value, arrived, is_result=sent.shape.family == "result"):
            return f"arrives as {arrived!r}"
        again = sent.codec.dump(arrived)
        if again is None or not same(sent.codec.load(again), arrived):
            return f"is sent on as {again}"
        return None

    async def _through_jsonb(self, texts: list[str]) -> list[str]:
        async with connected(self._dsn) as connection:
            rows = await connection.fetch(
                "SELECT t::jsonb::text FROM unnest($1::text[]) WITH ORDINALITY AS _(t, n) ORDER BY n", texts
            )
            return [row[0] for row in rows]


def first_names(error: PqrunError, shape: Shape) -> list[str]:
    """The fields that an error names."""
    said = str(error)
    spelt = {
        name: {name, "userId" if name == "user_id" else name, "json" if name == "json_" else name}
        for name in shape.fields
    }
    return [name for name, ways in spelt.items() if any(way in said for way in ways)]


def parts_of(fields: dict[str, Kind], names: list[str]) -> list[str]:
    """The kinds that these fields are made of, as they are counted."""
    return [part for name in names for part in re.split(" of | & ", fields[name].name)]


def written(shape: Shape, codec: Codec, values: dict[str, Any], *, is_built: bool) -> Sent | PqrunError | None:
    """Make a value and its text; None if the model itself refuses it before we see it."""
    make = codec.build if is_built and codec.build is not None else shape.make
    try:
        value = make(values)
        note(repr(value))
    except PayloadError as refusal:
        return refusal
    except Exception:
        if make is shape.make and shape.family == "pydantic dataclass":  # it looks for itself
            return None
        raise
    try:
        text = codec.dump(value)
    except (PayloadError, ResultError) as refusal:
        return refusal
    return None if text is None else Sent(shape, codec, value, text)


def fuzz(shape: Shape, codec: Codec, values: dict[str, Any], *, is_built: bool, tally: Tally, post: Post) -> None:
    """Send one value, or see it refused by name."""
    sent = written(shape, codec, values, is_built=is_built)
    if isinstance(sent, PqrunError):
        named = first_names(sent, shape)
        assert named or "the model's own code raised" in str(sent), f"{sent} names none of {list(shape.fields)}"
        assert "hunter2" not in str(sent)
        tally.count([*parts_of(shape.fields, named), f"family: {shape.family}"], "refused at defer")
    elif sent is not None:
        assert "hunter2" not in sent.text or not any("Secret" in kind.name for kind in shape.fields.values())
        post.send(sent)
        tally.count([*parts_of(shape.fields, list(shape.fields)), f"family: {shape.family}"], "arrived")


def test_random_values_of_random_models_arrive_as_they_were_or_are_refused_by_name(databases: Databases) -> None:
    tally, post = Tally(), Post(databases.admin_dsn)

    @settings(
        max_examples=EXAMPLES,
        derandomize=not IS_LONG,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    @given(shapes(), st.data())
    def look(drawn: tuple[str, dict[str, Kind]], data: st.DataObject) -> None:
        family, fields = drawn
        try:
            shape = make_shape(family, fields)
        except Exception:  # noqa: BLE001  # pydantic, msgspec or Python have no such model: it cannot be declared
            tally.count([*parts_of(fields, list(fields)), f"family: {family}"], "refused at declaration")
            return
        try:
            codec = make_codec(shape)
        except DeclarationError as refusal:
            tally.count(
                [*parts_of(fields, first_names(refusal, shape) or list(fields)), f"family: {family}"],
                "refused at declaration",
            )
            return
        for _ in range(VALUES_PER_MODEL):
            values = {name: data.draw(kind.values) for name, kind in fields.items()}
            fuzz(shape, codec, values, is_built=data.draw(st.booleans()), tally=tally, post=post)

    look()
    post.deliver()
    print(f"\n{tally.table()}\n{post.carried} values through jsonb")  # noqa: T201  # to be seen with -s
    assert not post.complaints, "\n".join([f"{len(post.complaints)} were lost:", *post.complaints[:40]])
    assert post.carried > EXAMPLES / 2
    assert {f"family: {family}" for family in FAMILIES} <= tally.counts.keys()
