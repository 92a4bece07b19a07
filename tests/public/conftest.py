"""An app on a database of the test's own."""

import pytest

from pqrun import App


@pytest.fixture
def jobs(dsn: str) -> App[None]:
    """An app without tasks, not opened yet."""
    return App(dsn=dsn)
