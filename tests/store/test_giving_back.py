"""Connections that break while they go back to the pool: what was done stands, and what went wrong before is what the caller hears."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from pqrun.errors import DatabaseUnavailableError
from pqrun.job.outcome import CancelOutcome
from pqrun.store import PgJobStore
from tests.support.proxy import Proxied, Proxy, proxied
from tests.support.waiting import wait_until

RESET = b"pg_advisory_unlock_all"
"""In what the driver sends to a connection that is given back."""


@pytest.fixture
async def proxy(dsn: str) -> AsyncIterator[Proxy]:
    """A network of its own between the store and the test's database."""
    async with proxied(dsn) as opened:
        yield opened


async def break_when_given_back(proxy: Proxy) -> None:
    """Reset the one connection as soon as it is to be made ready for the next borrower."""

    def is_given_back() -> bool:
        return any(one.to_server.held.is_set() for one in proxy.connections)

    await wait_until(is_given_back)
    proxy.each(Proxied.reset)


def catch_resets(one: Proxied) -> None:
    one.to_server.stop_before = RESET


async def test_a_cancel_whose_connection_breaks_after_its_commit_has_succeeded(proxy: Proxy) -> None:
    proxy.on_open = catch_resets
    async with PgJobStore(proxy.dsn) as store:
        job_id = await store.enqueue("t", {})
        breaking = asyncio.create_task(break_when_given_back(proxy))
        assert await store.cancel(job_id) is CancelOutcome.CANCELLED
        await breaking


async def test_a_transaction_whose_connection_breaks_after_its_commit_has_succeeded(proxy: Proxy) -> None:
    proxy.on_open = catch_resets
    async with PgJobStore(proxy.dsn) as store:
        breaking = asyncio.create_task(break_when_given_back(proxy))
        async with store.transaction() as connection:
            job_id = await store.enqueue("t", {}, connection=connection)
        await breaking
        proxy.on_open = lambda _: None
        assert await store.get(job_id) is not None


async def test_the_error_of_a_caller_is_not_replaced_by_what_its_connection_meets_later(proxy: Proxy) -> None:
    proxy.on_open = catch_resets
    async with PgJobStore(proxy.dsn) as store:
        breaking = asyncio.create_task(break_when_given_back(proxy))
        with pytest.raises(ZeroDivisionError):
            async with store.transaction():
                raise ZeroDivisionError
        await breaking


async def test_a_transaction_that_is_not_answered_ends_with_a_named_error_and_waits_for_no_dead_peer(
    proxy: Proxy,
) -> None:
    async with asyncpg.create_pool(proxy.dsn, min_size=0, max_size=4, command_timeout=2.0) as pool:
        async with PgJobStore(pool=pool) as store:
            assert await store.migrate() == []
            proxy.on_open = Proxied.stall  # the driver's request to cancel what was not answered is not answered either
            proxy.each(Proxied.stall)
            async with asyncio.timeout(3.5):  # the driver would ask for a cancel, and wait for that as long again
                with pytest.raises(DatabaseUnavailableError):
                    async with store.transaction():
                        pass
        proxy.each(Proxied.reset)
