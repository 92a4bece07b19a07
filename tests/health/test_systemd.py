"""What systemd hears, on a real socket."""

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pqrun import JobContext, PgJobStore
from pqrun.health import SystemdNotifier
from pqrun.worker import Worker
from tests.support.waiting import wait_until


async def quick(ctx: JobContext) -> None:
    return None


class Listener:
    """Stands for systemd."""

    def __init__(self, address: str) -> None:
        self.heard: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address)
        self._socket.settimeout(0.1)
        self._is_over = False
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        while not self._is_over:
            try:
                self.heard += self._socket.recv(4096).decode().splitlines()
            except TimeoutError:
                continue

    def close(self) -> None:
        self._is_over = True
        self._thread.join()
        self._socket.close()


@contextmanager
def listening(address: str) -> Iterator[Listener]:
    listener = Listener(address)
    try:
        yield listener
    finally:
        listener.close()


@pytest.mark.parametrize("is_abstract", [False, True])
async def test_a_worker_says_when_it_is_ready_and_when_it_stops(
    store: PgJobStore, tmp_path: Path, is_abstract: bool
) -> None:
    name = f"pqrun-test-{os.getpid()}"
    address, variable = (f"\0{name}", f"@{name}") if is_abstract else (str(tmp_path / "notify"),) * 2
    worker = Worker(store=store, handlers={"quick": quick}, worker_id="till", environ={})
    with listening(address) as systemd:
        async with SystemdNotifier(worker, environ={"NOTIFY_SOCKET": variable}), worker.lifespan():
            await wait_until(lambda: "READY=1" in systemd.heard)
            assert systemd.heard == ["READY=1", "STATUS=till works, 1 slots"]
        await wait_until(lambda: "STOPPING=1" in systemd.heard)
    assert not any("WATCHDOG" in line for line in systemd.heard)


async def test_the_watchdog_is_fed_while_the_loop_turns_and_not_while_it_is_blocked(
    store: PgJobStore, tmp_path: Path
) -> None:
    entered = threading.Event()
    go_on = threading.Event()

    async def blocking(ctx: JobContext) -> None:
        entered.set()
        go_on.wait(30)

    address = str(tmp_path / "notify")
    worker = Worker(store=store, handlers={"blocking": blocking}, environ={})
    environ = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "100000", "WATCHDOG_PID": str(os.getpid())}
    counts: list[int] = []

    with listening(address) as systemd:

        def watch() -> None:
            entered.wait(30)
            for _ in range(2):
                counts.append(systemd.heard.count("WATCHDOG=1"))
                threading.Event().wait(1.2)  # longer than two of its turns
            go_on.set()

        async with SystemdNotifier(worker, environ=environ), worker.lifespan():
            await wait_until(lambda: systemd.heard.count("WATCHDOG=1") >= 2)
            thread = threading.Thread(target=watch)
            thread.start()
            await store.wait_end(await store.enqueue("blocking", {}), 60)
            before = systemd.heard.count("WATCHDOG=1")
            await wait_until(lambda: systemd.heard.count("WATCHDOG=1") > before)
            thread.join()
    assert counts[1] - counts[0] <= 1  # one may have been on its way


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"NOTIFY_SOCKET": ""},
        {"NOTIFY_SOCKET": "vsock:2:1"},
    ],
)
async def test_without_a_socket_nothing_is_done(store: PgJobStore, environ: dict[str, str]) -> None:
    worker = Worker(store=store, handlers={"quick": quick}, environ={})
    notifier = SystemdNotifier(worker, environ=environ)
    assert not notifier.is_wanted
    async with notifier, worker.lifespan():
        pass


async def test_a_socket_that_nobody_hears_does_no_harm(store: PgJobStore, tmp_path: Path) -> None:
    worker = Worker(store=store, handlers={"quick": quick}, environ={})
    environ = {"NOTIFY_SOCKET": str(tmp_path / "nobody"), "WATCHDOG_USEC": "1000"}
    async with SystemdNotifier(worker, environ=environ), worker.lifespan():
        await store.wait_end(await store.enqueue("quick", {}), 60)


@pytest.mark.parametrize(
    "watchdog", [{"WATCHDOG_USEC": "abc"}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}]
)
async def test_a_watchdog_that_is_none_of_ours_is_not_fed(
    store: PgJobStore, tmp_path: Path, watchdog: dict[str, str]
) -> None:
    worker = Worker(store=store, handlers={"quick": quick}, environ={})
    address = str(tmp_path / "notify")
    with listening(address) as systemd:
        async with SystemdNotifier(worker, environ={"NOTIFY_SOCKET": address, **watchdog}), worker.lifespan():
            await wait_until(lambda: "READY=1" in systemd.heard)
            await asyncio.sleep(0)
    assert "WATCHDOG=1" not in systemd.heard
