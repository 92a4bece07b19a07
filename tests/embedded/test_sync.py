"""Synchronous calls on the database of the package's own: started at the first call, stopped when the process has ended."""

from pathlib import Path

from tests.support.scripts import output


def test_a_script_starts_the_database_and_leaves_it_to_stop_when_it_ends(home: Path) -> None:
    for expected in (
        "1",
        "2",
    ):  # the second finds what the first has written; the fixture waits until the server has stopped
        assert output("print(t.defer_sync(1).id)", f"embedded:{home}") == [expected]


def test_a_script_that_closes_stops_the_database_and_may_start_it_again(home: Path) -> None:
    text = """
        print(t.defer_sync(1).id)
        jobs.close_sync()
        print(t.defer_sync(1).id)
        jobs.close_sync()
    """
    assert output(text, f"embedded:{home}") == ["1", "2"]


def test_a_thread_that_comes_while_another_opens_the_database_waits_until_it_has_its_tables(home: Path) -> None:
    text = """
        from concurrent.futures import ThreadPoolExecutor
        with ThreadPoolExecutor(1) as threads:
            first = threads.submit(t.defer_sync, 1)
            while not (own := jobs._portal._own) or not own._store.is_open:
                pass  # it runs, and the tables are being made
            print(sorted([t.defer_sync(2).id, first.result().id]))
    """
    assert output(text, f"embedded:{home}") == ["[1, 2]"]
