"""File locks with a limit on every wait."""

import os
import shutil
from pathlib import Path

from pqrun.embedded.locks import FileLock


def test_an_exclusive_lock_keeps_others_out_until_it_is_released(tmp_path: Path) -> None:
    first, second = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    assert first.acquire(timeout=0)
    assert not second.acquire(timeout=0.05)
    assert first.release()
    assert second.acquire(timeout=0)
    assert second.release()


def test_shared_locks_keep_only_exclusive_ones_out(tmp_path: Path) -> None:
    first, second, third = (FileLock(tmp_path / "lock") for _ in range(3))
    assert first.acquire(shared=True, timeout=0)
    assert second.acquire(shared=True, timeout=0)
    assert not third.acquire(timeout=0)
    assert first.release()
    assert not third.acquire(timeout=0)
    assert second.release()
    assert third.acquire(timeout=0)
    assert third.release()


def test_a_second_release_says_so(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "lock")
    assert lock.acquire(timeout=0)
    assert lock.release()
    assert not lock.release()
    assert lock.fd == -1


def test_a_refused_lock_leaves_no_open_file(tmp_path: Path) -> None:
    holder = FileLock(tmp_path / "lock")
    assert holder.acquire(timeout=0)
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert not FileLock(tmp_path / "lock").acquire(timeout=0)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert holder.release()


def test_a_lock_in_a_deleted_folder_does_not_count_in_the_new_one(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    old, new = FileLock(folder / "lock"), FileLock(folder / "lock")
    assert old.acquire(timeout=0)
    shutil.rmtree(folder)
    folder.mkdir()
    assert new.acquire(timeout=0)
    assert new.release()
    assert old.release()


def test_the_lock_file_is_private_and_no_program_inherits_it(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "lock")
    assert lock.acquire(timeout=0)
    assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o600
    assert not os.get_inheritable(lock.fd)
    assert lock.release()
