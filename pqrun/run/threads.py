"""Plain functions in daemon threads of our own.

``asyncio.to_thread`` and ThreadPoolExecutor join their threads when the interpreter exits, so that one handler that never returns
would keep the process alive for ever. Here each call has a daemon thread that nobody joins: cancelling the awaiting task abandons
it, and ``ThreadCall.is_alive`` tells whether it still works. Nothing here bounds the number of threads; that is the caller's duty.
"""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

__all__ = ["ThreadCall", "run_in_thread", "start_in_thread"]

P = ParamSpec("P")
T = TypeVar("T")


class ThreadCall(Generic[T]):
    """A function that was started in a thread of its own."""

    __slots__ = ("_running", "future", "ident")

    def __init__(self, future: "asyncio.Future[T]") -> None:
        self.future = future
        """Gets the result or exception; cancelling it abandons the thread, which cannot be stopped from outside."""
        self.ident: int | None = None
        """Of the thread, as ``threading.get_ident`` has it; None until it runs."""
        # Written by the thread at its end, read by the loop: one attribute, no lock needed.
        self._running = True

    @property
    def is_alive(self) -> bool:
        """Whether the function has not returned yet."""
        return self._running


def start_in_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> ThreadCall[T]:
    """Start ``function`` in a daemon thread with a copy of the current context; call it from a running event loop."""
    loop = asyncio.get_running_loop()
    call: ThreadCall[T] = ThreadCall(loop.create_future())
    context = contextvars.copy_context()

    def deliver(settle: Callable[[], None]) -> None:
        call._running = False
        try:
            loop.call_soon_threadsafe(_unless_done, call.future, settle)
        except RuntimeError:
            # The loop was closed meanwhile: nobody waits for this any more.
            return

    def run() -> None:
        call.ident = threading.get_ident()
        try:
            result = context.run(function, *args, **kwargs)
        except BaseException as error:  # noqa: BLE001  # user code: whatever it raises belongs to the one who awaits
            failure = _storable(error)
            deliver(lambda: call.future.set_exception(failure))
        else:
            deliver(lambda: call.future.set_result(result))

    threading.Thread(target=run, name=f"pqrun-{getattr(function, '__name__', 'call')}", daemon=True).start()
    return call


async def run_in_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run ``function`` in a daemon thread and return what it returns; when this is cancelled the thread is abandoned."""
    return await start_in_thread(function, *args, **kwargs).future


def _unless_done(future: "asyncio.Future[T]", settle: Callable[[], None]) -> None:
    if not future.done():
        settle()


def _storable(error: BaseException) -> BaseException:
    """A future refuses StopIteration, and would then never be done; GeneratorExit would close whoever awaits it, unheard."""
    if not isinstance(error, StopIteration | GeneratorExit):
        return error
    replacement = RuntimeError(f"the function raised {type(error).__name__}")
    replacement.__cause__ = error
    return replacement
