"""Databases for all tests: one server and one template per session, a clone per test; nothing may be left behind."""

import os
from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest

from pqrun.store import PgJobStore
from tests.support.database import Databases, connected, run
from tests.support.leasing import Leases
from tests.support.skips import unlisted


@pytest.fixture(scope="session")
def databases() -> Iterator[Databases]:
    """The server of this test session."""
    found = Databases()
    run(found.make_template())
    yield found
    run(found.close())


@pytest.fixture(scope="session")
def leases(databases: Databases) -> Iterator[Leases]:
    """Databases lent to one test after another."""
    lent = Leases(databases)
    yield lent
    run(lent.close())


@pytest.fixture
async def dsn(leases: Leases) -> AsyncIterator[str]:
    """A migrated database without rows, this test's alone; connections that it leaves open fail it."""
    dsn = await leases.take()
    yield dsn
    left = await leases.give_back(dsn)
    if left:
        pytest.fail(f"connections were left open: {left}")


@pytest.fixture
async def empty_dsn(databases: Databases) -> AsyncIterator[str]:
    """A database without any schema of ours."""
    dsn = await databases.clone(migrated=False)
    yield dsn
    await databases.drop(dsn)


@pytest.fixture
async def store(dsn: str) -> AsyncIterator[PgJobStore]:
    """An open store on a database of this test's own."""
    async with PgJobStore(dsn) as opened:
        yield opened


@pytest.fixture
async def connection(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """A plain connection to the test's database."""
    async with connected(dsn) as opened:
        yield opened


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name skips that no reason covers; ``pytest_sessionfinish`` has failed the run for them."""
    if skipped := unlisted([report.nodeid for report in terminalreporter.getreports("skipped")]):
        terminalreporter.section("skipped without a listed reason")
        for node_id in skipped:
            terminalreporter.line(node_id)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run that skipped something which tests/support/skips.py does not list."""
    reporter = session.config.pluginmanager.getplugin("terminalreporter")
    if not os.environ.get("PQRUN_FAIL_ON_SKIP") or not isinstance(reporter, pytest.TerminalReporter):
        return
    if (
        unlisted([report.nodeid for report in reporter.getreports("skipped")])
        and session.exitstatus == pytest.ExitCode.OK
    ):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
