"""The process that starts an embedded server, and stops it when its last holder is gone.

It runs by file path (``python -I -S guard.py REQUEST``), so it imports nothing of pqrun: a guard sleeps beside the
server for as long as that lives, and should cost next to nothing. For the same reason the few things that the launcher
shares with it (file locks, reading ``postmaster.pid``) stand here.

What it promises. Three lock files lie in the folder that the user named (PATH):

- ``holders.lock`` is held shared by everyone who uses the server. The kernel drops a lock however its process died.
- ``start.lock`` is held by whoever starts or stops the server, never longer than that takes.
- ``guard.lock`` is held by the one guard for its whole life: free means that the guard was killed.

The server is started *by* this process, which is a holder itself meanwhile: an owner who is killed in the middle leaves
a server with a guard, not one without. Then it waits, in a blocking lock call and without polling, for ``holders.lock``
to be free. A newcomer may arrive between that moment and the stop, so the guard takes ``start.lock`` and asks again
before it stops anything. It never holds ``holders.lock`` while it waits for ``start.lock``, because a starter waits for
them in the other order.

As root, it opens the files in PATH and then gives up root for good: all that follows, PostgreSQL included, runs as the
server's own user.
"""

# Only PostgreSQL's own programs are run here, without a shell, with arguments of the launcher.
# ruff: noqa: S603

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Literal, NamedTuple, TypedDict

__all__ = [
    "GUARD_LOCK",
    "HOLDERS_LOCK",
    "SERVER_LOG",
    "START_LOCK",
    "START_SECONDS",
    "TEMPORARY_SOCKETS",
    "Postmaster",
    "Request",
    "is_alive",
    "lock_file",
    "read_postmaster",
    "unlock_file",
]

HOLDERS_LOCK = "holders.lock"
START_LOCK = "start.lock"
GUARD_LOCK = "guard.lock"
SERVER_LOG = "server.log"

TEMPORARY_SOCKETS = "pqrun-socket-"
"""How the name of a socket folder outside PATH begins: it is removed with its server."""

START_SECONDS = 60
"""A start that takes longer has failed; only recovery after a crash takes time, and these databases are small."""

_FAST_STOP_SECONDS = 30.0
_IMMEDIATE_STOP_SECONDS = 10.0
_LOG_BYTES = 10_000_000  # a larger log is set aside at the next start; one old one is kept


class Request(TypedDict):
    """What the launcher asks of this process; travels as JSON in the argument list, so nothing secret belongs here."""

    action: Literal["start", "guard", "stop"]
    home: str
    data: str
    pg_ctl: str
    options: str
    account: tuple[int, int] | None
    start_lock: int


class Postmaster(NamedTuple):
    """What a server says of itself in ``postmaster.pid``; fields that it has not written yet are 0 or empty."""

    pid: int
    port: int
    socket_folder: str
    status: str


if sys.platform == "win32":
    import msvcrt

    _ALL_BYTES = 0x7FFF_FFFF

    def lock_file(fd: int, *, shared: bool = False, wait: bool = False) -> bool:
        """Lock an open file; False if it is taken and ``wait`` is False.

        Windows locks ranges, and only exclusively: a shared holder takes one byte of its own, an exclusive one all.
        """
        while True:
            os.lseek(fd, int.from_bytes(os.urandom(3), "little") if shared else 0, os.SEEK_SET)
            try:
                msvcrt.locking(fd, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1 if shared else _ALL_BYTES)
            except OSError:  # LK_LOCK gives up after ten seconds
                if not wait:
                    return False
            else:
                return True

    def unlock_file(fd: int) -> None:
        """Drop the lock that this open file holds, a shared one (at the file's position) or an exclusive one."""
        for offset, size in ((os.lseek(fd, 0, os.SEEK_CUR), 1), (0, _ALL_BYTES)):
            os.lseek(fd, offset, os.SEEK_SET)
            with contextlib.suppress(OSError):
                msvcrt.locking(fd, msvcrt.LK_UNLCK, size)

else:
    import fcntl

    def lock_file(fd: int, *, shared: bool = False, wait: bool = False) -> bool:
        """Lock an open file; False if it is taken and ``wait`` is False."""
        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        return True

    def unlock_file(fd: int) -> None:
        """Drop the lock that this open file holds."""
        fcntl.flock(fd, fcntl.LOCK_UN)


def read_postmaster(data: Path) -> Postmaster | None:
    """Give what the server of this data folder wrote about itself; None if there is none. It may be long dead."""
    try:
        lines = (data / "postmaster.pid").read_text("utf-8", "surrogateescape").splitlines()
    except FileNotFoundError:
        return None
    lines += [""] * (8 - len(lines))
    if not lines[0].strip().isdigit():
        return None
    port = int(lines[3]) if lines[3].strip().isdigit() else 0
    return Postmaster(int(lines[0]), port, lines[4], lines[7].strip())


def is_alive(pid: int, data: Path) -> bool:
    """Tell whether this process is the server of this data folder.

    After a power cut, or in a container, ``postmaster.pid`` may name a number that is somebody else's by now.
    """
    if sys.platform == "win32":
        # os.kill would end the process there.
        tasks = subprocess.run(["tasklist", "/FI", f"PID eq {pid}"], capture_output=True, text=True, check=False)  # noqa: S607  # a part of Windows
        return "postgres" in tasks.stdout
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):  # another user's process is never this server
        return False
    if not Path("/proc/self/cwd").exists():
        ps = subprocess.run(["ps", "-o", "stat=,comm=", "-p", str(pid)], capture_output=True, text=True, check=False)  # noqa: S607  # where ps lies differs between systems
        return "postgres" in ps.stdout and not ps.stdout.startswith("Z")
    try:
        return Path(f"/proc/{pid}/cwd").samefile(data)  # a server's working directory is its data folder
    except PermissionError:  # the same user in another group may read only the command line, which names the folder
        return _reads_as_server(pid, data)
    except OSError:  # a zombie has no working directory
        return False


def _reads_as_server(pid: int, data: Path) -> bool:
    try:
        return os.fsencode(data) in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def _stop_server(pg_ctl: str, data: Path) -> bool:
    postmaster = read_postmaster(data)
    if postmaster is None or not is_alive(postmaster.pid, data):
        return True
    if sys.platform == "win32":
        stop = [pg_ctl, "stop", "-s", "-D", str(data), "-w", "-t"]
        modes = (["30", "-m", "fast"], ["10", "-m", "immediate"])
        return any(subprocess.run([*stop, *mode], check=False).returncode == 0 for mode in modes)
    steps = (
        (signal.SIGINT, _FAST_STOP_SECONDS),
        (signal.SIGQUIT, _IMMEDIATE_STOP_SECONDS),
        (signal.SIGKILL, _IMMEDIATE_STOP_SECONDS),
    )
    stopped = any(_signal_and_wait(postmaster.pid, data, number, seconds) for number, seconds in steps)
    _remove_sockets(postmaster)
    return stopped


def _signal_and_wait(pid: int, data: Path, number: int, seconds: float) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
    deadline = time.monotonic() + seconds
    while is_alive(pid, data):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _remove_sockets(postmaster: Postmaster) -> None:
    folder = Path(postmaster.socket_folder)
    with contextlib.suppress(OSError):
        for name in (f".s.PGSQL.{postmaster.port}", f".s.PGSQL.{postmaster.port}.lock"):
            (folder / name).unlink(missing_ok=True)
        if folder.name.startswith(TEMPORARY_SOCKETS):
            folder.rmdir()


def _remove_stale_files(data: Path) -> None:
    """Remove what a dead server left and what would keep PostgreSQL from starting.

    PostgreSQL sees for itself when the process that it noted is gone, but not when the number belongs to another
    process of the same user: then its files go. Else they stay, because PostgreSQL learns from them about shared
    memory that is still in use.
    """
    stale = read_postmaster(data)
    # Alive: the launcher found none, but the program of one that was killed may have come that far since.
    if stale is None or sys.platform == "win32" or is_alive(stale.pid, data):
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(stale.pid, 0)
        (data / "postmaster.pid").unlink()
    _remove_sockets(stale)


def _start_server(request: Request) -> bool:
    data, log = Path(request["data"]), Path(request["data"]) / SERVER_LOG
    _remove_stale_files(data)
    with contextlib.suppress(FileNotFoundError):
        if log.stat().st_size > _LOG_BYTES:
            log.replace(log.with_suffix(".log.old"))
    command = [request["pg_ctl"], "start", "-s", "-D", str(data), "-l", str(log), "-w", "-t", str(START_SECONDS)]
    # Straight to this process's own log: through a pipe, a server that inherited it would keep a reader waiting.
    if subprocess.run([*command, "-o", request["options"]], check=False).returncode == 0:
        return True
    _stop_server(request["pg_ctl"], data)  # a server that was merely too slow would have no guard
    return False


def _give_up_root(account: tuple[int, int]) -> None:
    if sys.platform != "win32":
        os.setgroups([])
        os.setgid(account[1])
        os.setuid(account[0])


def _detach(request: Request, guard: int) -> None:
    """Let the launcher go on: the process that it waits for ends, the guard lives on as nobody's child."""
    if sys.platform == "win32":
        unlock_file(guard)  # the new process takes it; start.lock keeps all others out meanwhile
        again: Request = {**request, "action": "guard"}
        flags = subprocess.DETACHED_PROCESS | subprocess.CREATE_NEW_PROCESS_GROUP
        command = [sys.executable, "-I", "-S", __file__, json.dumps(again), "detached"]
        child = subprocess.Popen(command, creationflags=flags)
        while child.poll() is None and lock_file(guard):
            unlock_file(guard)
            time.sleep(0.05)
        os._exit(0)
    if os.fork():
        os._exit(0)
    os.setsid()


def _watch(holders: int, start: int, guard: int, request: Request, identity: int | None) -> None:
    data = Path(request["data"])
    while True:
        lock_file(holders, wait=True)
        unlock_file(holders)  # at once: who has start.lock may be waiting for it
        lock_file(start, wait=True)
        if lock_file(holders):
            break
        unlock_file(start)
    if _is_same_folder(data, identity) and not _stop_server(request["pg_ctl"], data):
        print(f"the server of {data} did not stop", file=sys.stderr)  # noqa: T201  # goes to guard.log
    os.close(guard)  # before start.lock: the next starter must see that there is no guard
    os.close(start)


def _hold_folder(data: str) -> int | None:
    """Open the data folder, so that its inode is not given to a new one; Windows cannot, nor can it be deleted there."""
    if sys.platform == "win32":
        return None
    try:
        return os.open(data, os.O_RDONLY)
    except FileNotFoundError:  # deleted under its server
        return None


def _is_same_folder(data: Path, identity: int | None) -> bool:
    """Refuse to stop the server of a folder that was deleted and made anew: it has another guard."""
    if identity is None:
        return True
    try:
        return os.path.samestat(os.fstat(identity), data.stat())
    except FileNotFoundError:
        return False


def main(request: Request) -> int:
    """Do what the launcher asks; 0 means done (or that the guard now watches), 1 that PostgreSQL refused."""
    home = Path(request["home"])
    holders, start, guard = (os.open(home / name, os.O_RDWR) for name in (HOLDERS_LOCK, START_LOCK, GUARD_LOCK))
    identity = _hold_folder(request["data"])
    if request["account"] is not None:
        _give_up_root(request["account"])
    if request["action"] == "stop":
        return 0 if _stop_server(request["pg_ctl"], Path(request["data"])) else 1
    lock_file(holders, shared=True, wait=True)
    if request["action"] == "start" and not _start_server(request):
        return 1
    detached = sys.argv[2:] == ["detached"]
    if not lock_file(guard, wait=detached):
        return 0
    if not detached:
        _detach(request, guard)
    for name in ("SIGINT", "SIGHUP"):  # only now: PostgreSQL would have inherited it
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    if request["start_lock"] >= 0:
        os.close(request["start_lock"])
    unlock_file(holders)
    _watch(holders, start, guard, request, identity)
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
