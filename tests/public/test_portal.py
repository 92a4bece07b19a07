"""Crossing into the loop of another thread: what becomes of the caller, and of the call, when either of them ends early."""

import asyncio
import contextvars
import gc
import signal
import threading
from collections.abc import Iterator

import pytest

from pqrun import DatabaseUnavailableError, NotOpenError, WrongLoopError, portal
from pqrun.portal import cross

INSTEAD = "await it"


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop that runs in another thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    if not loop.is_closed():
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look often."""
    monkeypatch.setattr(portal, "LOOK_SECONDS", 0.01)


class Endless:
    """A call that ends only when it is cancelled."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.cancelled = threading.Event()

    async def run(self) -> None:
        self.began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


def test_a_call_gives_what_it_returns_and_raises_what_it_raises(loop: asyncio.AbstractEventLoop) -> None:
    async def divide(by: int) -> float:
        await asyncio.sleep(0)
        return 1 / by

    assert cross(loop, lambda: divide(2), instead=INSTEAD) == 0.5
    with pytest.raises(ZeroDivisionError) as caught:
        cross(loop, lambda: divide(0), instead=INSTEAD)
    assert caught.value.__context__ is None


def test_a_call_sees_the_context_of_its_caller(loop: asyncio.AbstractEventLoop) -> None:
    request: contextvars.ContextVar[str] = contextvars.ContextVar("request")

    async def read() -> str:
        return request.get()

    request.set("r-1")
    assert cross(loop, read, instead=INSTEAD) == "r-1"


def test_an_error_leaves_nothing_for_the_garbage_collector(loop: asyncio.AbstractEventLoop) -> None:
    class Marked(Exception):
        pass

    async def fail() -> None:
        raise Marked

    gc.collect()
    gc.disable()
    try:
        with pytest.raises(Marked):
            cross(loop, fail, instead=INSTEAD)
        cross(loop, lambda: asyncio.sleep(0), instead=INSTEAD)  # the loop has forgotten the first
        assert not [one for one in gc.get_objects() if isinstance(one, Marked)]
    finally:
        gc.enable()


def test_an_interrupt_ends_the_wait_at_once_and_cancels_the_call(loop: asyncio.AbstractEventLoop) -> None:
    call = Endless()

    def interrupt() -> None:
        call.began.wait()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        cross(loop, call.run, instead=INSTEAD)
    assert call.cancelled.wait(30)


def test_a_call_that_its_ending_loop_cancels_is_told_as_one_whose_outcome_is_unknown() -> None:
    call = Endless()
    loops: list[asyncio.AbstractEventLoop] = []
    is_up = threading.Event()

    async def main() -> None:
        loops.append(asyncio.get_running_loop())
        is_up.set()
        await asyncio.to_thread(call.began.wait)

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    is_up.wait()
    with pytest.raises(DatabaseUnavailableError, match="may or may not"):
        cross(loops[0], call.run, instead=INSTEAD)
    thread.join()
    assert call.cancelled.is_set()


@pytest.mark.usefixtures("impatient")
def test_a_loop_that_is_stopped_under_a_call_keeps_nobody_waiting(loop: asyncio.AbstractEventLoop) -> None:
    async def stop() -> None:
        loop.stop()
        await asyncio.Event().wait()

    with pytest.raises(DatabaseUnavailableError, match=r"its loop was stopped .* may or may not"):
        cross(loop, stop, instead=INSTEAD)
    loop.run_until_complete(_cancel_all())
    loop.close()


async def _cancel_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


@pytest.mark.parametrize("is_closed", [True, False])
@pytest.mark.usefixtures("impatient")
def test_a_loop_that_ended_before_the_call_does_not_begin_it(is_closed: bool) -> None:
    call = Endless()
    ended = asyncio.new_event_loop()
    if is_closed:
        ended.close()
    with pytest.raises(NotOpenError):
        cross(ended, call.run, instead=INSTEAD)
    if not is_closed:
        ended.run_until_complete(asyncio.sleep(0))  # what was left in it does nothing
        ended.close()
    assert not call.began.is_set()


@pytest.mark.usefixtures("impatient")
def test_a_blocked_loop_that_never_takes_the_call_never_will(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portal, "DEAF_LOOKS", 3)
    call = Endless()
    goes_on = threading.Event()
    loop.call_soon_threadsafe(goes_on.wait)
    with pytest.raises(DatabaseUnavailableError, match="nothing was done"):
        cross(loop, call.run, instead=INSTEAD)
    goes_on.set()
    cross(loop, lambda: asyncio.sleep(0), instead=INSTEAD)
    assert not call.began.is_set()


@pytest.mark.usefixtures("impatient")
def test_a_loop_that_is_blocked_under_a_call_is_given_up_and_the_call_cancelled(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portal, "DEAF_LOOKS", 3)
    call = Endless()
    goes_on = threading.Event()

    async def block() -> None:
        loop.call_soon(goes_on.wait)
        await call.run()

    with pytest.raises(DatabaseUnavailableError, match=r"does not answer any more .* may or may not"):
        cross(loop, block, instead=INSTEAD)
    goes_on.set()
    assert call.cancelled.wait(30)


@pytest.mark.usefixtures("impatient")
def test_a_long_call_in_a_loop_that_answers_is_waited_for(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portal, "DEAF_LOOKS", 3)
    looks = 0
    done: list[asyncio.Event] = []

    async def wait() -> str:
        done.append(asyncio.Event())
        await done[0].wait()
        return "done"

    class Counting(portal._Crossing[str]):
        def _hear(self) -> None:
            nonlocal looks
            super()._hear()
            looks += 1
            if looks == 10:
                done[0].set()

    monkeypatch.setattr(portal, "_Crossing", Counting)
    assert cross(loop, wait, instead=INSTEAD) == "done"
    assert looks == 10


async def test_a_call_from_within_a_running_loop_is_refused() -> None:
    with pytest.raises(WrongLoopError, match=INSTEAD):
        cross(asyncio.get_running_loop(), lambda: asyncio.sleep(0), instead=INSTEAD)
