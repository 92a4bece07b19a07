"""The log of a process survives it, line by line."""

import signal
import subprocess
import sys
from pathlib import Path

from benchmarks.chaos.log import Deferred, Log, Met, read_logs

ROOT = Path(__file__).parents[2]

WRITE_AND_DIE = """
import os, pathlib, signal, sys
from benchmarks.chaos.log import Log, Met
log = Log(pathlib.Path(sys.argv[1]), "doomed")
log.write(Met("written"))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_was_written_is_there_after_a_kill(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", WRITE_AND_DIE, str(tmp_path)], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    assert [(entry.source, entry.event) for entry in read_logs(tmp_path)] == [("doomed", Met("written"))]


def test_lines_of_all_processes_come_in_the_order_of_their_times(tmp_path: Path) -> None:
    with Log(tmp_path, "b") as first, Log(tmp_path, "a") as second:
        first.write(Met("1"))
        second.write(Deferred("t", 1, created=True))
        first.write(Met("2"))
    assert [entry.event for entry in read_logs(tmp_path)] == [Met("1"), Deferred("t", 1, created=True), Met("2")]


def test_a_last_line_without_its_end_is_left_out(tmp_path: Path) -> None:
    with Log(tmp_path, "p") as log:
        log.write(Met("whole"))
    with (tmp_path / "p.log").open("ab") as file:
        file.write(b'{"at":1.0,"source":"p","ev')
    assert [entry.event for entry in read_logs(tmp_path)] == [Met("whole")]
