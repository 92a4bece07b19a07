"""What really happened, whatever the database says: one file per process, one line per event, written by one system call.

A line is in the kernel's hands when ``Log.write`` returns, so it survives a SIGKILL of its process. Times are of the monotonic clock,
which all processes of a machine share.
"""

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Self, TypeAlias

import msgspec

__all__ = [
    "CancelAnswered",
    "CancelAsked",
    "Committed",
    "Deferred",
    "Deferring",
    "Ended",
    "Entry",
    "Event",
    "Exited",
    "FaultBegan",
    "FaultOver",
    "Log",
    "Met",
    "RetryAnswered",
    "RetryAsked",
    "RolledBack",
    "Started",
    "Told",
    "read_logs",
]

SUFFIX = ".log"


class Deferring(msgspec.Struct, frozen=True, tag=True):
    """A producer is about to defer; until ``Deferred`` follows, the job may or may not be there."""

    token: str
    """Names this call, and is in the payload."""
    job_type: str
    max_attempts: int
    key: str | None = None
    batch: str | None = None
    """The producer's own transaction that the job belongs to; without ``Committed`` nothing is acknowledged."""
    is_blameless: bool = False
    """Its handler never fails by itself."""


class Deferred(msgspec.Struct, frozen=True, tag=True):
    """``defer`` has returned."""

    token: str
    job_id: int
    created: bool


class Committed(msgspec.Struct, frozen=True, tag=True):
    """A producer's transaction was committed."""

    batch: str


class RolledBack(msgspec.Struct, frozen=True, tag=True):
    """A producer has rolled its transaction back on purpose."""

    batch: str


class CancelAsked(msgspec.Struct, frozen=True, tag=True):
    """A producer is about to cancel."""

    job_id: int


class CancelAnswered(msgspec.Struct, frozen=True, tag=True):
    """``cancel`` has returned."""

    job_id: int
    outcome: str


class RetryAsked(msgspec.Struct, frozen=True, tag=True):
    """A producer is about to retry a job by hand."""

    job_id: int


class RetryAnswered(msgspec.Struct, frozen=True, tag=True):
    """``retry`` has returned, or has refused."""

    job_id: int
    accepted: bool


class Met(msgspec.Struct, frozen=True, tag=True):
    """Something that must not be, such as an error that pqrun should have named."""

    error: str


class Started(msgspec.Struct, frozen=True, tag=True):
    """A handler has started."""

    token: str
    job_id: int
    claim_id: int
    pid: int


class Ended(msgspec.Struct, frozen=True, tag=True):
    """A handler is about to end."""

    token: str
    job_id: int
    claim_id: int
    how: str
    """"returned", "raised", "snoozed", or why it was asked to stop."""


class Told(msgspec.Struct, frozen=True, tag=True):
    """A worker has told an event about a job."""

    what: str
    """The event's name."""
    job_id: int
    claim_id: int | None = None
    detail: str = ""


class FaultBegan(msgspec.Struct, frozen=True, tag=True):
    """Something is broken now."""

    number: int
    kind: str
    detail: str = ""
    pids: tuple[int, ...] = ()
    """The worker processes that it hits."""


class FaultOver(msgspec.Struct, frozen=True, tag=True):
    """What was broken is whole again; what was killed stays killed."""

    number: int


class Exited(msgspec.Struct, frozen=True, tag=True):
    """A worker process has ended; ``is_last``: after the load had drained, with the database up."""

    name: str
    code: int
    is_last: bool = False


Event: TypeAlias = (
    Deferring
    | Deferred
    | Committed
    | RolledBack
    | CancelAsked
    | CancelAnswered
    | RetryAsked
    | RetryAnswered
    | Met
    | Started
    | Ended
    | Told
    | FaultBegan
    | FaultOver
    | Exited
)


class Entry(msgspec.Struct, frozen=True):
    """One line."""

    at: float
    source: str
    """The process that wrote it."""
    event: Event


_DECODER = msgspec.json.Decoder(Entry)


class Log:
    """The file of one process; usable from its threads."""

    def __init__(self, folder: Path, source: str) -> None:
        self._source = source
        self._file = os.open(folder / f"{source}{SUFFIX}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def write(self, event: Event) -> None:
        """Append an event; it survives this process from now on."""
        os.write(self._file, msgspec.json.encode(Entry(time.monotonic(), self._source, event)) + b"\n")


def read_logs(folder: Path) -> list[Entry]:
    """All lines of all processes, in the order of their times. A last line without its end was never acknowledged."""
    entries: list[Entry] = []
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        entries += _read(path.read_bytes().split(b"\n")[:-1])
    return sorted(entries, key=lambda entry: entry.at)


def _read(lines: Iterable[bytes]) -> list[Entry]:
    return [_DECODER.decode(line) for line in lines]
