"""A DSN that names several servers, one of which is the primary at a time: found out anew with each connection.

The driver asks them one after another within one limit, and a server that accepts connections and says nothing, as a paused or cut off
primary does, uses it up. Here each has a head start only; and while one says nothing, those that refused are asked again, since one of
them may be promoted meanwhile. Nothing is remembered: what was the primary a moment ago says nothing about now.
"""

import asyncio
import os
from collections.abc import Callable, Collection, Coroutine
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import parse_qs, unquote, urlsplit

import asyncpg

from pqrun.store.failure import is_disconnect

__all__ = ["Host", "connect", "hosts_of"]

HEAD_START_SECONDS = 1.0
"""How long a server may say nothing before the next one is asked beside it; and how soon one that refused is asked again."""

DEFAULT_PORT = "5432"

REFUSALS = (OSError, asyncpg.PostgresError, asyncpg.InternalClientError)
"""What one server says, or the network on the way to it: another one may say something else."""


class Host(NamedTuple):
    """Where a server is: a name, an address or the folder of its socket, and the port."""

    name: str
    port: int


Open: TypeAlias = Callable[[Host], Coroutine[object, object, asyncpg.Connection]]


async def connect(dsn: str, *, timeout: float, **options: Any) -> asyncpg.Connection:  # noqa: ANN401  # the driver's, passed on
    """Connect as the driver does; of several servers to the first that is what ``target_session_attrs`` says, by default "read-write".

    Raises what the driver raises, of several refusals the one that tells most; TimeoutError where one server said nothing for so long.
    """
    hosts, target = hosts_of(dsn), _target_of(dsn)
    if len(hosts) < 2 or target == "prefer-standby":  # which takes all of them into account, as the driver does
        return await asyncpg.connect(dsn, timeout=timeout, **options)

    async def open_at(host: Host) -> asyncpg.Connection:
        return await asyncpg.connect(
            dsn, host=host.name, port=host.port, target_session_attrs=target, timeout=timeout, **options
        )

    async with asyncio.timeout(timeout):
        return await _first_of(hosts, open_at)


def hosts_of(dsn: str) -> list[Host]:
    """Return the servers that a URL of PostgreSQL names, as the driver reads it; none where it names none, or is odd."""
    parts = urlsplit(dsn)
    query = parse_qs(parts.query)
    ports = os.environ.get("PGPORT") or DEFAULT_PORT
    names = [unquote(name) for name in parts.netloc.rpartition("@")[2].split(",")]
    if names == [""]:
        names = query.get("host", [""])[-1].split(",")
        ports = query.get("port", [ports])[-1]
    try:
        return [_host(name, port) for name, port in zip(names, _one_each(ports, len(names)), strict=True)]
    except ValueError:
        return []  # the driver will say what is wrong


def _one_each(ports: str, count: int) -> list[str]:
    each = ports.split(",")
    return each * count if len(each) == 1 else each


def _host(text: str, port: str) -> Host:
    if not text:
        raise ValueError
    if text.startswith("/"):
        return Host(text, int(port))
    name, _, own = text[1:].partition("]") if text.startswith("[") else text.partition(":")
    return Host(name, int(own.removeprefix(":") or port))


def _target_of(dsn: str) -> str:
    given = parse_qs(urlsplit(dsn).query).get("target_session_attrs")
    return given[-1] if given else os.environ.get("PGTARGETSESSIONATTRS", "read-write")


async def _first_of(hosts: list[Host], open_at: Open) -> asyncpg.Connection:
    """Return the first connection; raise a refusal once all have refused. A silence does not end here: the caller has a limit."""
    asked: dict[Host, asyncio.Task[asyncpg.Connection]] = {}
    refusals: dict[Host, BaseException] = {}
    try:
        while True:
            for host in [host for host in hosts if host not in asked]:
                asked[host] = asyncio.create_task(open_at(host))
                if (found := await _answer(asked, refusals)) is not None:
                    return found
            if asked and (found := await _answer(asked, refusals)) is not None:
                return found
            if not asked:
                raise max(refusals.values(), key=_worth)
    finally:
        await _give_up(asked.values())


async def _answer(
    asked: dict[Host, asyncio.Task[asyncpg.Connection]], refusals: dict[Host, BaseException]
) -> asyncpg.Connection | None:
    """Wait a moment for the next answer: a connection ends the search; one that refused may be asked again."""
    await asyncio.wait(asked.values(), timeout=HEAD_START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    for host, task in list(asked.items()):
        if not task.done():
            continue
        del asked[host]
        error = task.exception()
        if error is None:
            return task.result()
        if not isinstance(error, REFUSALS):
            raise error
        refusals[host] = error
    return None


def _worth(refusal: BaseException) -> int:
    """How much it tells: why a server refuses, more than that it takes no writes, and that more than that nobody is there."""
    if isinstance(refusal, asyncpg.TargetServerAttributeNotMatched):
        return 1
    return 2 if isinstance(refusal, asyncpg.PostgresError) and not is_disconnect(refusal) else 0


async def _give_up(asked: Collection[asyncio.Task[asyncpg.Connection]]) -> None:
    for task in asked:
        task.cancel()
    for late in await asyncio.gather(*asked, return_exceptions=True):
        if isinstance(late, asyncpg.Connection):
            late.terminate()
