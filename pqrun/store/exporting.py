"""Jobs that match, one after another, for files: pieces of bounded size, and no snapshot that outlives one."""

from collections.abc import AsyncIterator

from pqrun.job.filter import JobFilter
from pqrun.job.record import Job
from pqrun.job.state import ACTIVE, FINISHED
from pqrun.store.pg import PgJobStore
from pqrun.store.rows import stored_job
from pqrun.store.selecting import PIECE_ROWS, look, pages, sliced

__all__ = ["export"]


async def export(store: PgJobStore, wanted: JobFilter, limit: int) -> AsyncIterator[list[Job]]:
    """Yield the jobs that match in pieces of up to 500, ``limit`` in all; the finished ones first."""
    link = store.open_selection()
    left = limit
    try:
        async for page in pages(link, wanted, wanted.statuses or ACTIVE | FINISHED):
            for piece in sliced(page.ids[:left], PIECE_ROWS):
                yield [stored_job(row) for row in await look(link, "get_many", list(piece))]
            left -= min(left, len(page.ids))
            if not left:
                return
    finally:
        await link.close()
