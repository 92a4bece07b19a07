"""``pqrun init`` and ``pqrun dev``: what is written runs, the worker follows the code, and nothing is left at the end."""

import asyncio
import json
import os
import re
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import asyncpg
import pytest

from pqrun.cli.dev import watching
from tests.cli.running import Command, environment, run_command, running, without
from tests.embedded.owners import processes_in
from tests.support.installed import installed_in
from tests.support.waiting import wait_until


@pytest.fixture
def project() -> Iterator[Path]:
    """A folder that every user can reach: started by root, an embedded server runs as another one."""
    with tempfile.TemporaryDirectory(prefix="pqrun-dev-") as parent:
        Path(parent).chmod(0o755)
        yield Path(parent)


def processes_of(folder: Path) -> set[int]:
    """Processes that work in the folder or below it, or name it."""
    return processes_in(folder) | {
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and _folder_of(entry).is_relative_to(folder)
    }


def _folder_of(process: Path) -> Path:
    try:
        return (process / "cwd").readlink()
    except OSError:  # it has ended, or is a kernel's
        return Path("/")


async def test_what_init_writes_runs_as_printed(project: Path) -> None:
    code, output = await run_command("init", str(project / "shop"))
    assert code == 0
    assert output.splitlines()[:2] == [f"wrote {project}/shop/app.py", f"wrote {project}/shop/test_app.py"]
    folder = project / "shop"
    env = environment(PYTHONPATH=installed_in(project / "installed"))
    code, output = await run_command(
        "-q", "-p", "no:cacheprovider", env=env, cwd=folder, program=(sys.executable, "-m", "pytest")
    )
    assert code == 0, output
    assert "1 passed" in output
    async with running("dev", "app:jobs", env=environment(), cwd=folder) as dev:
        await begun(dev)
        given = ["defer", "app:jobs", "greet", "name=Ada", "--wait"]
        code, output = await run_command(*given, env=environment(PQRUN_DSN="embedded:.pqrun"), cwd=folder)
        assert code == 0, output
        assert json.loads(output.splitlines()[-1]) == {"greeting": "Hello, Ada!"}
        dev.send(signal.SIGINT)
        assert await dev.end() == 0
    assert not processes_of(folder)


async def test_init_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_app.py").write_text("mine")
    code, output = await run_command("init", cwd=tmp_path)
    assert code == 1
    assert output == "pqrun: test_app.py is there already, nothing was written; name another folder"
    assert not (tmp_path / "app.py").exists()
    assert (tmp_path / "test_app.py").read_text() == "mine"


TEXT = """\
import asyncio

from pqrun import App, JobContext

jobs = App()


@jobs.task(max_attempts=1)
async def tell(ctx: JobContext) -> dict[str, str]:
    {body}
"""


def write(folder: Path, body: str) -> None:
    (folder / "app.py").write_text(TEXT.format(body=body))


async def begun(dev: Command) -> None:
    await dev.wait_line(r"worker \S+ started:")


async def test_a_change_starts_the_worker_anew_and_releases_its_jobs(
    dsn: str, connection: asyncpg.Connection, tmp_path: Path
) -> None:
    write(tmp_path, "await asyncio.sleep(3600)\n    return {}")
    env = environment(PQRUN_DSN=dsn)
    async with running("dev", "app:jobs", env=env, cwd=tmp_path) as dev:
        await begun(dev)
        await run_command("defer", "app:jobs", "tell", env=env, cwd=tmp_path)

        async def is_running() -> bool:
            return bool(await connection.fetchval("SELECT count(*) FROM pqrun.jobs WHERE status = 'RUNNING'"))

        await wait_until(is_running)
        write(tmp_path, 'return {"told": "new"}')
        await dev.wait_line(r"app\.py changed: starting anew")

        async def is_done() -> bool:
            return bool(await connection.fetchval("SELECT count(*) FROM pqrun.jobs WHERE status = 'DONE'"))

        await wait_until(is_done)
        row = await connection.fetchrow("SELECT result::text, attempts, releases, lost FROM pqrun.jobs")
        assert row is not None
        assert (json.loads(row["result"]), row["attempts"], row["releases"], row["lost"]) == ({"told": "new"}, 1, 1, 0)
        dev.send(signal.SIGINT)
        assert await dev.end() == 0
    assert not processes_of(tmp_path)


def request(url: str, data: dict[str, str] | None = None, *, host: str | None = None) -> str:
    headers = {"Host": host} if host is not None else {}
    if data is not None:
        headers["Origin"] = url.rpartition("/")[0]
    body = None if data is None else urlencode(data).encode()
    with urlopen(Request(url, body, headers), timeout=30) as response:  # http, of our own
        return str(response.read().decode())


async def pages_of(dev: Command, count: int = 1) -> str:
    """The address of the pages, as it is said for the count-th time."""

    def told() -> list[str]:
        return re.findall(r"pqrun dev: pages at (http://127\.0\.0\.1:\d+)", dev.output)

    await wait_until(lambda: len(told()) >= count)
    return told()[count - 1]


async def test_the_pages_are_served_beside_the_worker_and_start_anew_with_it(dsn: str, tmp_path: Path) -> None:
    """The same address after the reload, though a browser still holds its stream; the wanted port is taken, so it is the next."""
    write(tmp_path, "return {}")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        env = environment(PQRUN_DSN=dsn)
        async with running("dev", "app:jobs", "--port", str(port), env=env, cwd=tmp_path) as dev:
            url = await pages_of(dev)
            assert url != f"http://127.0.0.1:{port}"
            await begun(dev)
            text = await asyncio.to_thread(request, f"{url}/tasks/tell")
            assert "Enqueue" in text or "enqueue" in text  # an admin sees the form
            with pytest.raises(HTTPError) as refused:
                await asyncio.to_thread(request, f"{url}/jobs", host="evil.example.org")
            assert refused.value.code == 403
            refused.value.close()
            stream = await asyncio.to_thread(urlopen, f"{url}/events")
            write(tmp_path, 'return {"told": "new"}')
            await dev.wait_line(r"app\.py changed: starting anew")
            assert await pages_of(dev, 2) == url
            assert "tell" in await asyncio.to_thread(request, f"{url}/tasks")
            stream.close()
            dev.send(signal.SIGINT)
            assert await dev.end() == 0
            assert "ERROR" not in dev.output
    assert not processes_of(tmp_path)


async def test_the_pages_answer_while_a_handler_blocks_the_event_loop(dsn: str, tmp_path: Path) -> None:
    write(tmp_path, "import time; time.sleep(3600)\n    return {}")
    env = environment(PQRUN_DSN=dsn)
    async with running("dev", "app:jobs", "--no-reload", env=env, cwd=tmp_path) as dev:
        url = await pages_of(dev)
        await begun(dev)
        await run_command("defer", "app:jobs", "tell", env=env, cwd=tmp_path)
        await dev.wait_line("the event loop has been blocked")
        try:
            assert "RUNNING" in (await asyncio.to_thread(request, f"{url}/api/jobs.json"))
        finally:  # the child is blocked: it would stop in half a minute
            for process in processes_of(tmp_path):
                os.kill(process, signal.SIGKILL)


async def test_without_the_extra_the_worker_runs_and_that_is_said_once(dsn: str, tmp_path: Path) -> None:
    write(tmp_path, "return {}")
    env = environment(PQRUN_DSN=dsn)
    async with running("dev", "app:jobs", env=env, cwd=tmp_path, program=without("starlette")) as dev:
        await begun(dev)
        write(tmp_path, 'return {"told": "new"}')
        await dev.wait_line(r"app\.py changed: starting anew")
        await wait_until(lambda: dev.output.count(" started:") == 2)
        dev.send(signal.SIGINT)
        assert await dev.end() == 0
        assert dev.output.count("no web pages: pip install 'pqrun[web]'") == 1
        assert "pages at" not in dev.output


async def test_no_pages_are_served_where_nobody_wants_them(dsn: str, tmp_path: Path) -> None:
    write(tmp_path, "return {}")
    async with running("dev", "app:jobs", "--no-pages", env=environment(PQRUN_DSN=dsn), cwd=tmp_path) as dev:
        await begun(dev)
        dev.send(signal.SIGINT)
        assert await dev.end() == 0
        assert "pages" not in dev.output


async def test_code_that_cannot_be_imported_waits_for_a_change(dsn: str, tmp_path: Path) -> None:
    write(tmp_path, "this is no Python")
    async with running("dev", "app:jobs", env=environment(PQRUN_DSN=dsn), cwd=tmp_path) as dev:
        await dev.wait_line("SyntaxError")
        await dev.wait_line(r"the worker ended \(exit code 1\); it starts again when a file changes")
        write(tmp_path, "return {}")
        await begun(dev)
        dev.send(signal.SIGTERM)
        assert await dev.end() == 0


async def test_the_worker_ends_with_a_parent_that_is_killed(dsn: str, tmp_path: Path) -> None:
    write(tmp_path, "return {}")
    async with running("dev", "app:jobs", env=environment(PQRUN_DSN=dsn), cwd=tmp_path) as dev:
        await begun(dev)
        dev.process.kill()
        await wait_until(lambda: not processes_of(tmp_path))


async def test_a_handler_that_blocks_the_loop_does_not_outlive_a_parent_that_is_killed(
    dsn: str, tmp_path: Path
) -> None:
    write(tmp_path, "import time; time.sleep(3600)\n    return {}")
    env = environment(PQRUN_DSN=dsn)
    async with running("dev", "app:jobs", "--no-pages", env=env, cwd=tmp_path) as dev:
        await begun(dev)
        await run_command("defer", "app:jobs", "tell", env=env, cwd=tmp_path)
        await dev.wait_line("the event loop has been blocked")
        dev.process.kill()
        await wait_until(lambda: not processes_of(tmp_path))


async def test_without_reload_it_ends_with_its_worker(dsn: str, tmp_path: Path) -> None:
    write(tmp_path, "this is no Python")
    code, output = await run_command("dev", "app:jobs", "--no-reload", env=environment(PQRUN_DSN=dsn), cwd=tmp_path)
    assert code == 0
    assert "the worker ended (exit code 1)" in output


async def test_a_target_of_another_form_is_wrong_usage(tmp_path: Path) -> None:
    code, output = await run_command("dev", "app.py", cwd=tmp_path)
    assert code == 2
    assert "did you mean app:jobs?" in output


def test_python_files_of_the_project_are_watched_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.py", "b.txt", "shop/c.py", ".git/d.py", "venv/pyvenv.cfg", "venv/e.py", "x/__pycache__/f.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    before = watching.snapshot(tmp_path)
    assert sorted(before) == ["a.py", f"shop{os.sep}c.py"]
    (tmp_path / "a.py").write_text("longer")
    (tmp_path / "shop" / "c.py").unlink()
    (tmp_path / "g.py").write_text("new")
    assert watching.changes(before, watching.snapshot(tmp_path)) == ["a.py", "g.py", f"shop{os.sep}c.py"]
    monkeypatch.setattr(watching, "FILES_MOST", 1)
    assert len(watching.snapshot(tmp_path)) == 1
