"""DSNs that name several servers: which of them is connected to, how soon, and what is told when none will do."""

import asyncio
import logging
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest

from pqrun.errors import ConfigurationError, DatabaseUnavailableError
from pqrun.store import PgJobStore
from pqrun.store.connecting import CONNECT_SECONDS, open_connection
from pqrun.store.hosts import Host, hosts_of
from tests.store.test_dsn import assert_keeps_secrets
from tests.support.database import connected
from tests.support.proxy import Proxied, Proxy, proxied
from tests.support.waiting import wait_until

SOON = CONNECT_SECONDS / 2
"""Seconds. A driver that waits for one server after the other takes all of its limit for a silent one."""


@pytest.fixture
async def pair(dsn: str) -> AsyncIterator[tuple[Proxy, Proxy]]:
    """Two ways to the test's database, each of which can fail like a server of its own."""
    async with proxied(dsn) as first, proxied(dsn) as second:
        yield first, second


def together(*proxies: Proxy, query: str = "", user: str = "postgres") -> str:
    """One DSN that names them all."""
    parts = [urlsplit(proxy.dsn) for proxy in proxies]
    places = ",".join(part.netloc.rpartition("@")[2] for part in parts)
    return f"postgresql://{user}@{places}{parts[0].path}?sslmode=disable{query}"


async def enqueued(dsn: str) -> int:
    async with PgJobStore(dsn) as store:
        return await store.enqueue("t", {})


@pytest.mark.parametrize(
    ("dsn", "hosts"),
    [
        ("postgresql://u:p@a:1,b:2/db", [Host("a", 1), Host("b", 2)]),
        ("postgresql://u:p@a,b:2/db?port=9", [Host("a", 5432), Host("b", 2)]),
        ("postgresql://[::1]:1,%2Fsock/db", [Host("::1", 1), Host("/sock", 5432)]),
        ("postgresql:///db?host=/a,/b&port=1,2", [Host("/a", 1), Host("/b", 2)]),
        ("postgresql://u@/db?host=%2Fa%2C%2Fb&port=7", [Host("/a", 7), Host("/b", 7)]),
        ("postgresql:///db?host=a:1,b&port=3", [Host("a", 1), Host("b", 3)]),
        ("postgresql://u@a/db", [Host("a", 5432)]),
        ("postgresql:///db", []),
        ("postgresql://u@a:x,b/db", []),
        ("postgresql:///db?host=a,b&port=1,2,3", []),
    ],
)
def test_hosts_are_read_as_the_driver_reads_them(dsn: str, hosts: list[Host], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGPORT", raising=False)
    assert hosts_of(dsn) == hosts


def test_a_port_for_all_hosts_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPORT", "6000,6001")
    assert hosts_of("postgresql://a,b/db") == [Host("a", 6000), Host("b", 6001)]


@pytest.mark.parametrize("dsn", ["postgresql://u:Sup3rSecret@a,,b/db", "postgresql:///db?host=a,&password=hunter2"])
def test_a_host_without_a_name_is_refused(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigurationError, match="expected postgresql://") as caught:
        PgJobStore(dsn)
    assert_keeps_secrets(caught.value, caplog)


async def test_a_server_that_is_down_is_passed_at_once(pair: tuple[Proxy, Proxy]) -> None:
    down, up = pair
    down.is_unreachable = True
    async with asyncio.timeout(SOON):
        await (await open_connection(together(down, up))).close()
    assert len(down.tries) == 1


async def test_a_server_that_says_nothing_costs_a_head_start(pair: tuple[Proxy, Proxy]) -> None:
    deaf, up = pair
    deaf.is_deaf = True
    async with asyncio.timeout(SOON):
        assert await enqueued(together(deaf, up)) == 1
    assert deaf.tries


async def test_a_slow_server_gets_the_whole_limit(pair: tuple[Proxy, Proxy]) -> None:
    down, slow = pair
    down.is_unreachable = slow.is_deaf = True
    opening = asyncio.create_task(open_connection(together(down, slow)))
    await wait_until(lambda: len(down.tries) >= 3)  # meanwhile the other one is asked again and again
    assert len(slow.tries) == 1
    slow.each(Proxied.resume)
    await (await asyncio.wait_for(opening, SOON)).close()


async def test_a_server_that_comes_up_while_another_says_nothing_is_found(pair: tuple[Proxy, Proxy]) -> None:
    deaf, late = pair
    deaf.is_deaf = late.is_unreachable = True
    opening = asyncio.create_task(open_connection(together(deaf, late)))
    await wait_until(lambda: late.tries)
    late.is_unreachable = False
    await (await asyncio.wait_for(opening, SOON)).close()


async def test_a_connection_that_is_given_up_leaves_nothing_behind(dsn: str, pair: tuple[Proxy, Proxy]) -> None:
    deaf, other = pair
    deaf.is_deaf = other.is_deaf = True
    opening = asyncio.create_task(open_connection(together(deaf, other)))
    await wait_until(lambda: deaf.tries and other.tries)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    for one in (*deaf.connections, *other.connections):
        one.resume()
    await wait_until(lambda: all(one.is_over for one in (*deaf.connections, *other.connections)))


async def test_servers_that_take_no_writes_are_told_of(dsn: str, pair: tuple[Proxy, Proxy]) -> None:
    name = urlsplit(dsn).path[1:]
    async with connected(dsn) as connection:
        await connection.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
        try:
            with pytest.raises(DatabaseUnavailableError, match="read-write: none takes writes"):
                await enqueued(together(*pair))
            await (await open_connection(together(*pair, query="&target_session_attrs=any"))).close()
        finally:
            await connection.execute("SET default_transaction_read_only = off")
            await connection.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')


async def test_why_a_server_refuses_is_told_rather_than_that_another_is_away(
    pair: tuple[Proxy, Proxy], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    down, up = pair
    down.is_unreachable = True
    nowhere = together(down, up, user="postgres:Sup3rSecret").replace(urlsplit(up.dsn).path, "/nowhere")
    with pytest.raises(DatabaseUnavailableError, match=r'database "nowhere" does not exist') as caught:
        await enqueued(nowhere)
    assert_keeps_secrets(caught.value, caplog)


@pytest.mark.parametrize("how", ["down", "deaf"])
async def test_servers_none_of_which_answers_are_told_of_without_the_password(
    pair: tuple[Proxy, Proxy], how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for proxy in pair:
        proxy.is_unreachable, proxy.is_deaf = how == "down", how == "deaf"
    with pytest.raises(DatabaseUnavailableError, match=r"cannot connect to |did not answer in time") as caught:
        async with asyncio.timeout(2 * CONNECT_SECONDS):
            await enqueued(together(*pair, user="postgres:Sup3rSecret"))
    assert_keeps_secrets(caught.value, caplog)
