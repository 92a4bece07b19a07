"""The user that the server runs as.

PostgreSQL refuses to run as root. A caller who is root therefore lends the server the identity of a user that exists
already; none is created. ``nobody`` comes first because the database's superuser may run programs as the server's
user, and that one should own nothing.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pqrun.errors import EmbeddedError

__all__ = [
    "Account",
    "account_for",
    "can_access",
    "clean_environment",
    "make_private_folder",
    "open_private",
    "owner_of",
    "run_as",
]

_CANDIDATES = ("nobody", "postgres")

# The rest of the caller's environment stays behind: PG* variables would change what the programs do, and other users'
# processes can read a server's environment, where a caller may keep secrets.
_KEPT_VARIABLES = (
    "PATH",
    "LD_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH",
    "SYSTEMROOT",
    "COMSPEC",
    "TEMP",
    "TMP",
    "TMPDIR",
    "APPDATA",
    "USERPROFILE",
)


@dataclass(frozen=True, slots=True)
class Account:
    """A user of the system, by number, with its primary group and no other."""

    name: str
    uid: int
    gid: int


def owner_of(path: Path) -> Account | None:
    """Give the user that a file belongs to; None for root, and for a number that has no name (initdb needs one)."""
    if sys.platform == "win32":
        return None
    import pwd  # absent on Windows

    try:
        entry = pwd.getpwuid(path.stat().st_uid)
    except KeyError:
        return None
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid) if entry.pw_uid else None


def account_for(home: Path) -> Account | None:
    """Choose the user for a new server of this folder: None means the caller's own, who is not root.

    For root it is the folder's owner, so that what ``sudo`` started can be used without it, else an unprivileged user.
    """
    if sys.platform == "win32" or os.geteuid() != 0:
        return None
    owner = owner_of(home)
    if owner is not None:
        return owner
    import pwd  # absent on Windows

    for name in _CANDIDATES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)
    expected = " or ".join(_CANDIDATES)
    raise EmbeddedError(
        f"PostgreSQL does not run as root, and this system has no user {expected} to run it as: "
        "create one of them, or start your program as an ordinary user"
    )


def clean_environment() -> dict[str, str]:
    """Give the environment for PostgreSQL's programs: what they need to run, and messages in English."""
    return {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ} | {"LC_ALL": "C"}


def run_as(account: Account | None, command: Sequence[str], *, seconds: float) -> subprocess.CompletedProcess[str]:
    """Run a program as this user and wait; output is captured, stderr within stdout.

    Raises EmbeddedError if root may not become that user, or if it takes longer than ``seconds``.
    """
    try:
        return subprocess.run(  # noqa: S603  # our own arguments, no shell
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            check=False,
            timeout=seconds,
            cwd=os.sep,  # the caller's folder may be closed to the user
            env=clean_environment(),
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=[] if account else None,
        )
    except subprocess.TimeoutExpired:
        raise EmbeddedError(f"{Path(command[0]).name} was expected to end within {seconds:g} s and did not") from None
    except OSError as error:
        if account is None:
            raise
        raise EmbeddedError(
            f"root could not run {command[0]} as user {account.name}: {error}. "
            "Start your program as an ordinary user, or allow it to change its user"
        ) from error


def can_access(account: Account, path: Path, test: str) -> bool:
    """Tell whether this user passes ``test -<test> path``: asked of the system itself, which knows of ACLs."""
    return run_as(account, ["/bin/sh", "-c", f'test -{test} "$1"', "sh", str(path)], seconds=10).returncode == 0


def make_private_folder(path: Path, account: Account | None) -> Path:
    """Create a folder (mode 0700) that belongs to this user; raises FileExistsError if there is something."""
    path.mkdir(mode=0o700)
    if account is not None and sys.platform != "win32":
        os.chown(path, account.uid, account.gid, follow_symlinks=False)
    return path


def open_private(path: Path, flags: int) -> int:
    """Open a file, creating it (mode 0600) if it is missing, and give its number; never follows a link.

    As root it is given to the owner of its folder: what ``sudo`` started there can later be used without it.
    """
    fd = os.open(path, flags | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
    if sys.platform != "win32" and os.geteuid() == 0:
        owner = path.parent.stat()
        os.fchown(fd, owner.st_uid, owner.st_gid)
    return fd
