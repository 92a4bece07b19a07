"""The part of asyncpg's types that pqrun uses; asyncpg ships no py.typed, so checkers take this instead.

`python -m mypy.stubtest asyncpg` compares it with the installed package (tests/typing/test_stubs.py). A name that is
missing here is a name that pqrun does not use: add it here before using it. ``Pool`` and ``Connection`` are not
generic, because subscribing them fails at run time.
"""

from . import connection as connection, exceptions as exceptions, pool as pool, prepared_stmt as prepared_stmt
from . import protocol as protocol, transaction as transaction, types as types
from .connection import Connection as Connection, connect as connect
from .exceptions import *
from .pool import Pool as Pool, create_pool as create_pool
from .protocol import Record as Record
from .types import Attribute as Attribute, ServerVersion as ServerVersion, Type as Type

__version__: str
