"""The command: keeps one worker process running the present code, until Ctrl-C."""

import asyncio
import contextlib
import os
import secrets
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from pqrun.cli.dev.pages import PORT_DEFAULT, are_pages_installed
from pqrun.cli.dev.watching import FILES_MOST, POLL_SECONDS, Snapshot, changes, snapshot
from pqrun.cli.signals import heard
from pqrun.cli.target import check_target
from pqrun.cli.web import SECRET_VARIABLE
from pqrun.config import dsn_from
from pqrun.embedded.guard import GUARD_LOCK
from pqrun.embedded.locks import FileLock

__all__ = ["dev"]

EMBEDDED: Final = ".pqrun"
"""The folder of the database, where none is named."""

STOP_SECONDS: Final = 45.0
"""For a worker to stop in order: its shutdown timeout and some more. Then it is killed; another one recovers its jobs."""

GUARD_SECONDS: Final = 5.0
"""For the embedded server to end after the last who used it."""

Target = Annotated[str, typer.Argument(metavar="MODULE:APP", help="The App, such as app:jobs.")]
Concurrency = Annotated[int, typer.Option(min=1, help="Jobs at once.")]
Pages = Annotated[
    bool,
    typer.Option("--pages/--no-pages", help="Serve the web pages to this machine, where everybody may do everything."),
]
Port = Annotated[int, typer.Option(min=1, max=65_535, help="Where the pages are; the next free one if it is taken.")]
Reload = Annotated[
    bool, typer.Option("--reload/--no-reload", help="Start the worker anew when a .py file below here changes.")
]


def dev(
    target: Target,
    concurrency: Concurrency = 4,
    reload: Reload = True,
    pages: Pages = True,
    port: Port = PORT_DEFAULT,
) -> None:
    """Run an app for development: a database, its tables, a worker that follows the code, and the web pages. Ctrl-C ends all of it.

    Where neither PQRUN_DSN nor DATABASE_URL is set, an app without a DSN of its own uses a PostgreSQL in the folder .pqrun.
    """
    check_target(target)
    root = Path.cwd()
    environ = dict(os.environ)
    is_embedded = dsn_from(None, environ) is None
    if is_embedded:
        environ["PQRUN_DSN"] = f"embedded:{EMBEDDED}"
        _say(
            f"the database is embedded:{EMBEDDED}, for an app that names none; other commands reach it by --dsn embedded:{EMBEDDED}"
        )
    arguments = [target, str(concurrency)]
    if pages and are_pages_installed():
        environ.setdefault(
            SECRET_VARIABLE, secrets.token_urlsafe(24)
        )  # forms that are open stay good when the pages start anew
        arguments.append(str(port))
    elif pages:
        _say("no web pages: pip install 'pqrun[web]' (--no-pages says no more of it)")
    asyncio.run(_Dev(arguments, root if reload else None, environ).run())
    if is_embedded:
        _wait_for_server(root / EMBEDDED)


def _say(text: str) -> None:
    typer.echo(f"pqrun dev: {text}", err=True)


def _wait_for_server(folder: Path) -> None:
    """See the server's end, unless somebody else uses it too."""
    if (folder / GUARD_LOCK).exists():
        with contextlib.suppress(OSError):
            lock = FileLock(folder / GUARD_LOCK)
            lock.acquire(timeout=GUARD_SECONDS)
            lock.release()


class _Dev:
    """The parent: starts children, one at a time, and ends them."""

    def __init__(self, arguments: Sequence[str], root: Path | None, environ: dict[str, str]) -> None:
        self._arguments = arguments
        self._root = root
        self._environ = environ
        self._ending = asyncio.Event()

    async def run(self) -> None:
        """Go on until a signal."""
        with heard(asyncio.get_running_loop(), lambda _number: self._ending.set()):
            while not self._ending.is_set():
                seen = await self._snapshot()
                child = await self._start()
                try:
                    changed = await self._until_change_or_end(child, seen)
                finally:
                    await _stop(child)
                if changed:
                    more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
                    _say(f"{changed[0]}{more} changed: starting anew")
        _say("ended")

    async def _snapshot(self) -> Snapshot:
        if self._root is None:
            return {}
        found = await asyncio.to_thread(snapshot, self._root)
        if len(found) >= FILES_MOST:
            _say(f"more than {FILES_MOST:,} Python files: changes of the others are not seen")
        return found

    async def _start(self) -> asyncio.subprocess.Process:
        # In a session of its own: Ctrl-C of a terminal reaches this process alone, which tells the child once.
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "pqrun.cli.dev.child",
            *self._arguments,
            env=self._environ,
            stdin=asyncio.subprocess.PIPE,
            start_new_session=True,
        )

    async def _until_change_or_end(self, child: asyncio.subprocess.Process, seen: Snapshot) -> list[str]:
        """Return what has changed; nothing at the end of this command. A child that ends by itself waits for a change."""
        is_told = False
        while not self._ending.is_set():
            if child.returncode is not None and not is_told:
                is_told = True
                self._tell_end(child.returncode)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), POLL_SECONDS)
                return []
            if self._root is not None:
                changed = changes(seen, await asyncio.to_thread(snapshot, self._root))
                if changed:
                    return changed
        return []

    def _tell_end(self, code: int) -> None:
        if self._root is None:
            self._ending.set()
            _say(f"the worker ended (exit code {code})")
        else:
            _say(f"the worker ended (exit code {code}); it starts again when a file changes")


async def _stop(child: asyncio.subprocess.Process) -> None:
    """End it in order: its jobs are released. Killed where it does not end in time."""
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(signal.SIGTERM)
    try:
        await asyncio.wait_for(child.wait(), STOP_SECONDS)
    except TimeoutError:
        _say(f"the worker did not stop within {STOP_SECONDS:g} s: killed")
        child.kill()
        await child.wait()
