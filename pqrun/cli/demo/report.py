"""What the demo found, beside what a plain loop over the same files finds."""

from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pqrun.cli.demo.tasks import Totals
from pqrun.job.record import Job
from pqrun.job.state import Status

__all__ = ["Findings", "report"]

ERROR_LINES = 6
"""Of the failed job's traceback, its end."""

IMPORTS_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Everything that the demo saw."""

    jobs: Totals
    """The stored result of the job that added up."""
    loop: Totals
    jobs_seconds: float
    loop_seconds: float
    broken: Job
    """The job of the broken file, at its end."""
    first_id: int
    again_id: int
    """What deferring the first file a second time gave."""
    again_created: bool


def report(findings: Findings, console: Console) -> bool:
    """Print it; return whether everything is as it must be."""
    checks = _checks(findings)
    good, bad = ("✓", "✗") if console.encoding.startswith("utf") else ("ok", "WRONG")
    table = Table("", "jobs", "plain loop", "")
    for name, got, expected in checks:
        table.add_row(name, escape(got), escape(expected), good if got == expected else bad)
    console.print(table)
    most = sorted(findings.jobs.imports.items(), key=lambda item: (-item[1], item[0]))[:IMPORTS_SHOWN]
    console.print("Most imported: " + ", ".join(f"{name} ({count})" for name, count in most))
    count = findings.jobs.files + findings.jobs.broken
    console.print(
        f"{count} jobs in {findings.jobs_seconds:.1f} s: {count / max(findings.jobs_seconds, 0.001):.0f} jobs/s; "
        f"the plain loop took {findings.loop_seconds:.1f} s"
    )
    _print_failure(findings.broken, console)
    return all(got == expected for _, got, expected in checks)


def _checks(findings: Findings) -> list[tuple[str, str, str]]:
    jobs, loop, broken = findings.jobs, findings.loop, findings.broken
    return [
        ("files read", f"{jobs.files:,}", f"{loop.files:,}"),
        ("files that are no Python", f"{jobs.broken:,}", f"{loop.broken:,}"),
        ("lines", f"{jobs.lines:,}", f"{loop.lines:,}"),
        ("functions", f"{jobs.functions:,}", f"{loop.functions:,}"),
        ("classes", f"{jobs.classes:,}", f"{loop.classes:,}"),
        ("modules imported", f"{len(jobs.imports):,}", f"{len(loop.imports):,}"),
        ("imports of them", f"{sum(jobs.imports.values()):,}", f"{sum(loop.imports.values()):,}"),
        ("the broken file's job", f"{broken.status.value} after {broken.attempts}", f"{Status.FAILED.value} after 3"),
        ("first file, deferred twice", f"job {findings.again_id}", f"job {findings.first_id}"),
        ("... and created again", f"{findings.again_created}", "False"),
    ]


def _print_failure(job: Job, console: Console) -> None:
    console.print(f"Job {job.id} ({job.job_type}) is {job.status.value} after {job.attempts} attempts:")
    for line in (job.last_error or "no error was stored").splitlines()[-ERROR_LINES:]:
        console.print(f"  | {line}", markup=False, soft_wrap=True)
