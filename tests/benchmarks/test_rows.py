"""Each measurement, with small numbers: it runs by its command, and yields its rows; and what they are computed from."""

import asyncio
import sys
from array import array
from pathlib import Path

import pytest

from benchmarks.mixed import Delays, delays_of
from benchmarks.no_op import Records
from benchmarks.results import read_report
from benchmarks.server import Activity, Size, growth_of
from benchmarks.snapshot import window_rates

ROOT = Path(__file__).parents[2]

ROWS = {
    "drain": {"drain.lean", "drain.fast/lean", "drain.fast_2/fast", "drain.default/fast", "drain.default_2/fast_2"},
    "history": {"history.empty", "history.full", "history.full/empty"},
    "limits": {
        "limits.copy",
        "limits.insert_1",
        "limits.insert_20",
        "limits.lean",
        "limits.wake.p50",
        "limits.round_trip.p50",
    },
    "mixed": {"mixed.mixed/plain", "mixed.settled", "mixed.started", "mixed.stuck.settled", "mixed.stuck.started"},
    "options": {
        "options.timeouts/plain",
        "options.logging/plain",
        "options.subscriber/plain",
        "options.resources/plain",
    },
    "server": {
        "server.wal",
        "server.commits",
        "server.dead",
        "server.checkpoints",
        "server.enqueue.wal",
        "server.growth",
    },
    "snapshot": {
        "snapshot.plain",
        "snapshot.inserts",
        "snapshot.retries",
        "snapshot.batches",
        "snapshot.batches.batch",
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
async def test_a_quick_measurement_yields_its_rows(name: str, tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks", name, "--quick", "--out", str(out)),
        cwd=ROOT,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    report = read_report(out)
    assert report.quick
    assert report.command == f"python -m benchmarks {name} --repeat 3 --quick"
    assert ROWS[name] <= {row.id for row in report.rows}
    assert len({row.id for row in report.rows}) == len(report.rows)
    values = {row.id: row.value for row in report.rows}
    assert all(value > 0 for row_id, value in values.items() if row_id != "server.checkpoints")
    if name == "snapshot":
        assert values["snapshot.batches.batch"] < values["snapshot.plain.batch"]


def test_the_rate_of_each_window_is_of_the_time_between_two_marks() -> None:
    assert window_rates([10.0, 12.0, 13.0], 100) == [50.0, 100.0]


def test_growth_compares_the_largest_sizes_of_both_halves() -> None:
    sizes = [Size(0, 1, 1), Size(40, 6, 4), Size(50, 3, 2), Size(60, 2, 2), Size(100, 8, 4)]
    assert growth_of(sizes) == 1.2


def test_activity_is_told_apart_and_leaves_out_the_commits_of_looking() -> None:
    spent = Activity(500.0, 90.0, 30.0, 1.0).since(Activity(100.0, 10.0, 10.0, 1.0), own_commits=30)
    assert spent == Activity(400.0, 50.0, 20.0, 0.0)
    assert spent.per_thousand(2_000) == Activity(200.0, 25.0, 10.0, 0.0)


def test_delays_join_the_notes_of_a_worker_with_its_rows() -> None:
    records = Records(array("q", [7, 8]), array("d", [10.0, 20.0]), array("d", [11.0, 21.0]))
    assert delays_of(records, [(8, 18.0, 21.5), (7, None, 13.0)]) == Delays([0.5, 2.0], [2.0])
