"""What those who wait ask of an open store: how a job ended, how far it has come, and each report on the way."""

from collections.abc import AsyncIterator
from datetime import timedelta

from pqrun.errors import JobNotFound
from pqrun.job.options import check_job_id
from pqrun.job.progress import Progress, check_every
from pqrun.store.endings import EndNews
from pqrun.store.link import Opener
from pqrun.store.reading import Reading
from pqrun.store.reporting import find_progress
from pqrun.store.source import PoolSource
from pqrun.store.waiter import End, Waiter
from pqrun.store.watcher import Watch, Watcher

__all__ = ["Awaiting"]


class Awaiting(Reading):
    """The part of ``PgJobStore`` that waits; raises NotOpenError."""

    _source: PoolSource
    _asking: tuple[Waiter, Watcher] | None = None

    async def wait_end(self, job_id: int, timeout: float | None = None) -> End:
        """Wait until the job has finished and return how. Raises JobNotFound and ResultTimeout."""
        waiter, _ = self._checked_asking()
        check_job_id(job_id)
        return await (waiter.look_once(job_id) if timeout == 0 else waiter.wait(job_id, timeout))

    async def progress(self, job_id: int) -> Progress | None:
        """Return the last report of the job, None where it never reported; raises JobNotFound."""
        look = (await find_progress(self, [check_job_id(job_id)])).get(job_id)
        if look is None:
            raise JobNotFound(f"there is no job {job_id} (deleted, or removed by retention)", job_id)
        return look.progress

    def watch(
        self, job_id: int, *, timeout: float | None = None, every: float | timedelta = 0.5
    ) -> AsyncIterator[Progress]:
        """Return the job's reports as they come, until it has ended; see ``JobHandle.watch``. ``timeout``: seconds, 0 looks once."""
        return Watch(self._checked_asking()[1], check_job_id(job_id), timeout=timeout, every=check_every(every))

    def _checked_asking(self) -> tuple[Waiter, Watcher]:
        _ = self._source.checked()
        assert self._asking is not None  # noqa: S101  # open, so start has made them
        return self._asking

    def _open_asking(self, opener: Opener | None, channel: str) -> None:
        endings = EndNews(self, opener, channel)
        self._asking = Waiter(self, endings), Watcher(self, endings)

    async def _close_asking(self, asking: tuple[Waiter, Watcher] | None) -> None:
        for one in asking or ():
            await one.close()
