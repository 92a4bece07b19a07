"""The ledger of a test, and a server of its own for those that hurt it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.faults.town import Ledger, Server, own_server


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """What the handlers of this test's workers note."""
    return Ledger(tmp_path / "ledger")


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """A database server that this test may stop, end and start again."""
    async with own_server() as made:
        yield made
