"""Handlers without decorators, and the built-in cleanup."""

import functools
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from pqrun.errors import DeclarationError, OptionError, PayloadError, ResultError
from pqrun.run.context import JobContext
from pqrun.run.handler import Handler
from pqrun.run.lowlevel import CLEANUP, cleanup_handler, wrap
from pqrun.store.maintaining import Pruned
from tests.run.making import Bench, make_job


async def greet(ctx: JobContext[Any]) -> dict[str, object]:
    return {"hello": ctx.job.payload["name"]}


def greet_plainly(ctx: JobContext[Any]) -> dict[str, object]:
    return {}


class Greeter:
    async def __call__(self, ctx: JobContext[Any]) -> Mapping[str, object] | None:
        return None


def test_async_functions_and_callable_objects_are_told_from_plain_functions() -> None:
    assert wrap("t", greet).is_async
    assert wrap("t", functools.partial(greet)).is_async
    assert wrap("t", Greeter()).is_async
    assert not wrap("t", greet_plainly).is_async
    assert not wrap("t", functools.partial(greet_plainly)).is_async


def test_what_is_no_function_is_refused_naming_the_entry() -> None:
    with pytest.raises(DeclarationError, match=r"handlers\['t'\] is int"):
        wrap("t", 5)  # type: ignore[arg-type]  # the point
    with pytest.raises(OptionError, match="job_type"):
        wrap("", greet)


def test_a_payload_is_left_to_the_job_itself() -> None:
    assert wrap("t", greet).decode("not even JSON") is None


@pytest.mark.parametrize("value", [None, {}, {"a": [1, {"b": None}]}, {"é": "\u2028"}])
def test_results_are_json_objects_or_none(value: Mapping[str, object] | None) -> None:
    text = wrap("t", greet).encode(value)
    assert (text is None) == (value is None)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (5, "returned int"),
        ([1], "returned list"),
        ("x", "returned str"),
        (True, "returned bool"),
        ({"a": object()}, "a: object is not JSON"),
        ({1: "x"}, "a key must be text"),
        ({"a": float("nan")}, "NaN"),
        ({"a": "\x00"}, "NUL"),
    ],
)
def test_other_results_are_refused_naming_what_came(value: object, words: str) -> None:
    with pytest.raises(ResultError, match=words) as caught:
        wrap("t", greet).encode(value)
    assert caught.value.__context__ is None or not isinstance(caught.value.__context__, PayloadError)


def test_a_coroutine_that_nobody_awaited_is_refused_and_closed() -> None:
    with pytest.raises(ResultError, match="returned coroutine"):
        wrap("t", greet).encode(greet(None))  # type: ignore[arg-type]  # never started


class Shed:
    """Stands for retention: so many pieces of old jobs."""

    def __init__(self, *pieces: int) -> None:
        self.pieces = list(pieces)
        self.ages: list[float] = []

    async def prune(self, *, age_seconds: float) -> Pruned:
        self.ages.append(age_seconds)
        return Pruned(True, self.pieces.pop(0) if self.pieces else 0)


def cleanup(shed: Shed, retention: timedelta | None = timedelta(days=7)) -> Handler:
    return cleanup_handler(shed.prune, retention)


async def run_cleanup(handler: Handler, payload: str) -> object:
    bench = Bench(handler)
    bench.executor.take([make_job(job_type=CLEANUP, payload_json=payload, max_attempts=1)])
    (outcome,) = await bench.outcomes()
    return getattr(outcome, "result", None) or getattr(outcome, "error", None)


async def test_cleanup_deletes_piece_by_piece_by_the_retention_of_the_worker() -> None:
    shed = Shed(1000, 1000, 7)
    assert await run_cleanup(cleanup(shed), "{}") == '{"deleted":2007}'
    assert shed.ages == [604_800.0] * 4


async def test_cleanup_takes_an_age_of_its_own() -> None:
    shed = Shed(3)
    assert await run_cleanup(cleanup(shed, None), '{"older_than_seconds": 0}') == '{"deleted":3}'
    assert shed.ages[0] == 0.0


@pytest.mark.parametrize(
    "payload", ["{}", '{"older_than_seconds": -1}', '{"older_than_seconds": true}', '{"older_than_seconds": "x"}']
)
async def test_cleanup_without_a_usable_age_deletes_nothing(payload: str) -> None:
    shed = Shed(3)
    error = await run_cleanup(cleanup(shed, None), payload)
    assert "older_than_seconds" in str(error)
    assert shed.ages == []


async def test_cleanup_waits_for_its_turn_while_another_worker_prunes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pqrun.run.lowlevel.TURN_SECONDS", 0.0)
    answers = [Pruned(False, 0), Pruned(True, 5), Pruned(False, 0), Pruned(True, 0)]

    async def prune(*, age_seconds: float) -> Pruned:
        return answers.pop(0)

    assert await run_cleanup(cleanup_handler(prune, timedelta(days=7)), "{}") == '{"deleted":5}'
