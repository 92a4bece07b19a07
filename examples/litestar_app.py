"""A Litestar application that enqueues, and tells status and typed result.

::

    export PQRUN_DSN=embedded:jobs-db           # or a PostgreSQL of your own, after pqrun migrate
    uvicorn examples.litestar_app:app           # opens the database; runs no jobs
    pqrun worker examples.litestar_app:jobs     # runs them

``lifespan=[jobs.worker(concurrency=10).lifespan]`` runs them in the web process, too.
"""

from dataclasses import dataclass

from litestar import Litestar, get, post
from litestar.exceptions import NotFoundException

from pqrun import App, JobContext, Status

jobs = App()


@dataclass
class Report:
    year: int
    title: str = "Report"


@dataclass
class Written:
    url: str


@dataclass
class Accepted:
    id: int
    created: bool


@dataclass
class Progress:
    status: Status
    report: Written | None = None
    error: str | None = None


@jobs.task(payload=Report, max_attempts=1, dedupe_key="report:{year}")
async def write_report(ctx: JobContext, payload: Report) -> Written:
    if payload.year > 2026:
        raise ValueError("that year is not over")
    return Written(url=f"/files/{payload.year}.pdf")


@post("/reports", status_code=202)
async def order_report(data: Report) -> Accepted:
    job = await write_report.defer(data)
    return Accepted(id=job.id, created=job.created)  # created=False: the report of that year is on its way already


@get("/reports/{job_id:int}")
async def show_report(job_id: int) -> Progress:
    job = await write_report.find(job_id)
    if job is None:
        raise NotFoundException("no such report")
    report = await write_report.handle(job_id).result(timeout=0) if job.status is Status.DONE else None
    return Progress(status=job.status, report=report, error=job.error_summary)


app = Litestar(route_handlers=[order_report, show_report], lifespan=[jobs.lifespan])
