"""Databases for tests: one server and one migrated template per process, and a clone of it for whoever asks."""

import itertools
import os
import secrets
import shutil
import tempfile
from pathlib import Path

from pqrun.embedded import EmbeddedServer, start_server
from pqrun.errors import MissingExtraError
from pqrun.store import PgJobStore
from pqrun.store.databases import create_database, database_of, drop_database, list_connections, with_database

__all__ = ["FAST_SETTINGS", "TEST_DSN", "Databases"]

TEST_DSN = "PQRUN_TEST_DSN"
"""The variable that names another server than the embedded one: a DSN whose user may create databases."""

EMBEDDED_PREFIX = "embedded:"

FAST_SETTINGS = {"fsync": "off", "full_page_writes": "off", "max_connections": "200", "shared_buffers": "128MB"}
"""For tests that do not kill the server: durability is not what they are about."""


class Databases:
    """One server, one template, and a clone for whoever asks; what it made it removes in ``close``.

    The server is the one that PQRUN_TEST_DSN names, else an embedded one of this process's own, so that parallel test processes never
    meet. Raises MissingExtraError where there is neither.
    """

    def __init__(self) -> None:
        self._server: EmbeddedServer | None = None
        self._folder: Path | None = None
        self._numbers = itertools.count(1)
        # Of chance too: processes of several containers may share a server, and their ids are alike.
        self.prefix = f"pqrun_test_{os.getpid()}_{secrets.token_hex(3)}"
        """What the names of its databases begin with."""
        self._template = f"{self.prefix}_template"
        given = os.environ.get(TEST_DSN)
        if not given:
            self._server = self._start()
        elif given.startswith(EMBEDDED_PREFIX):
            self._server = start_server(given.removeprefix(EMBEDDED_PREFIX), settings=FAST_SETTINGS)
        self.admin_dsn: str = given or "" if self._server is None else self._server.dsn
        """A DSN of the server that may create databases."""

    def _start(self) -> EmbeddedServer:
        self._folder = Path(tempfile.mkdtemp(prefix="pqrun-tests-"))
        self._folder.chmod(0o755)  # as root, the server's user must reach it
        try:
            return start_server(self._folder, settings=FAST_SETTINGS)
        except BaseException as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            if isinstance(error, MissingExtraError):
                raise MissingExtraError(f"a database for tests, unless {TEST_DSN} names a server,", "dev") from None
            raise

    async def make_template(self) -> None:
        """Create and migrate the template."""
        await create_database(self.admin_dsn, self._template, template="template1")
        await PgJobStore(with_database(self.admin_dsn, self._template)).migrate()

    async def clone(self, *, migrated: bool = True) -> str:
        """Make a database and return its DSN; not ``migrated``: without any schema of ours."""
        name = f"{self.prefix}_{next(self._numbers)}"
        await create_database(self.admin_dsn, name, template=self._template if migrated else "template0")
        return with_database(self.admin_dsn, name)

    async def drop(self, dsn: str) -> None:
        """Remove a database, whoever is still connected."""
        await drop_database(self.admin_dsn, database_of(dsn))

    async def connections(self, dsn: str) -> list[str]:
        """Who is still connected to a database, by application name and last statement."""
        return await list_connections(self.admin_dsn, database_of(dsn))

    async def close(self) -> None:
        """Remove the template and stop a server of our own."""
        await drop_database(self.admin_dsn, self._template)
        if self._server is not None:
            self._server.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
