"""Starting from asyncio."""

import asyncio
import threading
from pathlib import Path

import pytest

from pqrun.embedded import start_server_async
from pqrun.embedded.locks import FileLock
from pqrun.embedded.places import prepare_home
from pqrun.errors import EmbeddedError
from tests.embedded.owners import FAST, ask, processes_in, wait_until_stopped


async def test_an_async_start_and_close_do_what_the_others_do(home: Path) -> None:
    server = await start_server_async(home, settings=FAST)
    assert await asyncio.to_thread(ask, server.dsn, "select 1") == 1
    await server.aclose()
    assert not processes_in(server.data_path)


def test_an_async_start_raises_what_the_other_raises(home: Path) -> None:
    home.write_text("")
    with pytest.raises(EmbeddedError, match="Expected a folder"):
        asyncio.run(start_server_async(home))
    home.unlink()


async def test_a_cancelled_start_leaves_no_server(home: Path) -> None:
    start = FileLock(prepare_home(home) / "start.lock")
    assert start.acquire(timeout=10)
    task = asyncio.create_task(start_server_async(home, settings=FAST))
    await asyncio.sleep(0)  # lets the task begin, and so start its thread
    (worker,) = [thread for thread in threading.enumerate() if thread.name == "pqrun-embedded"]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert start.release()
    await asyncio.to_thread(worker.join, 60)  # it starts the server all the same: nobody can stop it
    await asyncio.to_thread(wait_until_stopped, home, home / "pgdata")
