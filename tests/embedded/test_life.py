"""Who keeps a server alive, and what stops it."""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

from pqrun.embedded import start_server
from tests.embedded.owners import FAST, Owner, ask, guards_of, processes_in, wait_until, wait_until_stopped

Own = Callable[[Path], Owner]


def test_a_server_answers_and_its_last_close_stops_it(home: Path) -> None:
    server = start_server(home, settings=FAST)
    assert ask(server.dsn, "select 1") == 1
    assert server.pid in processes_in(server.data_path)
    server.close()
    assert not processes_in(server.data_path)
    server.close()


def test_data_survives_a_restart(home: Path) -> None:
    with start_server(home, settings=FAST) as server:
        ask(server.dsn, "create table kept as select 41 + 1 as n")
    with start_server(home, settings=FAST) as server:
        assert ask(server.dsn, "select n from kept") == 42


def test_another_database_has_a_dsn_too(home: Path) -> None:
    with start_server(home, settings=FAST) as server:
        ask(server.dsn, 'create database "odd / näme?"')
        assert ask(server.dsn_for("odd / näme?"), "select current_database()") == "odd / näme?"


def test_calls_in_one_process_count_separately(home: Path) -> None:
    first, second = start_server(home, settings=FAST), start_server(home)
    assert first.pid == second.pid
    first.close()
    assert ask(second.dsn, "select 1") == 1
    second.close()
    assert not processes_in(second.data_path)


def test_two_processes_share_one_server_and_either_may_leave_first(home: Path, own: Own) -> None:
    owner = own(home).wait_ready()
    with start_server(home) as server:
        assert server.pid == owner.pid
        owner.leave()
        assert ask(server.dsn, "select 1") == 1
    assert not processes_in(server.data_path)


def test_first_starts_at_the_same_time_make_one_server(home: Path, own: Own) -> None:
    owners = [own(home) for _ in range(4)]
    assert len({owner.wait_ready().pid for owner in owners}) == 1
    assert len(guards_of(home)) == 1


def test_a_killed_owner_leaves_no_server(home: Path, own: Own) -> None:
    owner = own(home).wait_ready()
    assert owner.pid in processes_in(owner.data)
    owner.kill_group()
    wait_until_stopped(home, owner.data)


def test_a_killed_owner_leaves_the_server_to_the_others(home: Path, own: Own) -> None:
    owner = own(home).wait_ready()
    with start_server(home) as server:
        owner.kill_group()
        assert ask(server.dsn, "select 1") == 1
        assert server.pid == owner.pid


def test_an_owner_killed_while_it_starts_leaves_no_server(home: Path, own: Own) -> None:
    with start_server(home, settings=FAST):
        pass
    wait_until(lambda: not guards_of(home), "the guard to end")
    owner = own(home)
    wait_until(lambda: bool(guards_of(home)), "the start")
    owner.kill_group()
    wait_until_stopped(home, home / "pgdata")
    with start_server(home, settings=FAST) as server:
        assert ask(server.dsn, "select 1") == 1


def test_an_interrupt_in_the_owners_terminal_spares_the_server(home: Path, own: Own) -> None:
    with start_server(home, settings=FAST) as server:
        owner = own(home).wait_ready()
        owner.kill_group(signal.SIGINT)
        assert ask(server.dsn, "select 1") == 1
    owner = own(home).wait_ready()
    assert os.getsid(owner.pid) != os.getsid(owner.process.pid)
    assert os.getpgid(owner.pid) != os.getpgid(owner.process.pid)


def test_newcomers_during_a_stop_get_a_server(home: Path, own: Own) -> None:
    for _ in range(5):
        owner = own(home).wait_ready()
        owner.kill_group()
        with start_server(home, settings=FAST) as server:  # the guard is stopping, or about to
            assert ask(server.dsn, "select 1") == 1


def test_a_killed_guard_is_replaced_by_the_next_start(home: Path, own: Own) -> None:
    owner = own(home).wait_ready()
    (guard,) = guards_of(home)
    os.kill(guard, signal.SIGKILL)
    wait_until(lambda: not guards_of(home), "the guard to die")
    second = own(home).wait_ready()
    assert second.pid == owner.pid
    assert len(guards_of(home)) == 1
    owner.kill_group()
    second.kill_group()
    wait_until_stopped(home, owner.data)


def test_a_killed_guard_is_replaced_when_a_holder_leaves(home: Path, own: Own) -> None:
    owner, second = own(home).wait_ready(), own(home).wait_ready()
    (guard,) = guards_of(home)
    os.kill(guard, signal.SIGKILL)
    wait_until(lambda: not guards_of(home), "the guard to die")
    second.leave()
    assert len(guards_of(home)) == 1
    owner.kill_group()
    wait_until_stopped(home, owner.data)


def test_the_last_close_stops_the_server_without_a_guard(home: Path) -> None:
    with start_server(home, settings=FAST) as server:
        (guard,) = guards_of(home)
        os.kill(guard, signal.SIGKILL)
        wait_until(lambda: not guards_of(home), "the guard to die")
    assert not processes_in(server.data_path)
    assert not guards_of(home)


def test_a_server_that_died_is_started_by_the_next_call(home: Path) -> None:
    with start_server(home, settings=FAST) as first:
        os.kill(first.pid, signal.SIGKILL)
        wait_until(lambda: not processes_in(first.data_path), "the server to die")
        with start_server(home, settings=FAST) as second:
            assert second.pid != first.pid
            assert ask(first.dsn, "select 1") == 1


def test_a_forked_child_does_not_keep_the_server(home: Path) -> None:
    server = start_server(home, settings=FAST)
    go_on, end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        server.close()  # not a holder here: it must not stop its parent's server
        os.read(go_on, 1)
        os._exit(0)
    try:
        assert ask(server.dsn, "select 1") == 1
        server.close()
        assert not processes_in(server.data_path)
    finally:
        os.close(end)
        os.close(go_on)
        os.waitpid(child, 0)


def test_a_folder_deleted_under_its_server_can_be_made_anew(home: Path) -> None:
    with start_server(home, settings=FAST) as lost:
        shutil.rmtree(home)
        with start_server(home, settings=FAST) as server:
            assert server.pid != lost.pid
            lost.close()
            assert ask(server.dsn, "select 1") == 1
            os.kill(lost.pid, signal.SIGQUIT)  # it would notice by itself, within a minute


def test_a_guard_that_wakes_late_spares_the_server_of_a_newcomer(home: Path, own: Own) -> None:
    owner = own(home).wait_ready()
    (guard,) = guards_of(home)
    os.kill(guard, signal.SIGSTOP)
    owner.kill_group()
    with start_server(home) as server:
        os.kill(guard, signal.SIGCONT)
        assert server.pid == owner.pid
        assert ask(server.dsn, "select 1") == 1
        assert guards_of(home) == {guard}
