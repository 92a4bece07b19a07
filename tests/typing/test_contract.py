"""What users write is checked by mypy --strict and by pyright, without any plugin, as the contract says."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeAlias

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).resolve().parent
FILES = ("contract.py", "cases.py", "connections.py", "testing.py")
Reports: TypeAlias = Callable[[], dict[str, dict[int, str]]]
ORIGINAL = ROOT.parent / "shared" / "typing_contract.py"


def refused_lines(name: str) -> set[int]:
    """The lines that a checker must report: those that end in ``# E``."""
    lines = (FOLDER / name).read_text().splitlines()
    return {number for number, line in enumerate(lines, start=1) if re.search(r"\S.*  # E$", line)}


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *arguments, *(str(FOLDER / name) for name in FILES)],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": "stubs"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


@cache
def mypy_reports() -> dict[str, dict[int, str]]:
    """Per file, each line that mypy reports with what it says; the project's own settings do not count, as with users."""
    reports: dict[str, dict[int, str]] = {name: {} for name in FILES}
    options = ("--config-file=", "--explicit-package-bases", f"--cache-dir={ROOT / '.mypy_cache' / 'typing'}")
    for line in run("mypy", "--strict", *options).splitlines():
        found = re.match(r"(?P<path>[^:]+):(?P<line>\d+): error: (?P<text>.*)", line)
        if found and Path(found["path"]).name in reports and Path(found["path"]).parent.name == FOLDER.name:
            reports[Path(found["path"]).name][int(found["line"])] = found["text"]
    return reports


@cache
def pyright_reports() -> dict[str, dict[int, str]]:
    """The same for pyright."""
    reports: dict[str, dict[int, str]] = {name: {} for name in FILES}
    for report in json.loads(run("pyright", "--outputjson", "--pythonpath", sys.executable))["generalDiagnostics"]:
        if report["severity"] != "information":
            reports[Path(report["file"]).name][report["range"]["start"]["line"] + 1] = report["message"]
    return reports


each_checker = pytest.mark.parametrize("reports", [mypy_reports, pyright_reports], ids=["mypy", "pyright"])
each_file = pytest.mark.parametrize("name", FILES)


@each_checker
@each_file
def test_each_checker_reports_what_must_not_type_check(reports: Reports, name: str) -> None:
    accepted = refused_lines(name) - reports()[name].keys()
    assert not accepted, f"accepted, though wrong: lines {sorted(accepted)} of {name}"


@each_checker
@each_file
def test_each_checker_accepts_everything_else(reports: Reports, name: str) -> None:
    refused = {line: text for line, text in reports()[name].items() if line not in refused_lines(name)}
    assert not refused, f"refused, though right, in {name}: {refused}"


def test_the_files_say_what_must_be_refused() -> None:
    assert len(refused_lines("contract.py")) == 23
    assert len(refused_lines("cases.py")) > 50
    assert len(refused_lines("connections.py")) == 16
    assert len(refused_lines("testing.py")) == 15


def test_the_contract_is_the_published_one() -> None:
    if not ORIGINAL.exists():
        pytest.skip("the published contract is not beside this repository")
    assert (FOLDER / "contract.py").read_text() == ORIGINAL.read_text()
