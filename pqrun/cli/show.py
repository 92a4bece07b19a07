"""``pqrun show ID``: one job with its states, times and last error, and the attempts that did not succeed.

0 it was shown, 1 there is no such job or the database cannot be reached, 2 wrong usage. Payload and result are shown on demand alone.
"""

import asyncio
import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Annotated, TypeAlias

import msgspec
import typer

from pqrun.cli.database import DsnOption, dsn_or_refuse
from pqrun.errors import JobNotFound
from pqrun.job.attempts import JobAttempt
from pqrun.job.record import Job
from pqrun.job.storable import one_line
from pqrun.store import PgJobStore

__all__ = ["show"]

Id: TypeAlias = Annotated[int, typer.Argument(metavar="ID", min=1, help="The job.")]
PayloadOption: TypeAlias = Annotated[bool, typer.Option("--payload", help="Show its payload and its result too.")]
TracebackOption: TypeAlias = Annotated[bool, typer.Option("--traceback", help="Show all lines of each traceback.")]
SchemaOption: TypeAlias = Annotated[
    str, typer.Option("--schema", metavar="NAME", help="The schema that holds the tables.")
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="One JSON object on stdout instead of text.")]

HIDDEN = "hidden; --payload shows it"
MARGIN = " " * 4


def show(
    job_id: Id,
    payload: PayloadOption = False,
    traceback: TracebackOption = False,
    as_json: Json = False,
    dsn: DsnOption = None,
    schema: SchemaOption = "pqrun",
) -> None:
    """Show one job and the attempts that did not succeed. Exit code 0: it is shown; 1: there is none; 2: wrong usage."""
    job, attempts = asyncio.run(_find(dsn_or_refuse(dsn, os.environ), schema, job_id))
    if as_json:
        facts = {**_facts(job, with_payload=payload), "attempts_kept": [_attempt(one, traceback) for one in attempts]}
        typer.echo(msgspec.json.format(msgspec.json.encode(facts), indent=2).decode())
        return
    for line in (*_job_lines(job, payload), *_attempts_lines(attempts, traceback)):
        typer.echo(line)


async def _find(dsn: str, schema: str, job_id: int) -> tuple[Job, list[JobAttempt]]:
    async with PgJobStore(dsn, schema=schema) as store:
        job = await store.get(job_id)
        if job is None:
            raise JobNotFound(f"there is no job {job_id}: never written, deleted, or removed by retention", job_id)
        return job, await store.attempts(job_id)


def _facts(job: Job, *, with_payload: bool) -> dict[str, object]:
    facts: dict[str, object] = {
        "id": job.id,
        "job_type": job.job_type,
        "queue": job.queue,
        "status": job.status.value,
        "priority": job.priority,
        "attempts": job.attempts,
        "max_attempts": job.max_attempts,
        "lost": job.lost,
        "releases": job.releases,
        "snoozes": job.snoozes,
        "created_at": _iso(job.created_at),
        "run_after": _iso(job.run_after),
        "scheduled_for": _iso(job.scheduled_for),
        "locked_at": _iso(job.locked_at),
        "locked_by": job.locked_by,
        "cancel_requested_at": _iso(job.cancel_requested_at),
        "finished_at": _iso(job.finished_at),
        "updated_at": _iso(job.updated_at),
        "duration_ms": job.duration_ms,
        "timeout_seconds": job.timeout_seconds,
        "dedupe_key": job.dedupe_key,
        "payload_version": job.payload_version,
        "last_error": job.last_error,
    }
    if with_payload:
        facts |= {"payload": msgspec.Raw(job.payload_json.encode()), "result": None}
        if job.result_json is not None:
            facts["result"] = msgspec.Raw(job.result_json.encode())
    return facts


def _attempt(one: JobAttempt, with_traceback: bool) -> dict[str, object]:
    facts = msgspec.structs.asdict(one)
    facts |= {"started_at": _iso(one.started_at), "ended_at": _iso(one.ended_at)}
    if not with_traceback:
        del facts["traceback"]
    return facts


def _job_lines(job: Job, with_payload: bool) -> Iterator[str]:
    facts = _facts(job, with_payload=False)
    facts["last_error"] = job.error_summary
    facts["payload"] = job.payload_json if with_payload else HIDDEN
    if job.result_json is not None:
        facts["result"] = job.result_json if with_payload else HIDDEN
    for name, value in facts.items():
        if value is not None:
            yield f"{name:<20}{one_line(str(value))}"


def _attempts_lines(attempts: Sequence[JobAttempt], with_traceback: bool) -> Iterator[str]:
    yield ""
    if not attempts:
        yield "no attempt that did not succeed is kept"
        return
    yield f"{len(attempts)} attempt{'' if len(attempts) == 1 else 's'} that did not succeed, the newest last:"
    for one in attempts:
        yield from _attempt_lines(one, with_traceback)


def _attempt_lines(one: JobAttempt, with_traceback: bool) -> Iterator[str]:
    took = "" if one.duration_ms is None else f" after {one.duration_ms / 1000:g} s"
    by = "" if one.worker is None else f" on {one_line(one.worker)}"
    yield f"#{one.number} {one.kind.value} {_iso(one.ended_at)}{took}{by}, then {one.status_after}"
    said = ": ".join(one_line(part) for part in (one.exception_type, (one.message or "").partition("\n")[0]) if part)
    if said:
        yield f"{MARGIN}{said}"
    if one.frame is not None:
        yield f"{MARGIN}at {one_line(one.frame)}"
    if one.traceback is None:
        return
    lines = one.traceback.splitlines()
    if with_traceback:
        yield from (f"{MARGIN}{one_line(line)}" for line in lines)
    elif len(lines) > 1:
        yield f"{MARGIN}{len(lines)} lines of traceback; --traceback shows them"


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat()
