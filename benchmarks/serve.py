"""``python -m benchmarks.serve DSN``: a worker process of a measurement. Tells its parent "ready" and "started SECONDS", ends by SIGTERM.

It is the public API and nothing else: an app, its worker, an event loop.
"""

import argparse
import asyncio
import importlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

from benchmarks.chaos.child import end_with_parent
from benchmarks.no_op import Recorder
from benchmarks.processes import loop_factory
from pqrun import App
from pqrun.worker import WorkerOptions

__all__ = ["main"]

Factory = Callable[[str, Recorder], App[None]]


def main() -> None:
    """Work until SIGTERM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("dsn")
    parser.add_argument("--app", default="benchmarks.no_op:plain")
    parser.add_argument("--loop", choices=("uvloop", "asyncio"), default="asyncio")
    parser.add_argument("--concurrency", type=int)
    parser.add_argument("--queues")
    parser.add_argument("--log-level")
    parser.add_argument("--subscribe", action="store_true")
    parser.add_argument("--record", type=Path)
    arguments = parser.parse_args()
    if arguments.log_level is not None:
        logging.basicConfig(level=arguments.log_level, stream=sys.stderr)
    recorder = Recorder(arguments.record)
    app = _factory(arguments.app)(arguments.dsn, recorder)
    options: WorkerOptions = {"environ": {}}
    if arguments.concurrency is not None:
        options["concurrency"] = arguments.concurrency
    if arguments.queues is not None:
        options["queues"] = arguments.queues.split(",")
    with asyncio.Runner(loop_factory=loop_factory(arguments.loop)) as runner:
        runner.run(_work(app, options, is_subscribed=arguments.subscribe))
    recorder.write()


def _factory(name: str) -> Factory:
    module, _, attribute = name.partition(":")
    return cast(Factory, getattr(importlib.import_module(module), attribute))


async def _work(app: App[None], options: WorkerOptions, *, is_subscribed: bool) -> None:
    worker = app.worker(**options)
    if is_subscribed:
        worker.events.subscribe(lambda _event: None, wants=lambda _kind: False)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    end_with_parent()
    os.write(sys.stdout.fileno(), f"ready {time.time()!r}\n".encode())
    await worker.run()


if __name__ == "__main__":
    main()
