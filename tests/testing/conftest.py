"""An app as users write it, on a database of the test's own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.database import Databases, run
from tests.support.installed import installed_in
from tests.testing.shop import Shop

pytest_plugins = ["pytester"]


@pytest.fixture
def shop(dsn: str) -> Shop:
    """The shop, not opened yet."""
    return Shop(dsn)


@pytest.fixture
def dsn_for_loops(databases: Databases) -> Iterator[str]:
    """A database for tests without an event loop, or with several."""
    dsn = run(databases.clone())
    yield dsn
    run(databases.drop(dsn))


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project of a user's, with pqrun installed."""
    monkeypatch.setenv("PYTHONPATH", installed_in(Path(str(pytester.mkdir("installed")))))
    for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS"):
        monkeypatch.delenv(name, raising=False)
    return pytester
