"""The pytest fixtures of pqrun: ``pqrun_server``, ``pqrun_dsn``, ``pqrun_bind``. Nothing is autouse.

A module of its own at the top level, not one of ``pqrun.testing``: pytest imports it in every run, and the package pqrun, which takes a
quarter of a second, only when a fixture is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # see above
    from pqrun.testing import Bind, Databases


@pytest.fixture(scope="session")
def pqrun_server() -> Iterator[Databases]:
    """The PostgreSQL of this test process: the one that PQRUN_TEST_DSN names, else an embedded one (``pip install 'pqrun[dev]'``).

    With pytest-xdist each process has its own.
    """
    from pqrun.testing.databases import Databases
    from pqrun.testing.opening import run_apart

    databases = Databases()
    try:
        run_apart(databases.make_template())
        yield databases
    finally:
        run_apart(databases.close())


@pytest.fixture
def pqrun_dsn(pqrun_server: Databases) -> Iterator[str]:
    """The DSN of a database of this test's own, with pqrun's tables, without rows; dropped after the test."""
    from pqrun.testing.opening import run_apart

    dsn = run_apart(pqrun_server.clone())
    try:
        yield dsn
    finally:
        run_apart(pqrun_server.drop(dsn))


@pytest.fixture
def pqrun_bind(pqrun_dsn: str) -> Iterator[Bind]:
    """A function: ``pqrun_bind(jobs)`` ties your app to the test's database until the test ends, and returns it."""
    from pqrun.testing.binding import Bind

    with Bind(pqrun_dsn) as bind:
        yield bind
