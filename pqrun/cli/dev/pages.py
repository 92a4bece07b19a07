"""The web pages beside the worker of ``pqrun dev``, in a thread of their own: a handler which blocks the event loop can be seen there."""

import asyncio
import errno
import importlib.util
import logging
import os
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import typer

from pqrun.app import App
from pqrun.cli.web import SECRET_VARIABLE

__all__ = ["PORT_DEFAULT", "are_pages_installed", "serving_pages"]

PORT_DEFAULT: Final = 8080

HOST: Final = "127.0.0.1"

PORTS_TRIED: Final = 20
"""From the wanted one on; then any that is free."""

STOP_SECONDS: Final = 5.0
"""For the pages to end; the thread is a daemon, so a hung one does not hold the process."""


def are_pages_installed() -> bool:
    """Whether the ``web`` extra is there."""
    return all(importlib.util.find_spec(name) is not None for name in ("starlette", "jinja2", "uvicorn"))


@asynccontextmanager
async def serving_pages(app: App[Any], port: int) -> AsyncIterator[None]:
    """Serve the pages of an app to this machine, where everybody is an admin, on ``port`` or the next that is free."""
    import uvicorn  # the extra

    from pqrun.web import LocalOnly, Role, create_app

    pages = create_app(app, authorize=LocalOnly(Role.ADMIN), secret=os.environ.get(SECRET_VARIABLE))
    listening = _listen(port)
    config = uvicorn.Config(
        pages,
        proxy_headers=False,
        server_header=False,
        access_log=False,
        log_config=None,
        log_level="warning",
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    serving = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="pqrun pages", daemon=True)
    serving.start()
    typer.echo(f"pqrun dev: pages at http://{HOST}:{listening.getsockname()[1]}", err=True)
    try:
        yield
    finally:
        # Of streams that open pages hold it would tell as of errors; they come again when the pages do.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        server.should_exit = True
        await asyncio.to_thread(serving.join, STOP_SECONDS)


def _listen(port: int) -> socket.socket:
    """Bind a socket: at once also where the process before has just left it, which on Windows would take one that is in use."""
    for tried in (*range(port, min(port + PORTS_TRIED, 65_536)), 0):
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            if os.name == "posix":
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((HOST, tried))
            listening.listen()
        except OSError as error:
            listening.close()
            if error.errno not in (errno.EADDRINUSE, errno.EACCES) or not tried:
                raise
        else:
            return listening
    raise AssertionError("port 0 is always tried")
