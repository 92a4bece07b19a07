"""Jobs as a file, NDJSON or CSV: written while they are read, and no more than a stated number."""

import csv
import io
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Final

import msgspec
from starlette.responses import Response, StreamingResponse

from pqrun.errors import StoreError
from pqrun.job.record import Job
from pqrun.store.exporting import export
from pqrun.web.plain import plain
from pqrun.web.shown import shown_job
from pqrun.web.views.jobs import asked
from pqrun.web.visit import PageError, Visit

__all__ = ["EXPORT_MOST", "export_jobs"]

EXPORT_MOST: Final = 100_000
"""Jobs of one file; the last line of a file that was cut says so."""

COLUMNS: Final = (
    *(
        "id",
        "job_type",
        "queue",
        "status",
        "priority",
        "attempts",
        "max_attempts",
        "created_at",
        "run_after",
        "locked_at",
    ),
    *("locked_by", "finished_at", "duration_ms", "dedupe_key", "last_error", "payload", "result"),
)

_FORMULAS: Final = ("=", "+", "-", "@", "\t", "\r")


async def export_jobs(visit: Visit) -> Response:
    """``/jobs.ndjson`` and ``/jobs.csv``, with the query of the list."""
    kind = str(visit.request.path_params["kind"])
    wanted = asked(visit, visit.query.get("q", ""))
    limit = visit.number("limit", 1, EXPORT_MOST) or EXPORT_MOST
    store = await visit.site.store()
    if kind not in ("ndjson", "csv"):
        raise PageError(404, "Not found", "There are /jobs.ndjson and /jobs.csv.")
    line = _as_json if kind == "ndjson" else _as_csv

    async def lines() -> AsyncIterator[str]:
        if kind == "csv":
            yield _row(COLUMNS)
        count = 0
        try:
            async for jobs in export(store, wanted, limit):
                count += len(jobs)
                yield "".join(line(visit, job) for job in jobs)
        except StoreError as error:  # the headers are sent: the file itself must say that it is not whole
            yield _note(kind, f"interrupted after {count} jobs: {error}")
            return
        if count == limit:
            yield _note(kind, f"cut at {limit} jobs; narrow the query for the others")

    media = "application/x-ndjson" if kind == "ndjson" else "text/csv; charset=utf-8"
    return StreamingResponse(
        lines(), media_type=media, headers={"Content-Disposition": f'attachment; filename="jobs.{kind}"'}
    )


def _note(kind: str, words: str) -> str:
    return f"{msgspec.json.encode({'note': words}).decode()}\n" if kind == "ndjson" else _row(["", words])


def _as_json(visit: Visit, job: Job) -> str:
    return msgspec.json.encode(plain(shown_job(visit, job))).decode() + "\n"


def _as_csv(visit: Visit, job: Job) -> str:
    facts = shown_job(visit, job)
    return _row([_cell(facts[column]) for column in COLUMNS])


def _cell(value: object) -> str:
    """A spreadsheet takes text that begins like a formula for one: an apostrophe before it says that it is text."""
    if value is None:
        return ""
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, datetime):
        return value.isoformat()
    text = str(value) if isinstance(value, str) else msgspec.json.encode(plain(value)).decode()
    return f"'{text}" if text.startswith(_FORMULAS) else text


def _row(cells: "tuple[str, ...] | list[str]") -> str:
    written = io.StringIO()
    csv.writer(written, lineterminator="\r\n").writerow(cells)
    return written.getvalue()
