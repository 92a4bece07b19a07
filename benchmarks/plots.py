"""``python -m benchmarks plots``: the results as SVG, in docs/images. The same results give the same bytes.

Drawn by ``benchmarks.charts``. A plot whose figures were not measured is left out, and one of an earlier run stays as it is.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.charts import Bar, Curve, bars, lines
from benchmarks.processes import ROOT
from benchmarks.report import OURS_HERE, FolderOption, RivalsOption, read_reports
from benchmarks.results import RESULTS, Measured, Report
from benchmarks.rivals import OURS, SCENARIOS, Comparison, read_comparison
from benchmarks.scaling import WORKERS

__all__ = ["draw", "main"]

LIMITS = {
    "L7_worker_proto_update": "leanest worker that keeps its rows",
    "L7_worker_proto_delete": "leanest worker that deletes",
}
"""Of the comparison: what its drains are measured against."""


def draw(reports: Sequence[Report], rivals: Comparison | None) -> dict[str, str]:
    """Return SVG by name, of all that was measured."""
    rows = {row.id: row for report in reports for row in report.rows}
    drawn = {
        "drain": _draw_drain(rows, rivals),
        "defers": _draw_defers(rows, rivals),
        "latency": _draw_latency(rows),
        "snapshot": _draw_snapshot(next((report.rows for report in reports if report.name == "snapshot"), [])),
        "scaling": _draw_scaling(rows),
    }
    return {name: svg for name, svg in drawn.items() if svg is not None}


def _draw_drain(rows: dict[str, Measured], rivals: Comparison | None) -> str | None:
    shown = _queues("d", rows, rivals)
    if rivals is not None:
        shown += [Bar(label, rivals.limits[name], "limit") for name, label in LIMITS.items() if name in rivals.limits]
    elif "limits.lean" in rows:
        shown.append(Bar("leanest worker that keeps its rows", rows["limits.lean"].value, "limit"))
    return bars("Draining no-op jobs, one worker process", "jobs per second", shown) if shown else None


def _draw_defers(rows: dict[str, Measured], rivals: Comparison | None) -> str | None:
    shown = _queues("b", rows, rivals)
    return bars("Single defers by 20 coroutines of one process", "jobs per second", shown) if shown else None


def _queues(letter: str, rows: dict[str, Measured], rivals: Comparison | None) -> list[Bar]:
    """Ours first, from the comparison if it is there."""
    scenario = next(scenario for scenario in SCENARIOS if scenario.letter == letter)
    queues = [] if rivals is None else rivals.queues
    found = {queue.name: value for queue in queues if (value := queue.figure(scenario)) is not None}
    here = rows.get(OURS_HERE["fast", scenario.letter, scenario.key])
    if OURS not in found and here is not None:
        found[OURS] = here.value
    ordered = sorted(found.items(), key=lambda item: item[0] != OURS)
    return [Bar(name, value, OURS if name == OURS else "other queues") for name, value in ordered]


def _draw_latency(rows: dict[str, Measured]) -> str | None:
    """The share of jobs that have started within so many milliseconds; the slowest of a hundred would squeeze all others."""
    curves = [
        Curve(row.what, [(took, float(percent)) for percent, took in enumerate(row.samples[:98], 1)])
        for name, row in sorted(rows.items())
        if name.startswith("latency.distribution.")
    ]
    return (
        lines("From defer to the start of the handler", "milliseconds", "% of jobs started", curves) if curves else None
    )


SNAPSHOT_NAMES = {
    "plain": "the snapshot alone",
    "inserts": "inserts beside",
    "retries": "retries",
    "batches": "small batches",
}
"""Variants of the snapshot measurement, short enough for a legend."""


def _draw_snapshot(rows: Sequence[Measured]) -> str | None:
    curves = [
        Curve(
            SNAPSHOT_NAMES.get(row.id.split(".")[1], row.what),
            [(float(number), value) for number, value in enumerate(row.samples, 1)],
        )
        for row in rows
        if row.id.endswith(".rates")
    ]
    title = "Draining while a REPEATABLE READ snapshot is held open"
    return lines(title, "piece of the drain", "jobs per second", curves) if curves else None


def _draw_scaling(rows: dict[str, Measured]) -> str | None:
    points = [(float(count), rows[f"scaling.{count}"].value) for count in WORKERS if f"scaling.{count}" in rows]
    if not points:
        return None
    return lines("Worker processes on one server", "worker processes", "jobs per second", [Curve(OURS, points)])


def main(
    rivals: RivalsOption = None,
    results: FolderOption = RESULTS,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the images go.")] = ROOT / "docs" / "images",
) -> None:
    """Draw the results as SVG."""
    drawn = draw(read_reports(results), None if rivals is None else read_comparison(rivals))
    out.mkdir(parents=True, exist_ok=True)
    for name, svg in drawn.items():
        (out / f"{name}.svg").write_text(svg)
    Console(highlight=False).print(f"written to {out}: {', '.join(drawn) or 'nothing'}")
