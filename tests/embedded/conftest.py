"""Folders for embedded servers, and processes that own one."""

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.embedded.owners import Owner, wait_until_stopped

if sys.platform != "linux":
    collect_ignore_glob = ["test_*.py"]  # what these tests look at is in /proc


def _clean(home: Path) -> None:
    pointer = home / "system-folder"
    base = Path("/var/lib/pqrun") / pointer.read_text().strip() if pointer.exists() else home
    wait_until_stopped(home, base / "pgdata")
    if base != home:
        shutil.rmtree(base)


@pytest.fixture
def home() -> Iterator[Path]:
    """A PATH that every user can reach, with a short name; pytest's own folders are private to its user."""
    parent = Path(tempfile.mkdtemp(prefix="pqrun-test-", dir="/tmp"))
    parent.chmod(0o755)
    yield parent / "db"
    _clean(parent / "db")
    shutil.rmtree(parent)


@pytest.fixture
def closed_home(tmp_path: Path) -> Iterator[Path]:
    """A PATH below a folder that only the user of the tests can enter."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    home = closed / "deeper" / "db"
    yield home
    _clean(home)


@pytest.fixture
def own() -> Iterator[Callable[[Path], Owner]]:
    """Make owner processes, which end with the test."""
    owners: list[Owner] = []

    def make(home: Path) -> Owner:
        owners.append(Owner(home))
        return owners[-1]

    yield make
    for owner in owners:
        owner.dispose()
