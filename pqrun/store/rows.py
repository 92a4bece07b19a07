"""Rows of the driver turned into the values of ``pqrun.job.record``."""

from collections.abc import Iterable
from typing import Any, Final, Protocol

from asyncpg import Record

from pqrun.job.record import Job
from pqrun.job.state import Status

__all__ = ["Row", "claimed_job", "stored_job"]


class Row(Protocol):
    """A row of whatever driver: its columns by name."""

    def __getitem__(self, column: str, /) -> Any: ...  # noqa: ANN401  # what a column holds is known by its statement


_BACKOFF: Final = Job.__struct_fields__.index("backoff_seconds")
_STATUS: Final = Job.__struct_fields__.index("status")


def claimed_job(row: Record, worker_id: str) -> Job:
    """Build the job of a claim: behind lane and place, its columns are the first fields of ``Job``, in their order."""
    columns = [*row[2:], Status.RUNNING, worker_id, row["locked_at"]]
    if columns[_BACKOFF] is not None:
        columns[_BACKOFF] = tuple(columns[_BACKOFF])
    return Job(*columns)


def stored_job(row: Iterable[Any]) -> Job:
    """Build a job from a row of get.sql or list_active.sql, whose columns are the fields of ``Job`` in their order."""
    columns = list(row)
    columns[_BACKOFF] = None if columns[_BACKOFF] is None else tuple(columns[_BACKOFF])
    columns[_STATUS] = Status(columns[_STATUS])
    return Job(*columns)
