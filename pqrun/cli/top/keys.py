"""The key that ends the live view, read without echo; the terminal is left as it was."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Iterator

__all__ = ["heard_keys"]


@contextlib.contextmanager
def heard_keys(loop: asyncio.AbstractEventLoop, on_quit: Callable[[], None]) -> Iterator[None]:
    """Call ``on_quit`` when ``q`` is typed; where there is no terminal to read (or no POSIX), nobody is called."""
    try:
        import termios
        import tty
    except ImportError:  # Windows
        yield
        return
    try:
        terminal = sys.stdin.fileno()
        before = termios.tcgetattr(terminal)
    except (OSError, ValueError, termios.error):  # closed, a file, or a pipe
        yield
        return

    def read() -> None:
        typed = os.read(terminal, 1024)
        if not typed:  # it is gone: it would be readable for ever
            loop.remove_reader(terminal)
        elif b"q" in typed.lower():
            on_quit()

    try:
        tty.setcbreak(terminal)
        loop.add_reader(terminal, read)
        yield
    finally:
        loop.remove_reader(terminal)
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
