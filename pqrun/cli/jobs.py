"""``pqrun jobs``: the jobs that a query means, newest first, as a table, as JSON lines, or counted."""

from typing import Annotated

import typer

from pqrun.cli.showing import DsnOption, SchemaOption, instant, json_text, on_store, print_table, table
from pqrun.job.listing import JobCount, JobLine, Listing
from pqrun.job.moments import brief
from pqrun.job.query import parse_query
from pqrun.store.listing import LIST_SECONDS, LISTED_MOST

__all__ = ["jobs"]

COUNTED_MOST = 1_000_000

HEADINGS = ("id", "task", "queue", "state", "attempt", "age", "ran", "key", "error")

Query = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="QUERY", show_default=False, help="Such as state:failed task:send_* since:1h; without one, all jobs."
    ),
]
ListLimit = Annotated[int, typer.Option("--limit", min=1, max=LISTED_MOST, metavar="N", help="Jobs on a page.")]
After = Annotated[
    int | None,
    typer.Option("--after", metavar="ID", help="Go on behind this job: what the page before says at its end."),
]
Count = Annotated[bool, typer.Option("--count", help=f"Only how many there are, counted up to {COUNTED_MOST:,}.")]
JsonLines = Annotated[bool, typer.Option("--json", help="One JSON object per line.")]


def jobs(
    query: Query = None,
    limit: ListLimit = 50,
    after: After = None,
    count: Count = False,
    as_json: JsonLines = False,
    dsn: DsnOption = None,
    schema: SchemaOption = "pqrun",
) -> None:
    """List jobs, the newest first."""
    wanted = parse_query(" ".join(query or ()))
    if count:
        counted = on_store(dsn, schema, lambda store: store.count_jobs(wanted, most=COUNTED_MOST))
        _tell_count(counted, as_json=as_json)
        return
    page = on_store(dsn, schema, lambda store: store.list_jobs(wanted, limit=limit, after=after))
    if as_json:
        for job in page.jobs:
            typer.echo(json_text(_facts(job), indent=0))
    elif page.jobs:
        print_table(table(HEADINGS, map(_cells, page.jobs)))
    else:
        typer.echo("no jobs")
    _tell_following(page)


def _tell_count(counted: JobCount, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json_text({"count": counted.count, "exact": counted.is_exact}, indent=0))
        return
    typer.echo(str(counted.count) if counted.is_exact else f"{counted.count} or more")


def _tell_following(page: Listing) -> None:
    """Say, beside the list, how it goes on."""
    if page.following is None:
        return
    if page.is_cut:
        typer.echo(
            f"pqrun: stopped after {LIST_SECONDS:g} s and {page.looked:,} jobs; name state: or finished_after:, or go on with "
            f"--after {page.following}",
            err=True,
        )
    else:
        typer.echo(f"pqrun: more with --after {page.following}", err=True)


def _cells(job: JobLine) -> tuple[object, ...]:
    ran = job.run_seconds
    return (
        job.id,
        job.job_type,
        job.queue,
        job.status.value.lower(),
        f"{job.attempts}/{job.max_attempts}",
        brief(job.age_seconds),
        None if ran is None else brief(ran),
        job.dedupe_key,
        job.error_summary,
    )


def _facts(job: JobLine) -> dict[str, object]:
    return {
        "id": job.id,
        "task": job.job_type,
        "queue": job.queue,
        "state": job.status.value.lower(),
        "priority": job.priority,
        "attempts": job.attempts,
        "max_attempts": job.max_attempts,
        "created_at": instant(job.created_at),
        "run_after": instant(job.run_after),
        "locked_at": instant(job.locked_at),
        "finished_at": instant(job.finished_at),
        "duration_ms": job.duration_ms,
        "worker": job.locked_by,
        "dedupe_key": job.dedupe_key,
        "error": job.error_summary,
    }
