"""The two typed values around an insert: ``Call[R]``, a job before it is written, and ``JobHandle[R]``, one after."""

import math
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from typing import Generic, TypeVar

import msgspec

from pqrun.errors import JobCancelled, JobFailed, JobNotFound, OptionError, ResultDecodeError, ResultError
from pqrun.job.attempts import JobAttempt
from pqrun.job.outcome import CancelOutcome
from pqrun.job.progress import Progress, check_every
from pqrun.job.record import Job, NewJob
from pqrun.job.state import Status
from pqrun.job.storable import error_summary
from pqrun.portal import Portal
from pqrun.store import PgJobStore
from pqrun.store.ports import AnyConnection, AnySyncConnection
from pqrun.store.waiter import End

__all__ = ["Call", "JobHandle"]

R_co = TypeVar("R_co", covariant=True)


class Call(msgspec.Struct, Generic[R_co], frozen=True, gc=False):
    """A validated job that was not written yet: what ``task.call(...)`` gives and ``jobs.defer_many`` takes."""

    job: NewJob
    decode: Callable[[str | None], R_co]
    """Stored JSON text of a result to the declared type."""
    load: Callable[[str], object]
    """Stored JSON text of the payload to what the handler gets."""
    connection: AnyConnection | AnySyncConnection | None = None
    """What ``.options(connection=)`` named; ``defer_many`` refuses a call that has one."""

    def __repr__(self) -> str:
        return f"Call({self.job!r})"


class JobHandle(msgspec.Struct, Generic[R_co], frozen=True, eq=False, gc=False):
    """One job, by its id: what became of it, its typed result, and the ways to stop or repeat it.

    ``defer`` gives one; ``task.handle(job_id)`` makes one from an id, at once and without asking the database.
    """

    # gc=False: a list of many thousand handles is nothing for the garbage collector to walk through; none can be in a cycle.

    id: int
    """The id of the job; an int that a ``bigint`` holds."""
    created: bool
    """Whether the call that gave this handle wrote the job: False when its dedupe key found an active one."""
    _decode: Callable[[str | None], R_co]
    _portal: Portal

    async def status(self) -> Status:
        """Return the present status; raises JobNotFound."""
        return (await self._find(self._portal.opened_store())).status

    async def job(self) -> Job:
        """Return the row as it is now; raises JobNotFound when it was never there, deleted, or removed by retention."""
        return await self._find(self._portal.opened_store())

    async def attempts(self) -> list[JobAttempt]:
        """Return the attempts that did not succeed, newest last: the last 20; none where there is no such job."""
        return await self._portal.opened_store().attempts(self.id)

    async def result(self, timeout: float | timedelta | None = None) -> R_co:
        """Wait until the job has ended and return what its handler returned, as the declared type.

        ``timeout``: seconds or a timedelta, 0 looks once; None waits as long as it takes. Raises JobFailed (with
        ``last_error``), JobCancelled, JobNotFound, ResultDecodeError when the stored result does not satisfy the declared
        type, and ResultTimeout (a TimeoutError); the job goes on after that.
        """
        return self._read(await self._portal.opened_store().wait_end(self.id, _seconds(timeout)))

    async def progress(self) -> Progress | None:
        """Return the last report that the job's handler has made (``ctx.progress``), None where it made none; raises JobNotFound.

        It stays after the end, as long as the job does, and through further attempts until one of them reports; ``retry`` removes it.
        """
        return await self._portal.opened_store().progress(self.id)

    def watch(
        self, timeout: float | timedelta | None = None, *, every: float | timedelta = 0.5
    ) -> AsyncIterator[Progress]:
        """Iterate over the job's reports as they come: the present one, each later one, until the job has ended, however.

        ``every``: seconds between two looks, 0.05 or more; who is slower than the reports gets the latest. ``timeout``: seconds or a
        timedelta for all of it, 0 looks once; None: until the end. Leaving the loop early leaves nothing behind. Raises OptionError and
        NotOpenError at once, and while iterating JobNotFound and ResultTimeout (a TimeoutError); ``result`` tells how the job ended.
        """
        return self._portal.opened_store().watch(self.id, timeout=_seconds(timeout), every=check_every(every))

    async def cancel(self) -> CancelOutcome:
        """Cancel the job, or ask its worker to stop it; raises JobBusy when another transaction keeps the row locked."""
        return await self._portal.opened_store().cancel(self.id)

    async def retry(self, *, force: bool = False) -> None:
        """Make an ended job due again with no attempt counted; one that is DONE only with ``force``.

        Raises RetryRefused (with ``conflicting_id`` when another active job holds its dedupe key) and JobNotFound.
        """
        await self._portal.opened_store().retry(self.id, force=force)

    # The same for synchronous code.

    def status_sync(self) -> Status:
        """Do what ``status`` does, from synchronous code; see ``defer_sync``."""
        return self._portal.run(self._find, instead="await job.status()").status

    def job_sync(self) -> Job:
        """Do what ``job`` does, from synchronous code; see ``defer_sync``."""
        return self._portal.run(self._find, instead="await job.job()")

    def attempts_sync(self) -> list[JobAttempt]:
        """Do what ``attempts`` does, from synchronous code; see ``defer_sync``."""
        return self._portal.run(lambda store: store.attempts(self.id), instead="await job.attempts()")

    def result_sync(self, timeout: float | timedelta | None = None) -> R_co:
        """Do what ``result`` does, from synchronous code; see ``defer_sync``. Ctrl-C ends the wait, not the job."""
        seconds = _seconds(timeout)
        instead = "await job.result(...)"
        return self._read(self._portal.run(lambda store: store.wait_end(self.id, seconds), instead=instead))

    def progress_sync(self) -> Progress | None:
        """Do what ``progress`` does, from synchronous code; see ``defer_sync``."""
        return self._portal.run(lambda store: store.progress(self.id), instead="await job.progress()")

    def watch_sync(
        self, timeout: float | timedelta | None = None, *, every: float | timedelta = 0.5
    ) -> Iterator[Progress]:
        """Do what ``watch`` does, from synchronous code; see ``defer_sync``. Ctrl-C ends the wait, not the job."""
        return self._watched(_seconds(timeout), check_every(every))

    def _watched(self, timeout: float | None, every: float) -> Iterator[Progress]:
        watch: AsyncIterator[Progress] | None = None

        async def step(store: PgJobStore) -> Progress | None:
            nonlocal watch
            watch = watch or store.watch(self.id, timeout=timeout, every=every)
            return await anext(watch, None)

        while (progress := self._portal.run(step, instead="async for progress in job.watch()")) is not None:
            yield progress

    def cancel_sync(self) -> CancelOutcome:
        """Do what ``cancel`` does, from synchronous code; see ``defer_sync``."""
        return self._portal.run(lambda store: store.cancel(self.id), instead="await job.cancel()")

    def retry_sync(self, *, force: bool = False) -> None:
        """Do what ``retry`` does, from synchronous code; see ``defer_sync``."""
        self._portal.run(lambda store: store.retry(self.id, force=force), instead="await job.retry(...)")

    async def _find(self, store: PgJobStore) -> Job:
        job = await store.get(self.id)
        if job is None:
            raise JobNotFound(f"there is no job {self.id}: never written, deleted, or removed by retention", self.id)
        return job

    def _read(self, end: End) -> R_co:
        if end.status is Status.FAILED:
            said = error_summary(end.last_error or "") or "no error was recorded"
            raise JobFailed(f"job {self.id} failed: {said}", self.id, end.last_error)
        if end.status is Status.CANCELLED:
            raise JobCancelled(f"job {self.id} was cancelled", self.id)
        try:
            return self._decode(end.result)
        except ResultError as error:
            message = f"job {self.id} is done, but its result cannot be read: {error}"
        # Outside of the except block: the chain of a validation error can hold the result.
        raise ResultDecodeError(message, self.id)

    def __repr__(self) -> str:
        return f"JobHandle(id={self.id}, created={self.created})"


def _seconds(timeout: object) -> float | None:
    if timeout is None:
        return None
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if (
        isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0
    ):  # not: NaN is no number to compare
        raise OptionError(f"timeout: expected seconds or a timedelta, 0 or more, or None to wait on; got {timeout!r}")
    return None if math.isinf(seconds) else float(seconds)
