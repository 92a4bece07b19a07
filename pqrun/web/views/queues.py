"""Queues: what waits, runs and fails in each, what went through it, who serves it; paused, resumed and purged."""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Final, NamedTuple

from starlette.responses import Response

from pqrun.errors import OptionError
from pqrun.job.filter import JobFilter
from pqrun.job.options import check_queue
from pqrun.job.pause import PauseKind, check_reason
from pqrun.job.query import query_text
from pqrun.job.queue import QueueState
from pqrun.job.registered import RegisteredWorker
from pqrun.job.state import Status
from pqrun.store import acting
from pqrun.store.acting import Act, act
from pqrun.store.pages import list_workers, read_clock
from pqrun.store.queue_pages import AGES_LOOKED, list_running_in, see_ages
from pqrun.store.queues import find_pauses, find_queues
from pqrun.web import operating
from pqrun.web.operating import Wish
from pqrun.web.periods import PERIODS
from pqrun.web.visit import PageError, Visit
from pqrun.web.volumes import Counted, Volume, read_volumes

__all__ = ["QueueRow", "act_on_queue", "change_pause", "queue_data", "queue_rows", "queue_warnings", "queues_data"]

QUEUES_SHOWN: Final = 100
"""On one page of the list: each has a drawing, and steps in the table below."""

WAITS_LONG: Final = timedelta(minutes=5)

AGE_BOUNDS: Final = (1.0, 10.0, 60.0, 300.0, 1_800.0, 3_600.0, 21_600.0, 86_400.0)
AGE_LABELS: Final = (
    "up to 1 s",
    "to 10 s",
    "to 1 min",
    "to 5 min",
    "to 30 min",
    "to 1 h",
    "to 6 h",
    "to 1 d",
    "over 1 d",
)

PURGES: Final = ("cancel", "delete")
"""What becomes of the jobs: kept as CANCELLED until retention removes them, or gone at once."""


class QueueRow(NamedTuple):
    """A queue now, and what went through it in the chosen time."""

    name: str
    now: QueueState
    volume: Volume

    @property
    def weight(self) -> tuple[bool, bool, int]:
        """Orders queues by how much somebody may want to see them: paused ones, those that nobody serves, and then by jobs."""
        is_unserved = self.now.ready > 0 and not self.now.workers
        return self.now.paused_at is not None, is_unserved, self.now.ready + self.now.running + self.volume.started


class Serving(NamedTuple):
    """A worker that serves a queue."""

    worker: RegisteredWorker
    state: str
    slots: int | None
    """Handlers of this queue that it can run at once; None: of a version that does not say."""
    is_own: bool
    """Whether these are the queue's own, not shared with others."""


def queue_rows(states: Iterable[QueueState], counted: Counted) -> list[QueueRow]:
    """Return every queue that is known of, by name: those too that are empty and unserved now, and were not in the chosen time."""
    known = {state.name: state for state in states}
    names = known.keys() | counted.by_key.keys()
    empty = {name: QueueState(name=name, ready=0, scheduled=0, running=0, failing=0) for name in names - known.keys()}
    return [QueueRow(name, known.get(name) or empty[name], counted.of(name)) for name in sorted(names)]


def queue_warnings(states: Iterable[QueueState]) -> list[str]:
    """Say which queues need somebody's attention. One that is paused waits because somebody wants that."""
    found: list[str] = []
    for queue in states:
        if queue.paused_at is not None or not queue.ready:
            continue
        if not queue.workers:
            found.append(f"Queue {queue.name}: {queue.ready:,} ready, and no worker serves it.")
        elif queue.oldest_ready_seconds is not None and queue.oldest_ready_seconds > WAITS_LONG.total_seconds():
            minutes = queue.oldest_ready_seconds / 60
            found.append(f"Queue {queue.name}: a job has been ready for {minutes:,.0f} minutes.")
    return found


async def queues_data(visit: Visit) -> Mapping[str, object]:
    """All queues by name, from behind ``?after=`` on, and the tasks that are paused in all of them."""
    after = visit.query.get("after", "")
    async with visit.reading() as session:
        now = await read_clock(session)
        states = await find_queues(session)
        pauses = await find_pauses(session)
    counted = await read_volumes(visit, now, "queue")
    rows = [row for row in queue_rows(states, counted) if row.name > after]
    return {
        "queues": rows[:QUEUES_SHOWN],
        "next_after": rows[QUEUES_SHOWN - 1].name if len(rows) > QUEUES_SHOWN else None,
        "is_first": not after,
        "paused_tasks": [pause for pause in pauses if pause.kind == "task"],
        "warnings": queue_warnings(states),
        "counted": counted,
        "ranges": list(PERIODS),
        "now": now,
    }


async def queue_data(visit: Visit) -> Mapping[str, object]:
    """One queue."""
    return await _data(visit, _name(visit), {})


def _name(visit: Visit) -> str:
    try:
        return check_queue(visit.request.path_params["name"])
    except OptionError:
        raise PageError(404, "Not found", "No queue can have this name.") from None


async def _data(visit: Visit, name: str, problems: Mapping[str, str]) -> dict[str, object]:
    async with visit.reading() as session:
        now = await read_clock(session)
        states = await find_queues(session)
        ages = await see_ages(session, name, AGE_BOUNDS)
        running = await list_running_in(session, name)
        workers = await list_workers(session)
    counted = await read_volumes(visit, now, "all", queue=name)
    found = [state for state in states if state.name == name]
    if not found and not counted.by_key and not counted.is_refused:
        raise PageError(
            404,
            "Not found",
            f"No job waits or runs in a queue {name!r}, none went through it lately, no worker serves it, and it is not paused.",
        )
    state = found[0] if found else QueueState(name=name, ready=0, scheduled=0, running=0, failing=0)
    return {
        "queue": QueueRow(name, state, counted.total),
        "counted": counted,
        "ages": {"labels": AGE_LABELS, "counts": ages, "is_cut": sum(ages) >= AGES_LOOKED},
        "running": running,
        "serving": serving(workers, name),
        "waiting_query": waiting_query(name),
        "problems": problems,
        "entered": {field: visit.form.get(field) for field in ("reason", "name", "how")},
        "warnings": queue_warnings([state]),
        "ranges": list(PERIODS),
        "now": now,
    }


def serving(workers: Iterable[RegisteredWorker], queue: str) -> list[Serving]:
    """Return the living workers that serve a queue, and with how many slots."""
    return [
        Serving(worker, worker.state, _slots(worker, queue), queue in worker.slots)
        for worker in workers
        if worker.dead_at is None and (worker.queues is None or queue in worker.queues)
    ]


def _slots(worker: RegisteredWorker, queue: str) -> int | None:
    """As find_queues.sql counts them."""
    if worker.concurrency is None:
        return None
    rest = max(worker.concurrency - sum(worker.slots.values()), 1)
    return min(worker.slots.get(queue, rest), worker.concurrency)


def waiting_query(queue: str) -> str:
    """Return the query that means all jobs of a queue that have not started."""
    return query_text(JobFilter(queues=[queue], statuses=[Status.READY, Status.SCHEDULED]))


async def act_on_queue(visit: Visit) -> Response:
    """Pause, resume, or prepare a purge."""
    name = _name(visit)
    match visit.form.get("do"):
        case "pause" | "resume" as deed:
            problem = await change_pause(visit, deed, "queue", name)
            if problem is not None:
                return visit.render("queue.html", await _data(visit, name, {"reason": problem}), 422)
            back = {"overview": visit.url("/"), "list": visit.url("/queues")}.get(visit.form.get("back"))
            return visit.redirect(back or visit.name_url("queues", name))
        case "purge":
            return await _purge(visit, name)
        case _:
            raise PageError(400, "No such action", "Expected one of pause, resume, purge.")


async def change_pause(visit: Visit, deed: str, kind: PauseKind, name: str) -> str | None:
    """Pause or resume a queue or a task; return what is wrong with the reason. Raises PageError for somebody who may not."""
    visit.must(deed)
    store = await visit.site.store()
    user = visit.access.user
    if deed == "resume":
        note = Act(user, "resume", f"{kind} {name}")
        await act(store, note, lambda session: acting.resume(session, kind, name))
        return None
    try:
        reason = check_reason(visit.form.get("reason") or None)
    except OptionError as error:
        return str(error)
    await acting.pause(store, user, kind, name, reason)
    return None


async def _purge(visit: Visit, name: str) -> Response:
    """Count the waiting jobs in the background; its page shows how many there are, and asks."""
    visit.must("purge")
    how = visit.form.get("how")
    if how not in PURGES:
        raise PageError(400, "No such action", "A purge takes how=cancel or how=delete.")
    if visit.form.all("name")[-1:] != [name]:
        words = "this is not the queue's name; nothing was done"
        return visit.render("queue.html", await _data(visit, name, {"name": words}), 422)
    wish = Wish(visit.access.user, "purge", {"how": how})
    number = await operating.prepare(visit.site, wish, query=waiting_query(name))
    return visit.redirect(visit.url(f"/operations/{number}"))
