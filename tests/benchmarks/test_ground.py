"""The ground of the measurements: fresh databases, drains, worker processes, rows and reports; on one server, with few jobs."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from benchmarks import results
from benchmarks.ground import DEFAULT, FAST, Ground, alternate, at_work, ground, ratio_of
from benchmarks.processes import Setup, cpu_seconds, server_cpu_seconds
from benchmarks.results import Measured, Report, at_least, at_most, read_report, write_report
from tests.support.database import connected

JOBS = 300

in_module_loop = pytest.mark.asyncio(loop_scope="module")  # the server belongs to it


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stood() -> AsyncIterator[Ground]:
    async with ground(quick=True) as one:
        yield one


@in_module_loop
async def test_a_drain_ends_when_every_job_is_done_and_tells_what_it_took(stood: Ground) -> None:
    async with stood.database() as database:
        await database.fill(JOBS)
        drain = await database.drain(JOBS, FAST, DEFAULT)
        async with connected(database.dsn) as connection:
            assert await connection.fetchval("SELECT count(*) FROM pqrun.jobs WHERE status = 'DONE'") == JOBS
            assert await connection.fetchval("SELECT count(*) FROM pqrun.workers WHERE dead_at IS NULL") == 0
    assert drain.seconds > 0
    assert drain.rate == JOBS / drain.seconds
    assert drain.worker_cpu_seconds is not None
    assert drain.worker_cpu_seconds > 0
    assert drain.server_cpu_seconds is not None
    assert drain.server_cpu_seconds > 0


@in_module_loop
async def test_what_is_scheduled_for_much_later_is_not_waited_for(stood: Ground) -> None:
    async with stood.database() as database:
        await database.fill(10, status="'SCHEDULED'", run_after="now() + interval '30 days'", priority="10")
        await asyncio.wait_for(database.wait_done(), 5)
        await database.fill(1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(database.wait_done(), 0.5)


@in_module_loop
async def test_what_a_worker_has_in_hand_is_waited_for(stood: Ground) -> None:
    async with stood.database() as database:
        await database.fill(1, status="'RUNNING'", attempts="1", locked_at="now()", locked_by="'somebody'")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(database.wait_done(), 0.5)


@in_module_loop
async def test_the_server_is_durable_and_a_database_is_gone_after_its_measurement(stood: Ground) -> None:
    async with stood.database() as database, connected(database.dsn) as connection:
        assert await connection.fetchval("SHOW fsync") == "on"
        assert await connection.fetchval("SHOW synchronous_commit") == "on"
        name = await connection.fetchval("SELECT current_database()")
    async with connected(stood.dsn) as connection:
        assert not await connection.fetchval("SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name)


@in_module_loop
async def test_a_worker_that_dies_is_told_with_the_end_of_its_log(stood: Ground) -> None:
    async with stood.database() as database:
        with pytest.raises(RuntimeError, match="no_such_app"):
            async with at_work(database.dsn, [Setup(app="benchmarks.no_op:no_such_app")]):
                raise AssertionError("it cannot be at work")
        with pytest.raises(RuntimeError, match="expected 0"):
            async with at_work(database.dsn, [DEFAULT]) as (worker,):
                os.kill(worker.pid, signal.SIGKILL)


@in_module_loop
async def test_every_handler_of_a_recording_worker_is_noted(stood: Ground) -> None:
    async with stood.database() as database:
        await database.fill(JOBS)
        async with at_work(database.dsn, [FAST._replace(app="benchmarks.no_op:recorded", records=True)]) as (worker,):
            started = await worker.wait_started()
            await database.wait_done()
            await worker.stop()
            records = worker.records()
        async with connected(database.dsn) as connection:
            ids = [row[0] for row in await connection.fetch("SELECT id FROM pqrun.jobs_finished")]
    assert sorted(records.ids) == sorted(ids)
    assert started - 1 < min(records.starts) <= started
    assert all(start <= end for start, end in zip(records.starts, records.ends, strict=True))


async def test_variants_are_measured_in_turn_and_every_other_round_in_reverse() -> None:
    order: list[str] = []

    async def note(name: str) -> int:
        order.append(name)
        return len(order)

    found = await alternate({"a": lambda: note("a"), "b": lambda: note("b")}, 3)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert found == {"a": [1, 4, 5], "b": [2, 3, 6]}


def test_a_ratio_is_the_median_of_the_ratios_of_each_round() -> None:
    # A machine that is half as fast in the second round changes no ratio.
    assert ratio_of([10.0, 5.0, 12.0], [20.0, 10.0, 20.0]) == (0.5, [0.5, 0.5, 0.6])


def test_a_row_says_whether_its_goal_was_reached() -> None:
    assert Measured("a", "", 0.9, "ratio", at_least(0.9, "")).reached is True
    assert Measured("a", "", 0.89, "ratio", at_least(0.9, "")).reached is False
    assert Measured("a", "", 1.2, "MB", at_most(1.2, "")).reached is True
    assert Measured("a", "", 1.3, "MB", at_most(1.2, "")).reached is False
    assert Measured("a", "", 1.3, "MB").reached is None


def test_a_report_is_read_as_it_was_written_and_its_file_says_what_was_reached(tmp_path: Path) -> None:
    rows = [
        Measured("a", "what", 0.5, "ratio", at_least(0.9, "goal"), "the other", [0.4, 0.5]),
        Measured("b", "", 1.0, "s"),
    ]
    report = Report("name", "python -m benchmarks name", 1.5, results.versions("18.0"), rows)
    write_report(report, tmp_path / "made" / "name.json")
    assert read_report(tmp_path / "made" / "name.json") == report
    written = msgspec.json.decode((tmp_path / "made" / "name.json").read_bytes())
    assert [row["reached"] for row in written["rows"]] == [False, None]
    assert {"python", "postgres", "pqrun", "asyncpg", "pydantic", "uvloop", "cores"} <= written["versions"].keys()


def test_processor_time_of_what_is_not_there_is_unknown() -> None:
    assert cpu_seconds(2**22 + 1) is None
    assert server_cpu_seconds(None) is None
    assert (cpu_seconds(os.getpid()) or 0) > 0
