"""Where the parts of an embedded server lie.

PATH, the folder that the user named, always holds the lock files. Data and socket lie there too, unless root named a
folder that the server's user cannot reach: then they lie in a folder of their own below ``/var/lib/pqrun``, and PATH
holds a file that says which. Deleting PATH thus always means a fresh database: a folder that no PATH points to any
more is removed when the next one is made.
"""

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from pqrun.embedded.account import Account, account_for, can_access, make_private_folder, open_private, owner_of
from pqrun.embedded.guard import TEMPORARY_SOCKETS, is_alive, read_postmaster
from pqrun.errors import EmbeddedError

__all__ = ["Places", "choose_places", "prepare_home", "socket_folder", "system_folder"]

SYSTEM_FOLDER = Path("/var/lib/pqrun")
"""Root's folder for what the server's user cannot reach elsewhere."""

_POINTER = "system-folder"
_ORIGIN = "origin.json"
_POINTER_FORM = re.compile(r"[0-9a-f]{16}-[0-9a-f]{8}")

_SOCKET_NAME = "/.s.PGSQL.5432.lock"
_SOCKET_PATH_BYTES = 103  # the shortest limit among the systems (macOS); Linux has 107

# PostgreSQL and asyncpg both read a folder's name as a list, with quotes of their own: other names go elsewhere.
_PLAIN_FOLDER = re.compile(r"/[A-Za-z0-9/_.+@-]+")


@dataclass(frozen=True, slots=True)
class Places:
    """``home`` is PATH, ``base`` holds data and sockets, ``account`` is the server's user (None: the caller)."""

    home: Path
    base: Path
    account: Account | None

    @property
    def data(self) -> Path:
        """The data folder; it exists only when it is complete."""
        return self.base / "pgdata"


def prepare_home(path: str | os.PathLike[str]) -> Path:
    """Create PATH if it is missing and give it without links, so that each spelling means the same server."""
    home = Path(path).expanduser().resolve()
    home.mkdir(parents=True, exist_ok=True)
    return home


def choose_places(home: Path) -> Places:
    """Find where the server of this PATH lives, or choose it; the caller holds ``start.lock``."""
    account = account_for(home)
    if account is None:
        if (home / _POINTER).exists() and not (home / "pgdata").exists():
            raise EmbeddedError(
                f"root made the database of {home}, and its data lies in {SYSTEM_FOLDER}: start your program as root, "
                f"name another PATH, or remove {home / _POINTER} to begin with fresh data"
            )
        return Places(home, home, None)
    inside = Places(home, home, account)
    pointed = _read_pointer(home)
    if inside.data.exists():
        inside = Places(home, home, owner_of(inside.data) or account)
        if can_access(inside.account or account, home, "x"):
            return inside
        raise EmbeddedError(
            f"{inside.data} belongs to user {(inside.account or account).name}, who must be able to reach it and "
            "cannot: open the folders above it to that user (chmod o+x), or name another PATH"
        )
    if pointed is None and can_access(account, home, "x"):
        return inside
    base = pointed or _new_pointer(home)
    _make_passable(base)
    existing = base / "pgdata"
    return Places(home, base, (owner_of(existing) if existing.exists() else None) or account)


def system_folder(name: str = "") -> Path:
    """Create root's folder, or one in it, where others may pass but not write; raises EmbeddedError if it cannot be."""
    for folder in (SYSTEM_FOLDER, SYSTEM_FOLDER / name):
        try:
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        except OSError as error:
            raise EmbeddedError(
                f"{folder} could not be created ({error}); root needs it for a PATH that an unprivileged user cannot "
                "reach. Name a PATH that others may enter, or start your program as an ordinary user"
            ) from error
        if folder.lstat().st_uid != 0:
            raise EmbeddedError(f"{folder} was expected to belong to root: remove it, or give it to root")
        folder.chmod(0o755)  # the caller's umask may have taken away what the server's user needs
    return SYSTEM_FOLDER / name


def _make_passable(base: Path) -> None:
    base.mkdir(exist_ok=True)
    base.chmod(0o711)  # whatever the caller's umask: the server's user passes through to its own folders


def _read_pointer(home: Path) -> Path | None:
    try:
        name = (home / _POINTER).read_text("ascii").strip()
    except FileNotFoundError:
        return None
    except ValueError:
        name = ""
    if not _POINTER_FORM.fullmatch(name):  # others may write in PATH: follow it nowhere else
        raise EmbeddedError(f"{home / _POINTER} does not name a folder of pqrun: remove it to begin with fresh data")
    return system_folder() / name


def _new_pointer(home: Path) -> Path:
    _remove_orphans()
    name = f"{hashlib.sha256(os.fsencode(home)).hexdigest()[:16]}-{secrets.token_hex(4)}"
    # Before the folder: one without a pointer to it is an orphan.
    with os.fdopen(open_private(home / _POINTER, os.O_WRONLY | os.O_EXCL), "w", encoding="ascii") as pointer:
        pointer.write(f"{name}\n")
    base = system_folder() / name
    _make_passable(base)
    (base / _ORIGIN).write_text(json.dumps({"path": str(home), "device": home.stat().st_dev}), "utf-8")
    return base


def _remove_orphans() -> None:
    for origin in system_folder().glob(f"*/{_ORIGIN}"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            noted = json.loads(origin.read_text("utf-8"))
            if _is_orphan(origin.parent, Path(noted["path"]), noted["device"]):
                shutil.rmtree(origin.parent, ignore_errors=True)


def _is_orphan(base: Path, home: Path, device: int) -> bool:
    postmaster = read_postmaster(base / "pgdata")
    if postmaster is not None and is_alive(postmaster.pid, base / "pgdata"):
        return False
    pointer = home / _POINTER
    if pointer.exists():
        return pointer.read_text("ascii").strip() != base.name
    # Deleted, or on a disk that is not mounted now? Then what is left of the path lies on another device.
    nearest = next(folder for folder in (home, *home.parents) if folder.exists())
    return nearest.stat().st_dev == device


def socket_folder(places: Places) -> Path:
    """Give the private folder for the server's socket: beside the data, or a temporary one if that name is too long."""
    folder = places.base / "socket"
    if not _is_fit(folder):
        return _temporary_socket_folder(places.account)
    with contextlib.suppress(FileExistsError):
        make_private_folder(folder, places.account)
    if sys.platform != "win32":
        found, uid = folder.lstat(), places.account.uid if places.account else os.geteuid()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid or found.st_mode & 0o077:
            raise EmbeddedError(f"{folder} was expected to be a folder that only user {uid} may enter: remove it")
    return folder


def _temporary_socket_folder(account: Account | None) -> Path:
    for parent in (Path(tempfile.gettempdir()), Path("/tmp")):  # noqa: S108  # the folder in it gets a random name and is private
        if _is_fit(parent / f"{TEMPORARY_SOCKETS}xxxxxxxx") and (account is None or can_access(account, parent, "x")):
            folder = Path(tempfile.mkdtemp(prefix=TEMPORARY_SOCKETS, dir=parent))
            if account is not None and sys.platform != "win32":
                os.chown(folder, account.uid, account.gid, follow_symlinks=False)
            return folder
    raise EmbeddedError(
        f"no folder with a name short enough for a socket: set TMPDIR to one of {_SOCKET_PATH_BYTES - 40} bytes"
    )


def _is_fit(folder: Path) -> bool:
    name = str(folder)
    return len(os.fsencode(name + _SOCKET_NAME)) <= _SOCKET_PATH_BYTES and bool(_PLAIN_FOLDER.fullmatch(name))
