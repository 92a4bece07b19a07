"""What pqrun needs of a connection and of a pool, as Protocols: asyncpg's satisfy them, with or without type stubs."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

__all__ = ["Connection", "Pool"]


@runtime_checkable
class Connection(Protocol):
    """An asyncpg connection, or one that a pool lent."""

    async def fetch(self, query: str, *args: object, timeout: float | None = None) -> Sequence[object]:
        """Run a statement with positional arguments and return its rows."""
        ...

    async def execute(self, query: str, *args: object, timeout: float | None = None) -> str:
        """Run a statement and return its command tag."""
        ...

    def is_in_transaction(self) -> bool:
        """Whether a transaction is open on this connection."""
        ...

    def is_closed(self) -> bool:
        """Whether the connection is gone."""
        ...


@runtime_checkable
class Pool(Protocol):
    """An asyncpg pool."""

    def get_max_size(self) -> int:
        """Return how many connections the pool may open."""
        ...

    def is_closing(self) -> bool:
        """Whether the pool is closed or being closed."""
        ...

    def acquire(self, *, timeout: float | None = None) -> object:
        """Lend a connection."""
        ...
