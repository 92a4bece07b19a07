from typing import Any
from typing_extensions import Self

class PostgresMessageMeta(type):
    def __new__(mcls, name: str, bases: tuple[type, ...], dct: dict[str, Any]) -> PostgresMessageMeta: ...

class PostgresMessage(metaclass=PostgresMessageMeta):
    # Class attributes at run time: None where the server sent nothing, and in errors that asyncpg makes itself.
    severity: str | None
    severity_en: str | None
    # Subclasses carry their own code, so a client-side ConnectionDoesNotExistError has one too.
    sqlstate: str | None
    message: str | None
    detail: str | None
    hint: str | None
    position: str | None
    internal_position: str | None
    internal_query: str | None
    context: str | None
    schema_name: str | None
    table_name: str | None
    column_name: str | None
    data_type_name: str | None
    constraint_name: str | None
    server_source_filename: str | None
    server_source_line: str | None
    server_source_function: str | None
    def as_dict(self) -> dict[str, str]: ...

class PostgresError(PostgresMessage, Exception):
    @classmethod
    def new(cls, fields: dict[str, str], query: str | None = None) -> PostgresError: ...

class FatalPostgresError(PostgresError): ...
class UnknownPostgresError(FatalPostgresError): ...

class InterfaceMessage:
    detail: str | None
    hint: str | None
    def __init__(self, *, detail: str | None = None, hint: str | None = None) -> None: ...

class InterfaceError(InterfaceMessage, Exception):
    def __init__(self, msg: str, *, detail: str | None = None, hint: str | None = None) -> None: ...
    def with_msg(self, msg: str) -> Self: ...

class ClientConfigurationError(InterfaceError, ValueError): ...
class UnsupportedClientFeatureError(InterfaceError): ...
class UnsupportedServerFeatureError(InterfaceError): ...

class InterfaceWarning(InterfaceMessage, UserWarning):
    def __init__(self, msg: str, *, detail: str | None = None, hint: str | None = None) -> None: ...

class InternalClientError(Exception): ...
class ProtocolError(InternalClientError): ...
class TargetServerAttributeNotMatched(InternalClientError): ...

class OutdatedSchemaCacheError(InternalClientError):
    schema_name: str | None
    data_type_name: str | None
    position: str | None
    def __init__(
        self, msg: str, *, schema: str | None = None, data_type: str | None = None, position: str | None = None
    ) -> None: ...

class PostgresLogMessage(PostgresMessage):
    @classmethod
    def new(cls, fields: dict[str, str], query: str | None = None) -> PostgresMessage: ...
