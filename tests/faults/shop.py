"""The app of worker processes that are killed, stopped and cut off: ``python -m pqrun worker tests.faults.shop:jobs``.

Every start and end of a handler is a line in the file that LEDGER names, written at once: what really ran, whatever the database says.
"""

import asyncio
import os
import signal
import threading
import time
from datetime import timedelta
from typing import Any

from pqrun import App, BackoffPolicy, IdlePollPolicy, JobContext

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
    """Sleep, block, kill, be deaf or raise one of RAISED; ``first-…`` means that only the first attempt does so."""
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
    elif how == "deaf":
        await be_deaf(ctx, key, seconds)
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


@jobs.task(backoff=AtOnce())
def thread(ctx: JobContext, key: str) -> None:
    """Never return."""
    note("start", ctx, key)
    threading.Event().wait()
