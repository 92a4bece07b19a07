"""The two typed values around an insert: ``Call[R]``, a job before it is written, and ``JobHandle[R]``, one after."""

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Generic, TypeVar

import msgspec

from pqrun.errors import JobCancelled, JobFailed, JobNotFound, OptionError, ResultDecodeError, ResultError
from pqrun.job.outcome import CancelOutcome
from pqrun.job.record import Job, NewJob
from pqrun.job.state import Status
from pqrun.job.storable import error_summary
from pqrun.store import PgJobStore
from pqrun.store.ports import Connection

__all__ = ["Call", "JobHandle"]

R_co = TypeVar("R_co", covariant=True)


class Call(msgspec.Struct, Generic[R_co], frozen=True, gc=False):
    """A validated job that was not written yet: what ``task.call(...)`` gives and ``jobs.defer_many`` takes."""

    job: NewJob
    decode: Callable[[str | None], R_co]
    """Stored JSON text of a result to the declared type."""
    connection: Connection | None = None
    """What ``.options(connection=)`` named; ``defer_many`` refuses a call that has one."""

    def __repr__(self) -> str:
        return f"Call({self.job!r})"


class JobHandle(Generic[R_co]):
    """One job, by its id: what became of it, its typed result, and the ways to stop or repeat it.

    ``defer`` gives one; ``task.handle(job_id)`` makes one from an id, at once and without asking the database.
    """

    __slots__ = ("_created", "_decode", "_id", "_opened_store")

    def __init__(
        self,
        job_id: int,
        *,
        created: bool,
        decode: Callable[[str | None], R_co],
        opened_store: Callable[[], PgJobStore],
    ) -> None:
        self._id = job_id
        self._created = created
        self._decode = decode
        self._opened_store = opened_store

    @property
    def id(self) -> int:
        """The id of the job; an int that a ``bigint`` holds."""
        return self._id

    @property
    def created(self) -> bool:
        """Whether the call that gave this handle wrote the job: False when its dedupe key found an active one."""
        return self._created

    async def status(self) -> Status:
        """Return the present status; raises JobNotFound."""
        return (await self.job()).status

    async def job(self) -> Job:
        """Return the row as it is now; raises JobNotFound when it was never there, deleted, or removed by retention."""
        job = await self._opened_store().get(self._id)
        if job is None:
            raise JobNotFound(f"there is no job {self._id}: never written, deleted, or removed by retention", self._id)
        return job

    async def result(self, timeout: float | timedelta | None = None) -> R_co:
        """Wait until the job has ended and return what its handler returned, as the declared type.

        ``timeout``: seconds or a timedelta, 0 looks once; None waits as long as it takes. Raises JobFailed (with
        ``last_error``), JobCancelled, JobNotFound, ResultDecodeError when the stored result does not satisfy the declared
        type, and ResultTimeout (a TimeoutError); the job goes on after that.
        """
        end = await self._opened_store().wait_end(self._id, _seconds(timeout))
        if end.status is Status.FAILED:
            said = error_summary(end.last_error or "") or "no error was recorded"
            raise JobFailed(f"job {self._id} failed: {said}", self._id, end.last_error)
        if end.status is Status.CANCELLED:
            raise JobCancelled(f"job {self._id} was cancelled", self._id)
        try:
            return self._decode(end.result)
        except ResultError as error:
            message = f"job {self._id} is done, but its result cannot be read: {error}"
        # Outside of the except block: the chain of a validation error can hold the result.
        raise ResultDecodeError(message, self._id)

    async def cancel(self) -> CancelOutcome:
        """Cancel the job, or ask its worker to stop it; raises JobBusy when another transaction keeps the row locked."""
        return await self._opened_store().cancel(self._id)

    async def retry(self, *, force: bool = False) -> None:
        """Make an ended job due again with no attempt counted; one that is DONE only with ``force``.

        Raises RetryRefused (with ``conflicting_id`` when another active job holds its dedupe key) and JobNotFound.
        """
        await self._opened_store().retry(self._id, force=force)

    def __repr__(self) -> str:
        return f"JobHandle(id={self._id}, created={self._created})"


def _seconds(timeout: object) -> float | None:
    if timeout is None:
        return None
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if (
        isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0
    ):  # not: NaN is no number to compare
        raise OptionError(f"timeout: expected seconds or a timedelta, 0 or more, or None to wait on; got {timeout!r}")
    return None if math.isinf(seconds) else float(seconds)
