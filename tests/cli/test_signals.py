"""Signals on loops that hear them and on loops that do not, and interrupts that leave everything in order."""

import asyncio
import logging
import signal
from collections.abc import Callable
from typing import NoReturn

import pytest
import typer

from pqrun.cli.signals import ENDING, Interrupts, heard


class DeafLoop(asyncio.SelectorEventLoop):
    """As on Windows."""

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: object) -> NoReturn:
        raise NotImplementedError


def exit_code(command: Callable[[], None]) -> int:
    """What a command ends with."""
    with pytest.raises(typer.Exit) as caught:
        command()
    return caught.value.exit_code


@pytest.mark.parametrize("make_loop", [asyncio.SelectorEventLoop, DeafLoop])
def test_each_signal_is_heard_on_the_loop(
    make_loop: type[asyncio.SelectorEventLoop], caplog: pytest.LogCaptureFixture
) -> None:
    async def hear() -> list[int]:
        numbers: asyncio.Queue[int] = asyncio.Queue()
        with heard(asyncio.get_running_loop(), numbers.put_nowait):
            for number in ENDING:
                signal.raise_signal(number)
            return [await asyncio.wait_for(numbers.get(), 30) for _ in ENDING]

    before = [signal.getsignal(number) for number in ENDING]
    with caplog.at_level(logging.WARNING), asyncio.Runner(loop_factory=make_loop) as runner:
        assert sorted(runner.run(hear())) == sorted(ENDING)
    assert len(caplog.records) == (1 if make_loop is DeafLoop else 0)
    assert [signal.getsignal(number) for number in ENDING] == before


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_cancels_what_runs_and_becomes_the_exit_code(number: signal.Signals) -> None:
    done: list[str] = []

    async def main() -> None:
        try:
            signal.raise_signal(number)
            await asyncio.Event().wait()
        finally:
            done.append("inner")

    def command() -> None:
        with Interrupts() as interrupts:
            try:
                interrupts.run(main())
            finally:
                done.append("outer")

    assert exit_code(command) == 128 + number
    assert done == ["inner", "outer"]


def test_a_signal_before_the_loop_waits_for_it() -> None:
    async def main() -> None:
        raise AssertionError("it must not start")

    def command() -> None:
        with Interrupts() as interrupts:
            signal.raise_signal(signal.SIGTERM)
            interrupts.run(main())

    assert exit_code(command) == 128 + signal.SIGTERM


def test_a_second_signal_outside_of_the_loop_ends_what_hangs() -> None:
    def command() -> None:
        with Interrupts():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    assert exit_code(command) == 128 + signal.SIGINT


def test_errors_come_through_as_they_are() -> None:
    async def main() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), Interrupts() as interrupts:
        interrupts.run(main())
