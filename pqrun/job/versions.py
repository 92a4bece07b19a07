"""Payloads that are older than the code: made into those of the present version, one version at a time, before they are read.

A version without a function reads as the next one does, so a change that needs no conversion needs no function. The functions are user
code on user data: what they raise is told by its type alone, since its message may hold the payload.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import TypeAlias, cast

import msgspec

from pqrun.errors import OptionError, PayloadDecodeError, PayloadError, PayloadVersionError
from pqrun.job.record import JsonObject
from pqrun.job.storable import dump_object

__all__ = ["OlderPayloads", "Upgrade", "check_upgrades", "newer_payload"]

Upgrade: TypeAlias = Callable[[JsonObject], JsonObject]
"""Makes a payload of version n + 1 from one of version n; the dict is its own to change."""


def check_upgrades(upgrades: object, version: int) -> dict[int, Upgrade]:
    """Check ``upgrades=`` of a task: from some version up to the one before its own, one plain function of one argument each.

    Raises:
        OptionError: a key that is no such version, a gap, or something that is not such a function.
    """
    if not isinstance(upgrades, Mapping):
        raise OptionError(
            f"upgrades: expected a mapping from version to function, such as {{1: from_1_to_2}}; got {type(upgrades).__name__}"
        )
    checked: dict[int, Upgrade] = {}
    for key, function in upgrades.items():
        if not isinstance(key, int) or isinstance(key, bool):
            raise OptionError(f"upgrades: expected versions as keys; got {type(key).__name__}")
        if not 0 < key < version:
            older = f"older versions as keys, 1 to {version - 1}" if version > 1 else "version= above 1 beside it"
            raise OptionError(f"upgrades: expected {older}; got {key}, where the task has version={version}")
        _check_function(key, function)
        checked[key] = function
    missing = sorted(set(range(min(checked, default=version), version)) - checked.keys())
    if missing:
        raise OptionError(
            f"upgrades: expected a function for each version from {min(checked)} to {version - 1}; "
            f"got none for {', '.join(map(str, missing))}"
        )
    return checked


def _check_function(version: int, function: object) -> None:
    expected = f"upgrades[{version}]: expected a plain function of one argument, the payload as a dict"
    if not callable(function):
        raise OptionError(f"{expected}; got {type(function).__name__}")
    call = getattr(function, "__call__", function)  # noqa: B004  # an object's own __call__ tells whether it is async
    if any(inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one) for one in (function, call)):
        raise OptionError(f"{expected}; got an async one")
    if any(inspect.isgeneratorfunction(one) for one in (function, call)):
        raise OptionError(f"{expected}; got one that yields")
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):  # written in C, and says nothing about itself
        return
    try:
        signature.bind({})
    except TypeError:
        raise OptionError(f"{expected}; got one of {signature}") from None


def newer_payload(task: str, version: int, *, known: int) -> PayloadVersionError:
    """Return the error of a payload that is newer than the code."""
    return PayloadVersionError(
        f"{task}: the payload has version {version}, and this code knows version {known}: it needs newer code", version
    )


class OlderPayloads:
    """Reads payloads of versions before the task's own; ``load`` reads those of its own."""

    __slots__ = ("_load", "_task", "_upgrades", "_version")

    def __init__(
        self, *, task: str, version: int, upgrades: Mapping[int, Upgrade], load: Callable[[str], object]
    ) -> None:
        self._task = task
        self._version = version
        self._upgrades = upgrades
        self._load = load

    @property
    def oldest(self) -> int | None:
        """The oldest version that has a function; None without any."""
        return min(self._upgrades, default=None)

    def read(self, text: str, version: int) -> object:
        """Return the payload of a stored text of an older version.

        Raises:
            PayloadDecodeError: naming the task, the version, and what stands against it, never a value.
        """
        first = max(version, min(self._upgrades, default=self._version))
        if first < self._version:
            text = self._upgraded(text, version, first)
        try:
            return self._load(text)
        except PayloadDecodeError as error:
            reason = str(error)
        raise self._refused(version, reason)

    def _upgraded(self, text: str, version: int, first: int) -> str:
        try:
            value: object = msgspec.json.decode(text)
        except msgspec.DecodeError:  # a number that PostgreSQL keeps and no float holds
            raise self._refused(version, "it holds a number that is too large for the upgrades") from None
        for step in range(first, self._version):
            try:
                value = cast(object, self._upgrades[step](cast(JsonObject, value)))
            except (Exception, SystemExit) as error:  # noqa: BLE001  # the border to user code
                reason = f"the upgrade from version {step} raised {type(error).__name__}"
            else:
                if isinstance(value, dict):
                    continue
                reason = f"the upgrade from version {step} returned {type(value).__name__}, not a dict"
            raise self._refused(version, reason)
        try:
            return dump_object(value, "what the upgrades made")  # type: ignore[arg-type]  # a dict, as was checked above
        except PayloadError as error:
            reason = str(error)
        raise self._refused(version, reason)

    def _refused(self, version: int, reason: str) -> PayloadDecodeError:
        return PayloadDecodeError(f"{self._task}, payload of version {version} for {self._version}: {reason}")
