"""Workers: who is there, what each serves and runs."""

from collections.abc import Mapping

from pqrun.job.registered import RegisteredWorker
from pqrun.store.pages import list_running, list_workers
from pqrun.web.views.job import path_id
from pqrun.web.visit import PageError, Visit

__all__ = ["state_of", "worker_data", "workers_data"]


def state_of(worker: RegisteredWorker) -> str:
    """Return ``alive``, ``silent`` (no sign of life for some seconds) or ``dead`` (taken for dead)."""
    if worker.dead_at is not None:
        return "dead"
    return "alive" if worker.is_alive else "silent"


async def workers_data(visit: Visit) -> Mapping[str, object]:
    """The registry, the living first."""
    async with visit.reading() as session:
        workers = await list_workers(session)
    states = {worker.id: state_of(worker) for worker in workers}
    return {"workers": workers, "states": states, "alive": sum(worker.is_alive for worker in workers)}


async def worker_data(visit: Visit) -> Mapping[str, object]:
    """One worker, and what it runs."""
    number = path_id(visit)
    async with visit.reading() as session:
        found = [worker for worker in await list_workers(session) if worker.id == number]
        running = await list_running(session, number)
    if not found:
        raise PageError(404, "Not found", f"There is no worker {number}: one that has ended leaves the registry.")
    return {"worker": found[0], "state": state_of(found[0]), "running": running}
