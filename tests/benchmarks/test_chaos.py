"""A short run of chaos, all of it: processes, faults, draining, the proof, the report."""

import asyncio
import io
import sys
from pathlib import Path

import msgspec
from rich.console import Console

from benchmarks.chaos.checker import Violation
from benchmarks.chaos.command import Outcome, tell
from benchmarks.chaos.facts import gather
from benchmarks.chaos.log import Deferred, Deferring, Entry
from benchmarks.chaos.report import LegReport, summarise

ROOT = Path(__file__).parents[2]

PROGRAM = (sys.executable, "-m", "benchmarks")


async def run(*arguments: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *PROGRAM, *arguments, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    return await process.wait(), output.decode()


async def test_some_seconds_of_chaos_keep_every_promise(tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    arguments = ("--minutes", "0.2", "--only", "kill,restart,reset,release", "--seed", "test", "--out", str(out))
    code, output = await run("chaos", *arguments, "--logs", str(tmp_path / "logs"))
    assert code == 0, output
    assert "every promise was kept" in output
    (leg,) = msgspec.json.decode(out.read_bytes(), type=list[LegReport])
    assert leg.violations == []
    assert leg.faults
    assert leg.acknowledged
    assert 0 < leg.told["Done"] <= leg.outcomes["DONE"]  # one that is killed has written what it tells nobody


async def test_the_measurements_are_listed_and_a_fault_that_does_not_exist_is_refused() -> None:
    code, output = await run("--help")
    assert code == 0
    assert "chaos" in output
    assert "recovery" in output
    code, output = await run("chaos", "--only", "earthquake")
    assert code == 2
    assert "earthquake" in output


def test_a_violation_is_told_with_the_story_of_its_job() -> None:
    entries = [
        Entry(1.0, "producer", Deferring("t1", "quick", 3)),
        Entry(2.0, "producer", Deferred("t1", 7, created=True)),
    ]
    facts = gather(entries, [], [])
    violations = [Violation("lost", "an acknowledged job has no row", 7, "t1")]
    report = summarise("single server", "s", entries, facts, violations, drain_seconds=0.0)
    text = io.StringIO()
    assert not tell([Outcome(entries, facts, violations, report)], Console(file=text, width=200))
    assert "1 VIOLATIONS" in text.getvalue()
    assert "lost: an acknowledged job has no row (job 7, t1)" in text.getvalue()
    assert "2.000 producer Deferred(token='t1', job_id=7, created=True)" in text.getvalue()
    assert tell([Outcome(entries, facts, [], report)], Console(file=text))
