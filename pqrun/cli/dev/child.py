"""The process with the worker of ``pqrun dev``, and the web pages beside it: started anew after each change, ended with its parent.

It ends, in order, at SIGTERM and when its standard input ends: that is a pipe from its parent, which closes however the parent dies. A
handler that blocks the event loop cannot keep it then.
"""

import asyncio
import contextlib
import logging
import os
import sys
import threading
import time
from datetime import timedelta
from typing import Any

from pqrun.app import App
from pqrun.cli.dev.pages import serving_pages
from pqrun.cli.signals import heard
from pqrun.cli.target import load_app
from pqrun.cli.worker import LOG_FORMAT
from pqrun.errors import PqrunError
from pqrun.worker import Worker

__all__ = ["main"]

PARTING_SECONDS = 5.0
"""For an orderly end without a parent: beyond, a handler blocks the loop, and nobody is left who would kill the process."""

GRACE = timedelta(seconds=1)
"""For running jobs when the code has changed: they are released then, and run again with the new code."""


def main(target: str, concurrency: int, port: int | None) -> int:
    """Run the worker until it is told to end, with the pages unless ``port`` is None; return the exit code."""
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)
    try:
        app = load_app(target)
        asyncio.run(_run(app, concurrency, port))
    except PqrunError as error:
        sys.stderr.write(f"pqrun: {error}\n")
        return 1
    return 0


async def _run(app: App[Any], concurrency: int, port: int | None) -> None:
    loop = asyncio.get_running_loop()
    async with app:  # an embedded database is started and migrated by this
        await app.store.migrate()
        worker = app.worker(concurrency=concurrency, shutdown_grace=GRACE, environ={})
        _stop_with_parent(loop, worker)
        with heard(loop, lambda _number: worker.stop()):
            async with contextlib.nullcontext() if port is None else serving_pages(app, port):
                await worker.run()


def _stop_with_parent(loop: asyncio.AbstractEventLoop, worker: Worker) -> None:
    def wait() -> None:
        while os.read(sys.stdin.fileno(), 1024):
            pass
        loop.call_soon_threadsafe(worker.stop)
        time.sleep(PARTING_SECONDS)  # the process ends meanwhile, and this thread with it
        os._exit(1)

    threading.Thread(target=wait, name="pqrun-parent", daemon=True).start()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if sys.argv[3:] else None))
