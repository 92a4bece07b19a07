"""A worker process of the load: ``python -m benchmarks.chaos.work DSN FOLDER NAME CONCURRENCY``. SIGTERM stops it in order."""

import asyncio
import logging
import sys
from pathlib import Path

from benchmarks.chaos.child import end_with_parent
from benchmarks.chaos.load import Load
from benchmarks.chaos.log import Log, Told
from pqrun.cli.signals import heard
from pqrun.run import events
from pqrun.run.events import Event

__all__: list[str] = []

GRACE_SECONDS = 2.0
"""Less than the slow handlers take, so that a stop gives some back."""


def _told(event: Event) -> Told | None:
    match event:
        case (
            events.Done(job)
            | events.Retrying(job)
            | events.Failed(job)
            | events.JobCancelled(job)
            | events.Snoozed(job)
            | events.ClaimLost(job)
        ):
            return Told(type(event).__name__, job.id, job.claim_id)
        case events.Released(job, started):
            return Told("Released", job.id, job.claim_id, "started" if started else "unstarted")
        case events.StopRequested(job, reason):
            return Told("StopRequested", job.id, job.claim_id, reason)
        case events.Recovered():
            return Told("Recovered", event.job_id, None, event.status)
        case _:
            return None


async def _work(dsn: str, log: Log, name: str, concurrency: int) -> bool:
    is_clean = True

    def note(event: Event) -> None:
        nonlocal is_clean
        if isinstance(event, events.WorkerStopped):
            is_clean = event.clean
        elif (told := _told(event)) is not None:
            log.write(told)

    worker = Load(dsn, log).app.worker(
        concurrency=concurrency, worker_id=name, shutdown_grace=GRACE_SECONDS, retention=None, environ={}
    )
    worker.events.subscribe(note)
    with heard(asyncio.get_running_loop(), lambda _number: worker.stop()):
        await worker.run()
    return is_clean


def _main(dsn: str, folder: str, name: str, concurrency: str) -> None:
    end_with_parent()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with Log(Path(folder), name) as log:
        is_clean = asyncio.run(_work(dsn, log, name, int(concurrency)))
    sys.exit(0 if is_clean else 1)


if __name__ == "__main__":
    _main(*sys.argv[1:])
