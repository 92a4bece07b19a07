"""Upgrade functions: what is refused at declaration, which of them run, and what is told when one fails."""

import functools
import json
from collections.abc import AsyncIterator, Iterator
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel

from pqrun.errors import OptionError, PayloadDecodeError, PayloadVersionError
from pqrun.job.options import check_payload_version
from pqrun.job.payload import payload_codec
from pqrun.job.versions import OlderPayloads, check_upgrades, newer_payload

SECRET = "payload-nobody-may-see"


def same(payload: Any) -> Any:
    return payload


async def later(payload: Any) -> Any:
    return payload


async def many(payload: Any) -> AsyncIterator[Any]:
    yield payload


def yields(payload: Any) -> Iterator[Any]:
    yield payload


def two(payload: Any, other: Any) -> Any:
    return payload


def nothing() -> Any:
    return {}


def keyword(*, payload: Any) -> Any:
    return payload


class AsyncObject:
    async def __call__(self, payload: Any) -> Any:
        return payload


class Object:
    def __call__(self, payload: Any) -> Any:
        return payload


@pytest.mark.parametrize("value", [0, -1, 1.0, "2", True, None, 2**31])
def test_a_version_is_a_whole_number_from_one_that_fits_an_integer(value: object) -> None:
    with pytest.raises(OptionError, match=r"^version: expected a whole number from 1 to 2147483647; got "):
        check_payload_version(value, "version")
    with pytest.raises(OptionError, match=r"^payload_version: "):
        check_payload_version(value)


@pytest.mark.parametrize(
    "function", [same, lambda p: p, functools.partial(two, other=1), Object(), Object().__call__, dict]
)
def test_anything_that_can_be_called_with_one_dict_is_an_upgrade(function: Any) -> None:
    assert check_upgrades({1: function}, 2) == {1: function}


@pytest.mark.parametrize(
    ("upgrades", "version", "reason"),
    [
        ([same], 2, "expected a mapping from version to function"),
        (None, 2, "expected a mapping from version to function"),
        ({"1": same}, 2, "expected versions as keys; got str"),
        ({True: same}, 2, "expected versions as keys; got bool"),
        ({0: same, 1: same}, 2, "expected older versions as keys, 1 to 1; got 0"),
        ({2: same}, 2, "expected older versions as keys, 1 to 1; got 2, where the task has version=2"),
        ({1: same}, 1, "expected version= above 1 beside it; got 1"),
        ({1: same}, 3, "for each version from 1 to 2; got none for 2"),
        ({1: same, 3: same}, 5, "for each version from 1 to 4; got none for 2, 4"),
        ({1: 5}, 2, r"upgrades\[1\]: expected a plain function of one argument, the payload as a dict; got int"),
        ({1: later}, 2, r"upgrades\[1\].*got an async one"),
        ({1: many}, 2, r"upgrades\[1\].*got an async one"),
        ({1: AsyncObject()}, 2, r"upgrades\[1\].*got an async one"),
        ({1: functools.partial(later)}, 2, r"upgrades\[1\].*got an async one"),
        ({1: yields}, 2, r"upgrades\[1\].*got one that yields"),
        ({1: two}, 2, r"upgrades\[1\].*got one of \(payload"),
        ({1: keyword}, 2, r"upgrades\[1\].*got one of \(\*"),
        ({1: nothing}, 2, r"upgrades\[1\].*got one of \(\)"),
    ],
)
def test_upgrades_that_cannot_work_are_refused_by_name(upgrades: object, version: int, reason: str) -> None:
    with pytest.raises(OptionError, match=reason) as caught:
        check_upgrades(upgrades, version)
    assert str(caught.value).startswith("upgrades")


def test_upgrades_may_begin_at_any_version_and_lead_to_the_present_one() -> None:
    assert list(check_upgrades({3: same, 2: same}, 4)) == [3, 2]
    assert check_upgrades({}, 7) == {}


class Welcome(BaseModel):
    user_id: int
    locale: str = "en"


def reader(version: int, upgrades: dict[int, Any], model: type[Any] = Welcome) -> OlderPayloads:
    return OlderPayloads(task="send", version=version, upgrades=upgrades, load=payload_codec(model).load)


def test_each_version_passes_through_the_functions_from_its_own_on() -> None:
    steps: list[tuple[int, object]] = []

    def step(version: int) -> Any:
        def upgrade(payload: dict[str, Any]) -> dict[str, Any]:
            steps.append((version, dict(payload)))
            return {**payload, "locale": f"{payload.get('locale', '')}{version}"}

        return upgrade

    older = reader(4, {n: step(n) for n in (1, 2, 3)})
    assert older.read('{"user_id": 1}', 1) == Welcome(user_id=1, locale="123")
    assert [version for version, _ in steps] == [1, 2, 3]
    assert older.read('{"user_id": 1, "locale": "x"}', 3) == Welcome(user_id=1, locale="x3")


def test_a_version_without_a_function_reads_as_the_next_one_does() -> None:
    rename = {2: lambda p: {"user_id": p["user"]}}
    assert reader(3, rename).read('{"user": 1}', 1) == Welcome(user_id=1)
    assert reader(3, {}).read('{"user_id": 1}', 1) == Welcome(user_id=1)
    assert reader(3, {}).read('{"user_id": 1}', 0) == Welcome(user_id=1)  # written by plain SQL


def test_an_upgrade_may_change_the_dict_it_is_given() -> None:
    def rename(payload: dict[str, Any]) -> dict[str, Any]:
        payload["user_id"] = payload.pop("user")
        return payload

    text = '{"user": 1}'
    older = reader(2, {1: rename})
    assert older.read(text, 1) == older.read(text, 1) == Welcome(user_id=1)


def test_unknown_fields_that_an_upgrade_leaves_are_tolerated() -> None:
    assert reader(2, {1: same}).read('{"user_id": 1, "gone": true}', 1) == Welcome(user_id=1)


class Amount(BaseModel):
    value: Decimal
    count: int


def test_numbers_pass_through_an_upgrade_unchanged() -> None:
    text = json.dumps({"value": "0.10000000000000000001", "count": 2**70})
    assert reader(2, {1: same}, Amount).read(text, 1) == Amount(value=Decimal("0.10000000000000000001"), count=2**70)


def raising(error: BaseException) -> Any:
    def upgrade(payload: Any) -> Any:
        raise error

    return upgrade


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (raising(KeyError(SECRET)), "the upgrade from version 1 raised KeyError"),
        (raising(SystemExit(SECRET)), "the upgrade from version 1 raised SystemExit"),
        (lambda p: [SECRET], "the upgrade from version 1 returned list, not a dict"),
        (lambda p: None, "the upgrade from version 1 returned NoneType, not a dict"),
        (lambda p: {"user_id": {1, 2}}, "what the upgrades made: user_id: "),
        (lambda p: {"user_id": float("nan")}, "what the upgrades made: user_id: "),
        (lambda p: {"user_id": SECRET}, "does not satisfy Welcome: user_id: "),
        (lambda p: {}, "does not satisfy Welcome: user_id: "),
    ],
)
def test_what_an_upgrade_does_wrong_is_told_by_task_version_and_type_never_by_value(function: Any, reason: str) -> None:
    with pytest.raises(PayloadDecodeError) as caught:
        reader(2, {1: function}).read(json.dumps({"secret": SECRET}), 1)
    told = str(caught.value)
    assert told.startswith("send, payload of version 1 for 2: ")
    assert reason in told
    error: BaseException | None = caught.value
    while error is not None:  # the chain is what tracebacks and error trackers show
        assert SECRET not in str(error)
        error = error.__cause__ or error.__context__


def test_a_number_that_no_float_holds_is_told_as_such() -> None:
    with pytest.raises(PayloadDecodeError, match="a number that is too large"):
        reader(2, {1: same}).read('{"user_id": 1e999}', 1)


def test_the_oldest_version_with_a_function_is_known() -> None:
    assert (reader(4, {2: same, 3: same}).oldest, reader(4, {}).oldest) == (2, None)


def test_a_newer_payload_is_told_with_both_versions() -> None:
    error = newer_payload("send", 3, known=2)
    assert isinstance(error, PayloadVersionError)
    assert (error.version, str(error)) == (
        3,
        "send: the payload has version 3, and this code knows version 2: it needs newer code",
    )
