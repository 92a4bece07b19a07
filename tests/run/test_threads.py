"""Plain functions in daemon threads that nobody joins."""

import asyncio
import subprocess
import sys
import threading
from contextvars import ContextVar

import pytest

from pqrun.run.threads import run_in_thread, start_in_thread

CITY = ContextVar("CITY", default="nowhere")


async def test_the_result_comes_back() -> None:
    assert await run_in_thread(divmod, 7, 2) == (3, 1)


async def test_an_exception_comes_back() -> None:
    with pytest.raises(ZeroDivisionError):
        await run_in_thread(divmod, 7, 0)


async def test_even_stop_iteration_comes_back() -> None:
    with pytest.raises(RuntimeError, match="StopIteration"):
        await run_in_thread(next, iter(()))


async def test_the_thread_sees_a_copy_of_the_context() -> None:
    def change() -> str:
        before = CITY.get()
        CITY.set("Paris")
        return before

    CITY.set("Rome")
    assert await run_in_thread(change) == "Rome"
    assert CITY.get() == "Rome"


async def test_a_cancelled_wait_abandons_the_thread_which_is_known_to_live_on() -> None:
    started, release, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        release.wait(10)
        ended.set()

    call = start_in_thread(work)
    assert await run_in_thread(started.wait, 10)
    call.future.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call.future
    assert call.is_alive
    release.set()
    assert await run_in_thread(ended.wait, 10)
    for thread in threading.enumerate():
        if thread.name == "pqrun-work":
            await run_in_thread(thread.join, 10)
    assert not call.is_alive


async def test_a_call_that_has_ended_is_not_alive() -> None:
    call = start_in_thread(divmod, 7, 2)
    await call.future
    assert not call.is_alive


def test_a_thread_that_outlives_its_loop_does_no_harm() -> None:
    release, ended = threading.Event(), threading.Event()

    def work() -> None:
        release.wait(10)
        ended.set()

    async def main() -> None:
        start_in_thread(work)

    asyncio.run(main())
    release.set()
    assert ended.wait(10)


def test_a_thread_that_never_ends_does_not_keep_the_process_alive() -> None:
    code = (
        "import asyncio, threading\n"
        "from pqrun.run.threads import start_in_thread\n"
        "async def main(): start_in_thread(threading.Event().wait)\n"
        "asyncio.run(main())\n"
        "print('over')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "over\n"
