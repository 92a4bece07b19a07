"""Workers: who is there, what each serves and runs."""

from collections.abc import Mapping

from pqrun.store.pages import list_running, see_workers
from pqrun.web.views.job import path_id
from pqrun.web.visit import PageError, Visit

__all__ = ["worker_data", "workers_data"]


async def workers_data(visit: Visit) -> Mapping[str, object]:
    """The registry, the living first."""
    async with visit.reading() as session:
        workers = await see_workers(session)
    return {"workers": workers, "alive": sum(worker.state == "alive" for worker in workers)}


async def worker_data(visit: Visit) -> Mapping[str, object]:
    """One worker, and what it runs."""
    number = path_id(visit)
    async with visit.reading() as session:
        found = await see_workers(session, number)
        running = await list_running(session, number)
    if not found:
        raise PageError(404, "Not found", f"There is no worker {number}: one that has ended leaves the registry.")
    return {"worker": found[0], "running": running, "known": visit.site.tasks.keys()}
