"""The statements themselves, on a connection, and a registered worker's claims."""

from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest

from pqrun.store.claiming import Claimer
from pqrun.store.link import KeptLink, Session
from pqrun.store.source import DsnOpener
from pqrun.store.statements import Statements
from tests.store.leasing import Leases
from tests.support.database import Databases, run
from tests.support.rows import make_worker


@pytest.fixture(scope="session")
def leases(databases: Databases) -> Iterator[Leases]:
    """Databases for the many short tests of this floor."""
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
