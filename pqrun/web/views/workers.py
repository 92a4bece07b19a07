"""Workers: who is there, what each serves and runs; told to claim nothing, to go on, to end, and asked where their handlers are."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final, NamedTuple
from uuid import uuid4

from starlette.responses import Response

from pqrun.job.registered import RegisteredWorker
from pqrun.job.release import is_older_release, newest_release
from pqrun.job.wanted import wanted_text
from pqrun.store.acting import Act, tell_worker
from pqrun.store.pages import list_running, list_workers
from pqrun.store.workers import find_stacks
from pqrun.web.rendering import span
from pqrun.web.views.job import path_id
from pqrun.web.visit import PageError, Visit
from pqrun.workers import await_stacks

__all__ = ["act_on_worker", "worker_data", "workers_data"]

STACKS_SECONDS: Final = 5.0
"""How long a page waits for the answer; one that comes later is shown by the next look."""


class Taken(NamedTuple):
    """Where the running handlers of a worker were, when it was asked last. File names, lines and source: nothing of payloads."""

    at: datetime
    text: str


async def workers_data(visit: Visit) -> Mapping[str, object]:
    """The registry, the living first."""
    async with visit.reading() as session:
        workers = await list_workers(session)
    return {
        "workers": workers,
        "states": {worker.id: worker.state for worker in workers},
        "alive": sum(worker.is_alive for worker in workers),
        "newer": {worker.id: newer_release(worker, workers) for worker in workers},
        "warnings": worker_warnings(workers),
    }


def worker_warnings(workers: Iterable[RegisteredWorker]) -> list[str]:
    """Say which workers give no sign of life. One that claims nothing does so because somebody wants that."""
    return [
        f"Worker {worker.worker_id}: no sign of life for {span(worker.beat_age_seconds)}; it holds {worker.running:,}"
        f" job{'' if worker.running == 1 else 's'}."
        for worker in workers
        if not worker.is_alive and worker.dead_at is None
    ]


def newer_release(worker: RegisteredWorker, workers: Iterable[RegisteredWorker]) -> str | None:
    """Return the newest pqrun among the living, if this worker's is older."""
    newest = newest_release(one.version for one in workers if one.is_alive)
    return newest if is_older_release(worker.version, newest) else None


async def worker_data(visit: Visit) -> Mapping[str, object]:
    """One worker, what it runs, and where its handlers were."""
    return await _data(visit, "")


async def _data(visit: Visit, problem: str) -> dict[str, object]:
    number = path_id(visit)
    async with visit.reading() as session:
        workers = await list_workers(session)
        worker = _found(workers, number)
        running = await list_running(session, number)
        answers = await find_stacks(session, [number], worker.started_at)
    stacks = Taken(*answers[number]) if number in answers else None
    asked_at = _asked_at(visit)
    return {
        "worker": worker,
        "state": worker.state,
        "newer": newer_release(worker, workers),
        "running": running,
        "stacks": stacks,
        "is_unanswered": asked_at is not None and (stacks is None or stacks.at < asked_at),
        "problem": problem,
    }


def _found(workers: Iterable[RegisteredWorker], number: int) -> RegisteredWorker:
    for worker in workers:
        if worker.id == number:
            return worker
    raise PageError(404, "Not found", f"There is no worker {number}: one that has ended leaves the registry.")


def _asked_at(visit: Visit) -> datetime | None:
    """When the visitor asked for the stacks, by the database's clock; None too where that is no time."""
    try:
        asked = datetime.fromisoformat(visit.query.get("asked", ""))
    except ValueError:
        return None
    return asked if asked.tzinfo is not None else None


async def act_on_worker(visit: Visit) -> Response:
    """Let it claim nothing, go on, or end; or ask it where its handlers are."""
    here = visit.url(f"/workers/{path_id(visit)}")
    match visit.form.get("do"):
        case "pause" | "resume" as deed:
            words = "told to claim nothing" if deed == "pause" else "told to claim again"
            await _tell(visit, deed, wanted_text(fetching=deed == "resume"), words)
            return visit.redirect(visit.url("/workers") if visit.form.get("back") == "list" else here)
        case "drain":
            visit.must("drain")
            if visit.form.get("sure") != "yes":
                return visit.render("worker.html", await _data(visit, "tick this first; nothing was done"), 422)
            await _tell(visit, "drain", wanted_text(drain=True), "told to end")
            return visit.redirect(visit.url("/workers"))  # its own page ends with it
        case "stacks":
            asked_at = await _tell(visit, "stacks", wanted_text(stacks=uuid4().hex), "asked where its handlers are")
            return visit.redirect(visit.url(f"/workers/{path_id(visit)}", asked=asked_at.isoformat()))
        case _:
            raise PageError(400, "No such action", "Expected one of pause, resume, drain, stacks.")


async def _tell(visit: Visit, deed: str, wanted: str, words: str) -> datetime:
    """Write what is wanted into the registry, and for stacks wait for the answer; return when it was written."""
    visit.must(deed)
    number = path_id(visit)
    async with visit.reading() as session:
        worker = _found(await list_workers(session), number)
    store = await visit.site.store()
    note = Act(visit.access.user, deed, f"worker {number} ({worker.worker_id})")
    told = await tell_worker(store, note, number, wanted, words)
    if deed == "stacks":
        await await_stacks(store, [told], STACKS_SECONDS)
    return told.asked_at
