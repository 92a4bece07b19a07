"""Stores and apps in whatever event loop a test has: its own, one that already runs elsewhere, or none."""

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from pqrun.app import App
from pqrun.errors import ConfigurationError, WrongLoopError
from pqrun.store import PgJobStore
from pqrun.testing.inline import InlineStore

__all__ = ["looking", "opened", "run_apart", "run_sync"]

T = TypeVar("T")


@asynccontextmanager
async def opened(jobs: App[Any]) -> AsyncIterator[PgJobStore]:
    """Have the app open in the running event loop, on the same database; one that is open in another loop stays so."""
    with contextlib.ExitStack() as stack:
        if jobs.store.is_open and not jobs.store.is_open_here:
            stack.enter_context(jobs.bound(store=jobs.store.another()))
        async with jobs:
            yield jobs.store


@asynccontextmanager
async def looking(store: PgJobStore) -> AsyncIterator[PgJobStore]:
    """Give a store on the same tables that is open in the running event loop: this one, or one of its own. Raises ConfigurationError."""
    if isinstance(store, InlineStore):
        raise ConfigurationError("inline mode has no database to look at: its 'with inline(jobs) as done' tells all")
    if store.is_open_here:
        yield store
        return
    async with store.another() as other:
        yield other


def run_sync(coroutine: Coroutine[Any, Any, T], *, instead: str) -> T:
    """Run in an event loop of its own; raises WrongLoopError, naming what to await instead, inside a running one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    coroutine.close()
    raise WrongLoopError(f"an event loop runs here: write 'await {instead}(...)'")


def run_apart(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run in an event loop of a thread of its own, and wait: whatever loop runs here, or is set as the current one, stays untouched."""
    outcome: Future[T] = Future()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            outcome.set_result(context.run(asyncio.run, coroutine))
        except BaseException as error:  # noqa: BLE001  # raised again where it is waited for
            outcome.set_exception(error)

    thread = threading.Thread(target=run, name="pqrun testing", daemon=True)
    thread.start()
    try:
        return outcome.result()
    finally:
        thread.join(1.0)
