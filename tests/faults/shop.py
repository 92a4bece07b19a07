"""The app of worker processes that are killed, stopped and cut off: ``python -m pqrun worker tests.faults.shop:jobs``.

Every start and end of a handler is a line in the file that LEDGER names, written at once: what really ran, whatever the database says.
"""

import asyncio
import ctypes
import multiprocessing
import os
import signal
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from pqrun import App, BackoffPolicy, IdlePollPolicy, JobContext, Snooze
from tests.support.waiting import wait_until

if "IDLE_SECONDS" in os.environ:  # only a notification or a signal ends such a sleep
    IdlePollPolicy.next_sleep = lambda self, empty_streak: float(os.environ["IDLE_SECONDS"])  # type: ignore[method-assign]  # the command line takes no policy

if "CLOCK_AHEAD" in os.environ:  # the clock of this host is wrong by so many seconds
    _right = time.time
    time.time = lambda: _right() + float(os.environ["CLOCK_AHEAD"])

jobs = App()


class Odd(BaseException):
    """What no handler should raise, and no ``except Exception`` catches."""


RAISED: dict[str, type[BaseException]] = {
    "raise": ValueError,
    "exit": SystemExit,
    "interrupt": KeyboardInterrupt,
    "odd": Odd,
}


class AtOnce(BackoffPolicy):
    """No pause between attempts."""

    def retry_delay(self, attempts: int) -> timedelta:
        return timedelta(0)


def note(what: str, ctx: JobContext[Any], key: str) -> None:
    """Write a line, in one system call."""
    line = f"{what} {key} {ctx.job.attempts} {os.getpid()} {ctx.cancel_reason or '-'} {time.time():.3f}\n"
    file = os.open(os.environ["LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


@jobs.task(backoff=AtOnce())
async def work(ctx: JobContext, key: str, how: str = "sleep", seconds: float = 0.0) -> dict[str, Any]:
    """Sleep, block, hold the GIL, kill, be deaf, snooze, fork, raise when told or as RAISED says; ``first-…``: only at first."""
    note("start", ctx, key)
    first, how = how.startswith("first-"), how.removeprefix("first-")
    try:
        if not first or ctx.job.attempts == 1:
            await behave(ctx, key, how, seconds)
    except asyncio.CancelledError:
        note("cancelled", ctx, key)
        raise
    note("end", ctx, key)
    return {"pid": os.getpid(), "attempt": ctx.job.attempts}


async def behave(ctx: JobContext[Any], key: str, how: str, seconds: float) -> None:
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "block":
        time.sleep(seconds)  # noqa: ASYNC251  # on purpose
    elif how == "gil":
        ctypes.PyDLL(None).sleep(int(seconds))  # unlike CDLL it keeps the GIL: no thread of this process runs
    elif how in FORKED:
        await FORKED[how](ctx, key, seconds)
    elif how == "deaf":
        await be_deaf(ctx, key, seconds)
    elif how == "told":
        await wait_until(may_go)
        raise ValueError("as told")
    elif how == "snooze":
        await put_off(ctx, key, seconds)
    else:
        await asyncio.sleep(seconds)
        if how in RAISED:
            note("raise", ctx, key)
            raise RAISED[how]("as told")


async def be_deaf(ctx: JobContext[Any], key: str, seconds: float) -> None:
    """Go on whatever happens."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            note("ignored", ctx, key)


def may_go() -> bool:
    """Whether the test has made the file that it lets handlers go by."""
    return Path(f"{os.environ['LEDGER']}.go").exists()


async def put_off(ctx: JobContext[Any], key: str, seconds: float) -> None:
    """Snooze once, when the test allows it by a file."""
    await wait_until(may_go)
    if not ctx.job.snoozes:
        raise Snooze(timedelta(seconds=seconds))


# Forks. The child has every socket of the worker's, and its one thread goes on in the middle of this very coroutine.


async def fork_to_exit(ctx: JobContext[Any], key: str, seconds: float) -> None:
    """The child ends at once, as it should."""
    if (pid := os.fork()) == 0:
        os._exit(7)
    _, status = await asyncio.to_thread(os.waitpid, pid, 0)
    note(f"child-{os.waitstatus_to_exitcode(status)}", ctx, key)


async def fork_to_use(ctx: JobContext[Any], key: str, seconds: float) -> None:
    """The child uses the store of its parent's."""
    if (pid := os.fork()) == 0:
        threading.Thread(target=_use, args=(ctx, key)).start()  # this thread has a running loop, the parent's
        threading.Event().wait()
    await asyncio.to_thread(os.waitpid, pid, 0)


def _use(ctx: JobContext[Any], key: str) -> None:
    try:
        asyncio.run(ctx.store.enqueue("work", {"key": "child"}))
    except Exception as error:  # noqa: BLE001  # whatever it hears is what the test asks
        note(type(error).__name__, ctx, key)
    finally:
        os._exit(0)


async def fork_to_linger(ctx: JobContext[Any], key: str, seconds: float) -> None:
    """The child does nothing, with all of the worker's sockets, and outlives it."""
    if os.fork() == 0:
        note("lingering", ctx, key)
        time.sleep(seconds)  # noqa: ASYNC251  # another process by now
        os._exit(0)
    await asyncio.sleep(3600)


async def fork_by_multiprocessing(ctx: JobContext[Any], key: str, seconds: float) -> None:
    """What libraries do: a pool of forked processes, and one that is ended by SIGTERM."""
    await asyncio.to_thread(_multiprocess, ctx, key)


def _multiprocess(ctx: JobContext[Any], key: str) -> None:
    forking = multiprocessing.get_context("fork")
    with forking.Pool(2) as pool:
        note("-".join(map(str, pool.map(abs, [-1, -2, -3]))), ctx, key)
    sleeper = forking.Process(target=time.sleep, args=(3600,))
    sleeper.start()
    sleeper.terminate()
    sleeper.join(10)
    note(f"sleeper{sleeper.exitcode}", ctx, key)
    sleeper.kill()  # if it lives on


FORKED = {
    "fork-exit": fork_to_exit,
    "fork-use": fork_to_use,
    "fork-linger": fork_to_linger,
    "fork-multi": fork_by_multiprocessing,
}


@jobs.task(backoff=AtOnce())
def thread(ctx: JobContext, key: str) -> None:
    """Never return."""
    note("start", ctx, key)
    threading.Event().wait()
