import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from ssl import SSLContext
from types import TracebackType
from typing import Any, Literal
from typing_extensions import Self

from .connection import Connection, _ConnectionProxy, _Listener, _LogListener, _Password, _Records
from .connection import _TerminationListener
from .prepared_stmt import PreparedStatement
from .protocol import Record
from .transaction import Transaction, _Isolation
from .types import ServerVersion

class PoolConnectionProxyMeta(type):
    def __new__(
        mcls, name: str, bases: tuple[type, ...], dct: dict[str, Any], *, wrap: bool = False
    ) -> PoolConnectionProxyMeta: ...

# The methods of Connection, repeated, because the proxy is no subclass of it. At run time a released proxy raises
# InterfaceError from each of them.
class PoolConnectionProxy(_ConnectionProxy, metaclass=PoolConnectionProxyMeta):
    def __init__(self, holder: object, con: Connection) -> None: ...
    async def add_listener(self, channel: str, callback: _Listener) -> None: ...
    async def remove_listener(self, channel: str, callback: _Listener) -> None: ...
    def add_log_listener(self, callback: _LogListener) -> None: ...
    def remove_log_listener(self, callback: _LogListener) -> None: ...
    def add_termination_listener(self, callback: _TerminationListener) -> None: ...
    def remove_termination_listener(self, callback: _TerminationListener) -> None: ...
    def get_server_pid(self) -> int: ...
    def get_server_version(self) -> ServerVersion: ...
    # An object with one attribute per parameter that the server reports (server_version, TimeZone, ...).
    def get_settings(self) -> Any: ...
    def transaction(
        self, *, isolation: _Isolation | None = None, readonly: bool = False, deferrable: bool = False
    ) -> Transaction: ...
    def is_in_transaction(self) -> bool: ...
    async def execute(self, query: str, *args: object, timeout: float | None = None) -> str: ...
    async def executemany(
        self, command: str, args: Iterable[Sequence[object]], *, timeout: float | None = None
    ) -> None: ...
    async def prepare(
        self,
        query: str,
        *,
        name: str | None = None,
        timeout: float | None = None,
        record_class: type[Record] | None = None,
    ) -> PreparedStatement: ...
    async def fetch(
        self, query: str, *args: object, timeout: float | None = None, record_class: type[Record] | None = None
    ) -> list[Record]: ...
    async def fetchval(
        self, query: str, *args: object, column: int | str = 0, timeout: float | None = None
    ) -> Any: ...
    async def fetchrow(
        self, query: str, *args: object, timeout: float | None = None, record_class: type[Record] | None = None
    ) -> Record | None: ...
    async def copy_records_to_table(
        self,
        table_name: str,
        *,
        records: _Records,
        columns: Iterable[str] | None = None,
        schema_name: str | None = None,
        timeout: float | None = None,
        where: str | None = None,
    ) -> str: ...
    async def set_type_codec(
        self,
        typename: str,
        *,
        schema: str = "public",
        encoder: Callable[[Any], object],
        decoder: Callable[[Any], object],
        format: Literal["text", "binary", "tuple"] = "text",
    ) -> None: ...
    async def reset_type_codec(self, typename: str, *, schema: str = "public") -> None: ...
    def is_closed(self) -> bool: ...
    async def close(self, *, timeout: float | None = None) -> None: ...
    def terminate(self) -> None: ...
    async def reset(self, *, timeout: float | None = None) -> None: ...
    def get_reset_query(self) -> str: ...
    async def reload_schema_state(self) -> None: ...

class Pool:
    def __init__(
        self,
        *connect_args: str | None,
        init_size: int | None = None,
        min_size: int,
        max_size: int,
        max_queries: int,
        max_inactive_connection_lifetime: float,
        connect: Callable[..., Awaitable[Connection]] | None = None,
        setup: Callable[[PoolConnectionProxy], Awaitable[object]] | None = None,
        init: Callable[[Connection], Awaitable[object]] | None = None,
        reset: Callable[[Connection], Awaitable[object]] | None = None,
        loop: asyncio.AbstractEventLoop | None,
        connection_class: type[Connection],
        record_class: type[Record],
        **connect_kwargs: object,
    ) -> None: ...
    def is_closing(self) -> bool: ...
    def get_size(self) -> int: ...
    def get_min_size(self) -> int: ...
    def get_max_size(self) -> int: ...
    def get_idle_size(self) -> int: ...
    def acquire(self, *, timeout: float | None = None) -> PoolAcquireContext: ...
    async def release(self, connection: PoolConnectionProxy, *, timeout: float | None = None) -> None: ...
    async def close(self) -> None: ...
    def terminate(self) -> None: ...
    async def expire_connections(self) -> None: ...
    async def execute(self, query: str, *args: object, timeout: float | None = None) -> str: ...
    async def executemany(
        self, command: str, args: Iterable[Sequence[object]], *, timeout: float | None = None
    ) -> None: ...
    async def fetch(
        self, query: str, *args: object, timeout: float | None = None, record_class: type[Record] | None = None
    ) -> list[Record]: ...
    async def fetchval(
        self, query: str, *args: object, column: int | str = 0, timeout: float | None = None
    ) -> Any: ...
    async def fetchrow(
        self, query: str, *args: object, timeout: float | None = None, record_class: type[Record] | None = None
    ) -> Record | None: ...
    async def copy_records_to_table(
        self,
        table_name: str,
        *,
        records: _Records,
        columns: Iterable[str] | None = None,
        schema_name: str | None = None,
        timeout: float | None = None,
        where: str | None = None,
    ) -> str: ...
    def __await__(self) -> Generator[Any, None, Self]: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *exc: object) -> None: ...

class PoolAcquireContext:
    timeout: float | None
    connection: PoolConnectionProxy | None
    done: bool
    pool: Pool
    def __init__(self, pool: Pool, timeout: float | None) -> None: ...
    async def __aenter__(self) -> PoolConnectionProxy: ...
    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None: ...
    def __await__(self) -> Generator[Any, None, PoolConnectionProxy]: ...

# Takes what connect() takes as well. init_size is new in asyncpg 0.32: pqrun, which also runs on 0.30, leaves it alone.
def create_pool(
    dsn: str | None = None,
    *,
    init_size: int | None = None,
    min_size: int = 10,
    max_size: int = 10,
    max_queries: int = 50000,
    max_inactive_connection_lifetime: float = 300.0,
    connect: Callable[..., Awaitable[Connection]] | None = None,
    setup: Callable[[PoolConnectionProxy], Awaitable[object]] | None = None,
    init: Callable[[Connection], Awaitable[object]] | None = None,
    reset: Callable[[Connection], Awaitable[object]] | None = None,
    loop: asyncio.AbstractEventLoop | None = None,
    connection_class: type[Connection] = ...,
    record_class: type[Record] = ...,
    host: str | Sequence[str] | None = None,
    port: int | Sequence[int] | None = None,
    user: str | None = None,
    password: _Password | None = None,
    passfile: str | None = None,
    service: str | None = None,
    servicefile: str | None = None,
    database: str | None = None,
    timeout: float = 60,
    statement_cache_size: int = 100,
    max_cached_statement_lifetime: int = 300,
    max_cacheable_statement_size: int = 15360,
    command_timeout: float | None = None,
    ssl: SSLContext | str | bool | None = None,
    direct_tls: bool | None = None,
    server_settings: dict[str, str] | None = None,
    target_session_attrs: str | None = None,
    krbsrvname: str | None = None,
    gsslib: str | None = None,
) -> Pool: ...
