"""The databases that a run hurts: one server behind a proxy, and a pair with synchronous replication behind two."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol
from urllib.parse import urlsplit

from benchmarks.chaos.load import EFFECTS
from pqrun.store import PgJobStore
from tests.faults.serving import OwnServer, serving
from tests.support.database import connected
from tests.support.proxy import Proxied, Proxy, proxied
from tests.support.replication import Replicated, replicated

__all__ = ["Pair", "Single", "Site", "pair_site", "single_site", "standing"]

MAX_CONNECTIONS = "150"


class Site(Protocol):
    """A database, as producers and workers reach it and as the faults do."""

    @property
    def dsn(self) -> str:
        """What producers and workers connect to."""
        ...

    @property
    def direct_dsn(self) -> str:
        """The server that takes writes now, past every proxy."""
        ...

    @property
    def proxies(self) -> list[Proxy]:
        """What all connections of producers and workers lead through."""
        ...


class Single:
    """One server, durable, which can be restarted."""

    def __init__(self, server: OwnServer, proxy: Proxy) -> None:
        self._server = server
        self.dsn = proxy.dsn
        self.proxies = [proxy]

    @property
    def direct_dsn(self) -> str:
        """The server's own DSN."""
        return self._server.dsn

    async def restart(self, seconds: float) -> None:
        """End it as an immediate shutdown does, and start it again after so long."""
        await self._server.end(signal.SIGQUIT)
        await asyncio.sleep(seconds)
        await self._server.start()


class Pair:
    """A primary and a synchronous standby, which takes its place when it is killed."""

    def __init__(self, servers: Replicated, proxies: list[Proxy]) -> None:
        self._servers = servers
        self.proxies = proxies
        hosts = ",".join(urlsplit(proxy.dsn).netloc.rpartition("@")[2] for proxy in proxies)
        self.dsn = f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write&sslmode=disable"

    @property
    def direct_dsn(self) -> str:
        """The present primary's DSN."""
        return self._servers.primary_dsn

    async def fail_over(self, seconds: float, promoted: Callable[[], None]) -> None:
        """Kill the primary, promote the standby after so long, call ``promoted``, and give the new primary a standby."""
        await asyncio.to_thread(self._servers.kill_primary)
        await asyncio.sleep(seconds)
        await self._servers.promote()
        promoted()
        await self._servers.rebuild()


@asynccontextmanager
async def single_site() -> AsyncIterator[Single]:
    """A migrated database on one server."""
    async with serving(max_connections=MAX_CONNECTIONS) as server, proxied(server.dsn) as proxy:
        await _prepare(server.dsn)
        yield Single(server, proxy)


@asynccontextmanager
async def pair_site() -> AsyncIterator[Pair]:
    """A migrated database on a primary with a synchronous standby."""
    async with AsyncExitStack() as stack:
        servers = await stack.enter_async_context(replicated(synchronous=True))
        addresses = (servers.primary_dsn, servers.standby_dsn)
        proxies = [await stack.enter_async_context(proxied(dsn)) for dsn in addresses]
        await _prepare(servers.primary_dsn)
        yield Pair(servers, proxies)


def standing(site: Site) -> list[Proxied]:
    """All connections of producers and workers."""
    return [one for proxy in site.proxies for one in proxy.open()]


async def _prepare(dsn: str) -> None:
    await PgJobStore(dsn).migrate()
    async with connected(dsn) as connection:
        await connection.execute(EFFECTS)
