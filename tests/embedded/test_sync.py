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


def test_threads_that_all_come_first_wait_until_the_database_has_its_tables(home: Path) -> None:
    text = """
        from concurrent.futures import ThreadPoolExecutor
        with ThreadPoolExecutor(8) as threads:
            print(sorted(job.id for job in threads.map(t.defer_sync, range(8))))
    """
    assert output(text, f"embedded:{home}") == ["[1, 2, 3, 4, 5, 6, 7, 8]"]
