"""The database that a command works on: named by the user, or started for this command alone in a private folder."""

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from pqrun.config import dsn_from
from pqrun.embedded import EmbeddedServer, start_server
from pqrun.embedded.guard import GUARD_LOCK
from pqrun.embedded.locks import FileLock
from pqrun.errors import ConfigurationError

__all__ = ["NO_DSN", "DsnOption", "dsn_or_refuse", "embedded_server"]

NO_DSN = (
    "no database was named: give --dsn postgresql://user@host:5432/database, or set PQRUN_DSN or DATABASE_URL in the environment; "
    "--dsn embedded:PATH starts a PostgreSQL of pqrun's own in that folder (pip install 'pqrun[dev]')"
)
"""What a command without any DSN answers: every way to give one."""

GUARD_SECONDS = 5.0
"""How long the guard of a server that has stopped may take to end; it needs some milliseconds."""

DsnOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--dsn",
        metavar="DSN",
        show_default=False,
        help="postgresql://… or embedded:PATH; without it PQRUN_DSN counts, then DATABASE_URL.",
    ),
]


def dsn_or_refuse(dsn: str | None, environ: Mapping[str, str]) -> str:
    """Return the DSN of ``--dsn`` or the environment; raises ConfigurationError, which names every way to give one."""
    found = dsn_from(dsn, environ)
    if found is None:
        raise ConfigurationError(NO_DSN)
    return found


@contextmanager
def embedded_server(path: Path | None) -> Iterator[tuple[EmbeddedServer, Path]]:
    """Run the embedded server in ``path``, or in a private folder that is removed at the end; gives it and the folder.

    At the end nothing of it is left: no server, no guard, and without ``path`` no file. Raises MissingExtraError and
    EmbeddedError.
    """
    folder = path or Path(tempfile.mkdtemp(prefix="pqrun-"))
    data: Path | None = None
    try:
        with start_server(folder) as server:
            data = server.data_path
            yield server, folder
        FileLock(folder / GUARD_LOCK).acquire(timeout=GUARD_SECONDS)  # held for the guard's whole life
    finally:
        if path is None:
            _remove(folder, data)


def _remove(folder: Path, data: Path | None) -> None:
    # Started by root, the server runs as another user, whose data lies where that one can reach it: see embedded.places.
    if data is not None and folder not in data.parents:
        shutil.rmtree(data.parent, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
