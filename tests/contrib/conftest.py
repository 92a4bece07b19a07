"""A link, as a duty of a worker has."""

from collections.abc import AsyncIterator

import pytest

from pqrun.store import PgJobStore
from pqrun.store.link import Link


@pytest.fixture
async def link(store: PgJobStore) -> AsyncIterator[Link]:
    """A kept connection."""
    opened = store.open_link("test", kept=False)
    yield opened
    await opened.close()
