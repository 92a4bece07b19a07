"""``python -m benchmarks report``: docs/benchmarks.md from benchmarks/results/*.json, and the table of figures in docs/scaling.md.

``--rivals`` takes the JSON of a comparison of job queues (``benchmarks.rivals``) of the same day. On docs/benchmarks.md the text between
the marks of the notes is kept, everything else is made anew; in docs/scaling.md only what stands between the marks of the figures is
replaced. A report of a ``--quick`` run is left out.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.processes import ROOT
from benchmarks.results import RESULTS, Measured, Report, read_report
from benchmarks.rivals import OURS, SCENARIOS, Comparison, Queue, Scenario, read_comparison

__all__ = ["FolderOption", "RivalsOption", "figure", "main", "read_reports", "render_page", "render_scaling"]

FolderOption = Annotated[Path, typer.Option(metavar="FOLDER", help="Where the reports are.")]
RivalsOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Figures of other queues: the JSON of a comparison.")
]

ORDER = (
    ("drain", "Drain"),
    ("producers", "Defers"),
    ("latency", "From defer to start"),
    ("scaling", "Several processes"),
    ("history", "Beside finished and scheduled jobs"),
    ("snapshot", "Under a snapshot that is held open"),
    ("mixed", "Failing and slow jobs, priorities, queues"),
    ("options", "What options cost"),
    ("server", "In the server"),
    ("memory", "Memory of a worker process"),
    ("imports", "Import"),
    ("model", "A worker far from its database"),
    ("limits", "Limits: PostgreSQL and Python without a queue"),
)
"""Sections of the page; reports that are not listed follow."""

IMAGES = (
    ("drain", "Jobs per second of a drain, beside other queues and the limits"),
    ("defers", "Defers per second, beside other queues"),
    ("latency", "How long it takes from defer to start"),
    ("snapshot", "Jobs per second while a snapshot is held open"),
    ("scaling", "Jobs per second of several workers"),
)
"""Of docs/images, made by ``plots``."""

OURS_HERE = {
    ("fast", "a", "rate"): "producers.single",
    ("fast", "b", "rate"): "producers.concurrent",
    ("fast", "c", "rate"): "producers.many",
    ("fast", "d", "rate"): "drain.fast",
    ("fast", "e", "rate"): "drain.fast_2",
    ("fast", "f", "p50"): "latency.idle.p50",
    ("fast", "f", "p99"): "latency.idle.p99",
    ("default", "d", "rate"): "drain.default",
    ("default", "f", "p50"): "latency.default.p50",
    ("default", "f", "p99"): "latency.default.p99",
}
"""Rows that stand for a scenario where the comparison was run without pqrun."""

SCALING_ROWS = (
    ("drain.fast", "one worker process, no-op jobs"),
    ("drain.fast_2", "two worker processes"),
    ("scaling.8", "eight worker processes"),
    ("scaling.crowd", "eight worker processes beside eight producers"),
    ("producers.single", "one producer, one defer after another"),
    ("producers.concurrent", "one producer, 20 coroutines"),
    ("producers.many", "one producer, `defer_many`"),
    ("server.wal", "WAL per 1,000 jobs, claimed and settled"),
    ("server.commits", "commits per 1,000 jobs"),
    ("server.dead", "dead tuples per 1,000 jobs"),
    ("latency.idle.p50", "defer to start on an idle worker, p50"),
    ("memory.above", "memory of a worker process above a bare one"),
)
"""What docs/scaling.md rests on; what was not measured is left out."""

NOTES = ("<!-- notes -->", "<!-- end of notes -->")

FIGURES = ("<!-- figures -->", "<!-- end of figures -->")

ABOUT = """\
What pqrun does on one machine, whose processors PostgreSQL, workers and producers share. All of it with the default settings, but for the
worker's `concurrency` and uvloop where a row says so; durable (`fsync` and `synchronous_commit` on), the payload validated on both sides,
the result stored, the end of each job fenced. Ratios are taken within one run, in turn, and figures are medians of the repetitions, with
their range in brackets. Another machine gives other figures: compare ratios."""

DIFFERENT = """\
Several of them delete a job that has ended, or store no result; pqrun keeps the row and its result."""

HOW = """\
In a checkout, `make test` makes the virtual environment. Then `.venv/bin/python -m benchmarks` lists the measurements, and
`.venv/bin/python -m benchmarks NAME` runs one: on a server of its own, in a private folder, or with `--dsn` on yours, in databases that
it makes and drops. `--quick` shows that it works, with small numbers. `plots` and `report` make this page."""

NO_NOTES = "Nothing was noted."


def read_reports(folder: Path) -> list[Report]:
    """All full reports of a folder, in the order of the page."""
    found = {report.name: report for path in sorted(folder.glob("*.json")) if not (report := read_report(path)).quick}
    names = [name for name, _ in ORDER if name in found]
    return [found[name] for name in (*names, *sorted(found.keys() - set(names)))]


def render_page(
    reports: Sequence[Report], rivals: Comparison | None, *, memory_gb: float, images: Sequence[str], notes: str
) -> str:
    """Return the text of docs/benchmarks.md."""
    parts = [*_opening(reports, memory_gb), *_pictures(images)]
    if rivals is not None:
        parts += _beside_rivals(rivals, _by_id(reports))
    titles = dict(ORDER)
    for report in reports:
        parts += [f"## {titles.get(report.name, report.name)}", _rows_table(report.rows)]
    parts += ["## What was not reached", _unreached(reports), f"{NOTES[0]}\n{notes or NO_NOTES}\n{NOTES[1]}"]
    return "\n\n".join([*parts, *_how_to_run(reports)]) + "\n"


def render_scaling(page: str, reports: Sequence[Report]) -> str:
    """Return docs/scaling.md with its figures; raises ValueError where it has no marks for them."""
    rows = _by_id(reports)
    lines = ["| what | figure |", "|---|---|"]
    lines += [f"| {what} | {figure(rows[name])} |" for name, what in SCALING_ROWS if name in rows]
    return _between(page, FIGURES, "\n".join(lines))


def figure(row: Measured) -> str:
    """The value as the page shows it: three digits, more for large ones."""
    amount = shown(row.value)
    if row.unit == "ratio":
        return f"{amount} of {row.against}" if row.against else amount
    return f"{amount} {row.unit}"


def shown(value: float) -> str:
    """Three digits that count."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _opening(reports: Sequence[Report], memory_gb: float) -> list[str]:
    kinds = {tuple(sorted(report.versions.items())) for report in reports}
    sets = [
        ", ".join(f"{n} {version}" for n, version in kind if n not in ("cores", "system")) for kind in sorted(kinds)
    ]
    cores = sorted({f"{report.versions.get('cores', '?')} cores" for report in reports})
    systems = sorted({_kind_of_system(report.versions.get("system", "")) for report in reports} - {""})
    machine = [*cores, f"{memory_gb:.0f} GB", *systems]
    reached = [row.reached for report in reports for row in report.rows if row.reached is not None]
    return [
        "# Benchmarks",
        ABOUT,
        f"Machine: {', '.join(machine)}. Versions: {'; '.join(sets)}.",
        f"Goals reached: {sum(reached)} of {len(reached)}.",
    ]


def _kind_of_system(system: str) -> str:
    """Without the number of its kernel, which says nothing here."""
    words = system.split()
    return f"{words[0]} {words[-1]}" if len(words) > 2 else system


def _pictures(images: Sequence[str]) -> list[str]:
    return [f"![{text}](images/{name}.svg)" for name, text in IMAGES if name in images]


def _rows_table(rows: Sequence[Measured]) -> str:
    lines = ["| what | figure | goal | reached |", "|---|---|---|---|"]
    for row in rows:
        if ".distribution." in row.id:
            continue  # for the plot
        goal = "" if row.reach is None else row.reach.text
        mark = {None: "", True: "yes", False: "**no**"}[row.reached]
        lines.append(f"| {row.what} | {figure(row)}{_range(row)} | {goal} | {mark} |")
    return "\n".join(lines)


def _range(row: Measured) -> str:
    if not 1 < len(row.samples) <= 9:  # none, or a series over time
        return ""
    return f" ({shown(min(row.samples))} to {shown(max(row.samples))})"


def _beside_rivals(rivals: Comparison, rows: Mapping[str, Measured]) -> list[str]:
    ours = _ours(rivals, rows)
    source = (
        "All in one run on one server."
        if rivals.has_ours
        else f"The row of {OURS} comes from the measurements below, the others from a run of their own on such a machine."
    )
    queues = [queue for queue in rivals.queues if queue.name != OURS]
    versions = {f"{name} {version}" for queue in queues for name, version in queue.versions.items()}
    settings = ", ".join(f"{name}={value}" for name, value in rivals.server.items() if name != "postgres")
    return [
        "## Beside other queues",
        f"Each with the best settings that were found for it ({rivals.date}). {source} {DIFFERENT}",
        _queues_table(ours, queues, SCENARIOS, "fast"),
        _ahead_table(ours, queues),
        "With the settings that each comes with:",
        _queues_table(ours, queues, [scenario for scenario in SCENARIOS if scenario.letter in "df"], "default"),
        f"PostgreSQL {rivals.server.get('postgres', '')}, {settings}. Versions: {', '.join(sorted(versions))}.",
    ]


def _ours(rivals: Comparison, rows: Mapping[str, Measured]) -> Queue:
    """From the comparison, or else from what was measured here."""
    figures = {place: rows[name].value for place, name in OURS_HERE.items() if name in rows}
    return next((queue for queue in rivals.queues if queue.name == OURS), Queue(OURS, {}, figures))


def _queues_table(ours: Queue, others: Sequence[Queue], columns: Sequence[Scenario], configuration: str) -> str:
    lines = [f"| queue | {' | '.join(scenario.title for scenario in columns)} |", "|---" * (len(columns) + 1) + "|"]
    for queue in (ours, *others):
        cells = [_cell(queue.figure(scenario, configuration)) for scenario in columns]
        name = f"**{OURS}**" if queue is ours else queue.name
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _ahead_table(ours: Queue, others: Sequence[Queue]) -> str:
    """Where pqrun is ahead of all others, and where not."""
    lines = [f"| | {OURS} | best of the others | ahead |", "|---|---|---|---|"]
    for scenario in SCENARIOS:
        value = ours.figure(scenario)
        found = [(figure, queue.name) for queue in others if (figure := queue.figure(scenario)) is not None]
        if value is None or not found:
            continue
        is_time = scenario.letter == "f"
        best, name = min(found) if is_time else max(found)
        mark = "yes" if (value < best if is_time else value > best) else "**no**"
        lines.append(f"| {scenario.title} | {shown(value)} | {shown(best)} ({name}) | {mark} |")
    return "\n".join(lines)


def _cell(value: float | None) -> str:
    return "-" if value is None else shown(value)


def _unreached(reports: Sequence[Report]) -> str:
    lines = [
        f"- {row.what}: {figure(row)}, the goal is {row.reach.text}"
        for report in reports
        for row in report.rows
        if row.reached is False and row.reach is not None
    ]
    return "\n".join(lines) or "All goals were reached."


def _how_to_run(reports: Sequence[Report]) -> list[str]:
    lines = ["| command | took |", "|---|---|"]
    # Not every measurement repeats itself.
    lines += [f"| `{report.command.replace(' --repeat 1', '')}` | {report.seconds:,.0f} s |" for report in reports]
    return [
        "## How to run it",
        HOW,
        "\n".join(lines),
    ]


def _by_id(reports: Sequence[Report]) -> dict[str, Measured]:
    return {row.id: row for report in reports for row in report.rows}


def _between(page: str, marks: tuple[str, str], text: str) -> str:
    """Put the text between the marks."""
    first, last = marks
    if page.count(first) != 1 or page.count(last) != 1:
        raise ValueError(f"expected {first} and {last} once each")
    return page[: page.index(first) + len(first)] + f"\n{text}\n" + page[page.index(last) :]


def _notes(page: Path) -> str:
    """What was written by hand on the last page."""
    text = page.read_text() if page.exists() else ""
    found = re.search(f"{re.escape(NOTES[0])}\n(.*?)\n{re.escape(NOTES[1])}", text, re.DOTALL)
    return "" if found is None or found[1] == NO_NOTES else found[1]


def memory_gb() -> float:
    """Of this machine, in GB."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9


def main(
    rivals: RivalsOption = None,
    results: FolderOption = RESULTS,
    docs: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the pages are.")] = ROOT / "docs",
) -> None:
    """Write docs/benchmarks.md, and the figures of docs/scaling.md."""
    reports = read_reports(results)
    page = docs / "benchmarks.md"
    images = [path.stem for path in sorted((docs / "images").glob("*.svg"))]
    comparison = None if rivals is None else read_comparison(rivals)
    text = render_page(reports, comparison, memory_gb=memory_gb(), images=images, notes=_notes(page))
    page.write_text(text)
    scaling = docs / "scaling.md"
    if scaling.exists():
        scaling.write_text(render_scaling(scaling.read_text(), reports))
    Console(highlight=False).print(f"{len(reports)} reports; written to {page}")
