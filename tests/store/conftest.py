"""The statements themselves, on a connection, and a registered worker's claims."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from pqrun.store.claiming import Claimer
from pqrun.store.link import KeptLink, Session
from pqrun.store.source import DsnOpener
from pqrun.store.statements import Statements
from tests.support.rows import make_worker


@pytest.fixture
def session(connection: asyncpg.Connection) -> Session:
    """Named statements on a plain connection."""
    return Session(connection, Statements("pqrun"))


@pytest.fixture
async def link(dsn: str) -> AsyncIterator[KeptLink]:
    """A kept connection, as a worker has for each duty."""
    opened = KeptLink(DsnOpener(dsn, "pqrun test"), Statements("pqrun"))
    yield opened
    await opened.close()


@pytest.fixture
async def worker(connection: asyncpg.Connection) -> int:
    """A registered worker."""
    return await make_worker(connection, "w")


@pytest.fixture
def claimer(link: KeptLink, worker: int) -> Claimer:
    """Claims of the registered worker."""
    return Claimer(link, worker=worker, worker_id="w")
