"""Measurements of what producers and workers see: each yields its rows on small numbers, and what they are made of is right."""

import sys
from array import array
from collections.abc import Awaitable, Callable
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest
from rich.console import Console

from benchmarks import imports, latency, memory, model_check, plots, producers, report, scaling
from benchmarks.charts import Bar, Curve, bars, lines
from benchmarks.ground import Ground, ground
from benchmarks.model import Costs, Line, Network, Sizes, predict
from benchmarks.no_op import Records
from benchmarks.results import Measured, Report, at_least, at_most, write_report
from benchmarks.rivals import read_comparison
from benchmarks.waits import Waits
from tests.support.database import Databases

POINTS = ("p50", "p95", "p99")

SERIES = [f"scaling.{name}" for name in ("1", "2", "4", "8", "crowd")]

ROWS: dict[str, tuple[Callable[[Ground], Awaitable[list[Measured]]], set[str]]] = {
    "imports": (
        imports.measure,
        {"imports.ours", "imports.base", "imports.ratio", "imports.ratio_used", "imports.optional"},
    ),
    "latency": (
        latency.measure,
        {
            *(f"latency.{kind}.{point}" for kind in ("idle", "default", "at_300", "at_full") for point in POINTS),
            *(
                "latency.wake",
                "latency.wake.tail",
                "latency.idle.to_wake",
                "latency.idle.tail",
                "latency.default.ratio",
                "latency.at_300.ratio",
            ),
            *(f"latency.distribution.{number}" for number in range(3)),
        },
    ),
    "memory": (memory.measure, {"memory.bare", "memory.peak", "memory.above", "memory.idle", "memory.growth"}),
    "model": (
        model_check.measure,
        {
            *("model.claim", "model.settle", "model.client"),
            *(
                f"model.{delay}.{part}"
                for delay in (0, 1, 5)
                for part in ("trip", "cores", "measured", "predicted", "error")
            ),
        },
    ),
    "producers": (
        producers.measure,
        {
            *(
                f"producers.{name}{part}"
                for name in ("single", "concurrent", "many")
                for part in ("", ".limit", ".ratio")
            ),
            *("producers.keyed", "producers.keyed.ratio", "producers.notifying", "producers.notify_waits"),
            *("producers.processes", "producers.processes.ratio", "producers.processes.notify_waits"),
        },
    ),
    "scaling": (
        scaling.measure,
        {
            *(f"{name}{part}" for name in SERIES for part in ("", ".repeated", ".missing", ".locks", ".fairness")),
            "scaling.crowd.deferred",
        }
        - {"scaling.1.fairness"},
    ),
}


@pytest.mark.skipif(sys.platform != "linux", reason="memory and processor time of other processes are read from /proc")
@pytest.mark.slow  # a minute together
@pytest.mark.parametrize("name", ROWS)
async def test_a_quick_run_yields_all_rows(name: str, databases: Databases) -> None:
    measure, expected = ROWS[name]
    console = Console(file=StringIO())
    async with ground(databases.admin_dsn, repeat=1, quick=True, console=console) as stood:
        rows = await measure(stood)
    found = {row.id: row for row in rows}
    assert len(found) == len(rows)
    assert found.keys() == expected
    for nothing in ("repeated", "missing", "optional"):
        assert [row for row in rows if row.id.endswith(nothing) and row.value] == []
    assert [row.id for row in rows if row.unit in ("jobs/s", "rows/s", "ms") and row.value <= 0] == []


# The model.

COSTS = Costs(claim=Line(0.001, 10e-6), settle=Line(0.001, 10e-6), client_seconds=20e-6)


def rate(trip: float, *, costs: Costs = COSTS, sizes: Sizes | None = None, cores: int = 4) -> float:
    return predict(50_000, costs, Network(trip), sizes or Sizes(), cores=cores)


def test_near_its_database_a_worker_is_as_fast_as_its_own_process() -> None:
    assert rate(0.0) == pytest.approx(1 / 20e-6, rel=0.05)


def test_far_from_its_database_a_worker_is_as_fast_as_its_claims() -> None:
    rows = Sizes().claim_rows
    assert rate(0.1) == pytest.approx(rows / (0.1 + 0.001 + rows * 10e-6), rel=0.05)


def test_smaller_claims_cost_more_trips() -> None:
    assert rate(0.1, sizes=Sizes(claim_rows=50)) < rate(0.1) / 5


def test_a_row_that_takes_long_on_its_way_delays_its_claim() -> None:
    assert predict(50_000, COSTS, Network(0.0, claim_row=100e-6), Sizes(), cores=4) < 10_000


def test_one_processor_for_all_is_shared() -> None:
    costs = Costs(claim=Line(0.0, 10e-6), settle=Line(0.0, 10e-6), client_seconds=20e-6)
    assert rate(0.0, costs=costs, cores=1) == pytest.approx(1 / (20e-6 + 2 * 10e-6), rel=0.01)


def test_the_line_through_timed_statements_has_their_fixed_part_and_that_of_a_row() -> None:
    line = model_check.fit([(rows, 0.002 + rows * 15e-6) for rows in (50, 200, 500)])
    assert line.fixed == pytest.approx(0.002)
    assert line.per_row == pytest.approx(15e-6)


# What workers noted, and what backends waited for.


def records(*job_ids: int, since: float = 0.0) -> Records:
    times = array("d", [since + number for number in range(len(job_ids))])
    return Records(array("q", job_ids), times, times)


def test_a_job_that_two_workers_have_started_and_one_that_nobody_has_are_found() -> None:
    work = scaling.summarise([records(1, 2, 3, 4), records(4, 5, since=2.0)], 7)
    assert (work.repeated, work.missing, work.fairness) == (1, 2, 0.5)
    assert work.rate == pytest.approx(6 / 3)


def test_a_worker_that_started_nothing_makes_it_unfair_and_breaks_nothing() -> None:
    assert scaling.summarise([records(1, 2), records()], 2).fairness == 0.0


def test_waits_for_notifications_are_those_for_their_queue_and_for_their_lock() -> None:
    waits = Waits()
    locks = {("Lock", "object"): 2, ("LWLock", "NotifyQueue"): 1, ("Lock", "tuple"): 2}
    waits.counts.update({("", ""): 5, **locks, ("Client", "ClientRead"): 90})
    assert (waits.on_notify, waits.of("Lock"), waits.looked) == (3, 4, 10)
    assert waits.share(waits.on_notify) == pytest.approx(30)
    assert waits.most(2) == "none 50 %, Lock:tuple 20 %"


# Charts, plots and the page.


def test_a_chart_is_the_same_each_time_and_well_formed() -> None:
    def draw() -> list[str]:
        return [
            bars("a < b", "jobs & more", [Bar("one", 1.0, "x"), Bar("two", 1_000.0, "y")]),
            lines("t", "x", "y", [Curve("up", [(1.0, 10.0), (2.0, 20.0)]), Curve("down", [(1.0, 3.5), (2.0, 0.25)])]),
        ]

    assert draw() == draw()
    for svg in draw():
        ET.fromstring(svg)


def test_the_longest_bar_is_the_first() -> None:
    svg = bars("t", "", [Bar("small", 1.0, "x"), Bar("large", 5.0, "x")])
    assert svg.index("large") < svg.index("small")


def test_all_points_of_a_line_lie_within_its_axes() -> None:
    svg = lines("t", "x", "y", [Curve("c", [(0.0, 0.0), (7.3, 123.4)])])
    (polyline,) = ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}polyline")
    points = [tuple(map(float, point.split(","))) for point in polyline.attrib["points"].split()]
    assert all(76 <= x <= 736 and 88 <= y <= 348 for x, y in points)


@pytest.mark.parametrize("draw", [lambda: bars("t", "", []), lambda: lines("t", "", "", [Curve("c", [])])])
def test_nothing_to_show_is_an_error(draw: Callable[[], str]) -> None:
    with pytest.raises(ValueError, match=r"^t: no "):
        draw()


VERSIONS = {"python": "3.13.0", "postgres": "18.6", "cores": "2"}

SERIES_SAMPLES = [float(1_000 + number) for number in range(20)]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Reports of three measurements, one of them quick."""
    folder = tmp_path / "results"
    made = {
        "drain": [
            Measured("drain.fast", "one worker", 21_000, "jobs/s", samples=[20_000, 21_000, 22_000]),
            Measured("drain.fast.ratio", "one worker", 0.5, "ratio", at_least(0.7, "at least 0.7"), "the lean worker"),
        ],
        "latency": [
            Measured("latency.idle.p50", "idle, p50", 2.345, "ms", at_most(3.0, "at most 3 ms")),
            Measured("latency.distribution.0", "idle", 99, "starts", samples=[n / 10 for n in range(1, 100)]),
        ],
        "snapshot": [Measured("snapshot.open.rates", "snapshot open", 1_000, "jobs/s", samples=SERIES_SAMPLES)],
    }
    for name, rows in made.items():
        write_report(Report(name, f"python -m benchmarks {name}", 12.3, VERSIONS, rows), folder / f"{name}.json")
    quick = Report(
        "memory",
        "python -m benchmarks memory --quick",
        1.0,
        VERSIONS,
        [Measured("memory.above", "m", 7, "MB")],
        quick=True,
    )
    write_report(quick, folder / "memory.json")
    return folder


@pytest.fixture
def rivals(tmp_path: Path) -> Path:
    """A comparison of another queue and an earlier release of ours."""

    def peer(name: str, drain: float) -> dict[str, object]:
        outcome = {"d": {"median": {"rate": drain}}, "f": {"median": {"p50": 3.4, "p99": 7.3}}, "g": {"na": "deleted"}}
        return {
            "info": {"name": name, "versions": {name: "1.2"}},
            "res": {"fast": outcome, "default": {"d": {"median": {"rate": 99.0}}}},
        }

    file = tmp_path / "rivals.json"
    content = {
        "env": {"date": "2026-11-30", "server": {"postgres": "18.6", "fsync": "on"}},
        "limits": {"L7_worker_proto_update": 43_000.0, "L8_notify_wake": {"p50_ms": 1.4}},
        "peers": {
            "slow": peer("slow-queue", 500.0),
            "old": peer("pqrun002", 100.0),
            "other": peer("other-queue", 20_000.0),
        },
    }
    file.write_bytes(msgspec.json.encode(content))
    return file


def written(results: Path, rivals: Path | None, docs: Path) -> str:
    docs.mkdir(exist_ok=True)
    report.main(rivals=rivals, results=results, docs=docs)
    return (docs / "benchmarks.md").read_text()


def test_the_page_shows_each_row_with_its_goal_and_whether_it_was_reached(results: Path, tmp_path: Path) -> None:
    page = written(results, None, tmp_path / "docs")
    assert "| one worker | 21,000 jobs/s (20,000 to 22,000) |  |  |" in page
    assert "| one worker | 0.5 of the lean worker | at least 0.7 | **no** |" in page
    assert "| idle, p50 | 2.35 ms | at most 3 ms | yes |" in page
    assert "| snapshot open | 1,000 jobs/s |  |  |" in page  # a series is no range
    assert "Goals reached: 1 of 2." in page
    assert "- one worker: 0.5 of the lean worker, the goal is at least 0.7" in page
    assert "2 cores" in page
    assert "postgres 18.6" in page


def test_quick_runs_and_series_are_not_on_the_page(results: Path, tmp_path: Path) -> None:
    page = written(results, None, tmp_path / "docs")
    assert "Memory" not in page
    assert "starts" not in page


def test_other_queues_stand_beside_ours_without_an_earlier_release(results: Path, rivals: Path, tmp_path: Path) -> None:
    page = written(results, rivals, tmp_path / "docs")
    assert "| **pqrun** | - | - | - | 21,000 | - | 2.35 | - |" in page
    assert "| other-queue | - | - | - | 20,000 | - | 3.4 | 7.3 |" in page
    assert page.index("| other-queue |") < page.index("| slow-queue |")
    assert "pqrun002" not in page
    assert "other-queue 1.2" in page
    assert "| drain, 1 process, jobs/s | 21,000 | 20,000 (other-queue) | yes |" in page
    assert "| defer to start, p50, ms | 2.35 | 3.4 (" in page


def test_where_pqrun_was_in_the_comparison_its_row_comes_from_there(
    results: Path, rivals: Path, tmp_path: Path
) -> None:
    rivals.write_bytes(rivals.read_bytes().replace(b"slow-queue", b"pqrun"))
    page = written(results, rivals, tmp_path / "docs")
    assert "| **pqrun** | - | - | - | 500 | - | 3.4 | 7.3 |" in page
    assert "| drain, 1 process, jobs/s | 500 | 20,000 (other-queue) | **no** |" in page
    assert "All in one run on one server." in page


def test_notes_on_the_page_are_kept(results: Path, tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    page = written(results, None, docs)
    (docs / "benchmarks.md").write_text(page.replace(report.NO_NOTES, "The disk is slow.\n\nVery."))
    assert "<!-- notes -->\nThe disk is slow.\n\nVery.\n<!-- end of notes -->" in written(results, None, docs)


def test_the_figures_of_the_page_on_scaling_are_filled_in_and_the_rest_is_kept(results: Path, tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    page = docs / "scaling.md"
    page.write_text("before\n<!-- figures -->\nold\n<!-- end of figures -->\nafter\n")
    for _ in range(2):
        written(results, None, docs)
        text = page.read_text()
        assert text.startswith("before\n<!-- figures -->\n| what |")
        assert text.endswith("|\n<!-- end of figures -->\nafter\n")
        assert "| one worker process, no-op jobs | 21,000 jobs/s |" in text
        assert "old" not in text


def test_a_page_on_scaling_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="once each"):
        report.render_scaling("nothing", [])


def test_images_that_are_there_are_on_the_page(results: Path, tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    plots.main(results=results, out=docs / "images")
    page = written(results, None, docs)
    assert sorted(path.stem for path in (docs / "images").iterdir()) == ["drain", "latency", "snapshot"]
    shown = [name for name in ("drain", "defers", "latency", "snapshot") if f"(images/{name}.svg)" in page]
    assert shown == ["drain", "latency", "snapshot"]


def test_the_same_results_give_the_same_plots_with_other_queues_and_limits(results: Path, rivals: Path) -> None:
    first, second = [plots.draw(report.read_reports(results), read_comparison(rivals)) for _ in range(2)]
    assert first == second
    assert all(text in first["drain"] for text in (">pqrun<", ">other-queue<", ">43,000<", "leanest worker"))
    for svg in first.values():
        ET.fromstring(svg)
