import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Sequence
from ssl import SSLContext
from typing import Any, Literal, TypeAlias

from .exceptions import PostgresLogMessage
from .pool import PoolConnectionProxy
from .prepared_stmt import PreparedStatement
from .protocol import Record
from .transaction import Transaction, _Isolation
from .types import ServerVersion

# What a callback gets: the proxy where the connection belongs to a pool. It may be a coroutine function.
_Session: TypeAlias = Connection | PoolConnectionProxy
_Listener: TypeAlias = Callable[[_Session, int, str, str], object]
_LogListener: TypeAlias = Callable[[_Session, PostgresLogMessage], object]
_TerminationListener: TypeAlias = Callable[[_Session], object]
_Password: TypeAlias = str | Callable[[], str | Awaitable[str]]
_Records: TypeAlias = Iterable[Sequence[object]] | AsyncIterable[Sequence[object]]

class _ConnectionProxy: ...

# isinstance(x, Connection) is true for a PoolConnectionProxy as well, which is no subclass.
class ConnectionMeta(type):
    def __instancecheck__(cls, instance: object) -> bool: ...

class Connection(metaclass=ConnectionMeta):
    def __init__(
        self,
        protocol: object,
        transport: asyncio.BaseTransport,
        loop: asyncio.AbstractEventLoop,
        addr: object,
        config: object,
        params: object,
    ) -> None: ...
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
    async def copy_to_table(
        self,
        table_name: str,
        *,
        source: AsyncIterable[bytes],
        columns: Iterable[str] | None = None,
        schema_name: str | None = None,
        timeout: float | None = None,
        format: str | None = None,
        oids: bool | None = None,
        freeze: bool | None = None,
        delimiter: str | None = None,
        null: str | None = None,
        header: bool | None = None,
        quote: str | None = None,
        escape: str | None = None,
        force_quote: bool | Iterable[str] | None = None,
        force_not_null: bool | Iterable[str] | None = None,
        force_null: bool | Iterable[str] | None = None,
        encoding: str | None = None,
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

async def connect(
    dsn: str | None = None,
    *,
    host: str | Sequence[str] | None = None,
    port: int | Sequence[int] | None = None,
    user: str | None = None,
    password: _Password | None = None,
    passfile: str | None = None,
    service: str | None = None,
    servicefile: str | None = None,
    database: str | None = None,
    loop: asyncio.AbstractEventLoop | None = None,
    timeout: float = 60,
    statement_cache_size: int = 100,
    max_cached_statement_lifetime: int = 300,
    max_cacheable_statement_size: int = 15360,
    command_timeout: float | None = None,
    ssl: SSLContext | str | bool | None = None,
    direct_tls: bool | None = None,
    connection_class: type[Connection] = ...,
    record_class: type[Record] = ...,
    server_settings: dict[str, str] | None = None,
    target_session_attrs: str | None = None,
    krbsrvname: str | None = None,
    gsslib: str | None = None,
) -> Connection: ...
