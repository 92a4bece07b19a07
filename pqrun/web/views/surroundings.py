"""What stands around a job on its page: its schedule, its worker, jobs with the same key, headers, and what to type elsewhere."""

import shlex
from collections.abc import Mapping
from typing import Final, NamedTuple

from pqrun.job.filter import JobFilter
from pqrun.job.query import query_text
from pqrun.job.record import Job
from pqrun.job.state import Status
from pqrun.store.link import Session
from pqrun.store.listing import JobPage, browse
from pqrun.store.pages import Surroundings, see_surroundings
from pqrun.store.statements import quote_identifier
from pqrun.web.shown import Shown
from pqrun.web.views.jobs import listed
from pqrun.web.visit import Visit

__all__ = ["Around", "Siblings", "command_line", "commands", "look_around"]

SIBLINGS_SHOWN: Final = 20

SILENT_SECONDS: Final = 10.0
"""A worker beats once a second; after so long without it something is wrong."""


class Siblings(NamedTuple):
    """The newest other jobs of the task with the same dedupe key, and the query that finds them all."""

    page: JobPage
    query: str


class Around(NamedTuple):
    """See the module's docstring."""

    facts: Surroundings
    siblings: Siblings | None
    """None: the job has no key, or the visitor does not see it."""
    headers: Mapping[str, str]
    """Empty too for who does not see payloads: they may say as much."""
    trace_id: str | None
    is_silent: bool
    """Whether it is RUNNING and its worker gives no sign of life."""


async def look_around(visit: Visit, session: Session, job: Job) -> Around:
    """Read what belongs to a job: three statements at most."""
    facts = await see_surroundings(session, job.id, job.job_type if job.scheduled_for is not None else None)
    headers = dict(job.headers) if visit.sees_payloads else {}
    return Around(
        facts=facts,
        siblings=await _siblings(visit, session, job, facts),
        headers=headers,
        trace_id=trace_id(headers),
        is_silent=job.status is Status.RUNNING
        and (facts.is_dead or facts.beat_seconds is None or facts.beat_seconds > SILENT_SECONDS),
    )


async def _siblings(visit: Visit, session: Session, job: Job, facts: Surroundings) -> Siblings | None:
    """Look for them in the newest jobs alone: there is an index for the keys of active jobs, and none for those of the history."""
    if job.dedupe_key is None or not visit.sees_payloads:
        return None
    wanted = JobFilter(job_types=[job.job_type], dedupe_keys=[job.dedupe_key])
    page = listed(visit, await browse(session, wanted, shown=SIBLINGS_SHOWN + 1, now=facts.now))
    others = [line for line in page.jobs if line.id != job.id][:SIBLINGS_SHOWN]
    return Siblings(page._replace(jobs=others), query_text(wanted))


def trace_id(headers: Mapping[str, str]) -> str | None:
    """Return the id of the trace that a W3C ``traceparent`` names, None where there is none, or it is no such thing."""
    parts = headers.get("traceparent", "").split("-")
    is_id = len(parts) >= 4 and len(parts[1]) == 32 and not set(parts[1]) - set("0123456789abcdef")
    return parts[1] if is_id else None


def command_line(job: Job) -> str:
    """Return the command that does the most likely next thing to this job."""
    if job.status is Status.DONE:
        return f"pqrun retry {job.id} --force"
    return f"pqrun {'retry' if job.status.is_finished else 'cancel'} {job.id}"


def commands(visit: Visit, job: Job, payload: Shown, schema: str) -> list[tuple[str, str]]:
    """Return what to type to do, see and repeat it elsewhere, each with its heading; a payload that may not be shown is left out."""
    url = visit.request.url
    twin = f"{url.scheme}://{url.netloc}{visit.url(f'/api/jobs/{job.id}.json')}"
    name = quote_identifier(schema) if schema != "pqrun" else schema
    found = [
        ("Command line", f"{command_line(job)}\npqrun show {job.id}"),
        (
            "curl: this page as JSON, with the name and password that these pages ask for",
            f"curl -fsS {shlex.quote(twin)}",
        ),
        ("SQL: the row", f"select * from {name}.jobs where id = {job.id};"),  # noqa: S608  # text to read
    ]
    if payload.text is not None and not payload.is_masked and not payload.left_out:
        arguments = [_literal(job.job_type), f"{_literal(job.payload_json)}::jsonb", f"queue => {_literal(job.queue)}"]
        arguments += [f"priority => {job.priority}"] if job.priority else []
        arguments += [f"max_attempts => {job.max_attempts}"]
        arguments += [f"timeout_seconds => {job.timeout_seconds!r}"] if job.timeout_seconds else []
        arguments += [f"payload_version => {job.payload_version}"] if job.payload_version != 1 else []
        call = ",\n  ".join(arguments)
        text = f"select * from {name}.enqueue(\n  {call});"  # noqa: S608  # text to read; each value is quoted
        found.append(("SQL: a new job like it, without its dedupe key", text))
    return found


def _literal(text: str) -> str:
    """Return a text as a literal of standard SQL, in which only quotes are special."""
    return "'" + text.replace("'", "''") + "'"
