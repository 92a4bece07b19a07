"""``pqrun web``: whom it lets in, where it listens, and what it refuses before it does."""

import base64
import signal
from pathlib import Path

import httpx
import pytest

from tests.cli.running import PQRUN, environment, run_command, running, without
from tests.support.waiting import DEADLINE_SECONDS

HEARS = r"running on http://127\.0\.0\.1:(\d+)"

SHOP = """
from pqrun import App, JobContext

jobs = App()


@jobs.task
async def greet(ctx: JobContext, name: str) -> None: ...
"""


async def serve(
    dsn: str, folder: Path, *flags: str, headers: dict[str, str] | None = None, path: str = "/tasks"
) -> httpx.Response:
    """Start it, ask for one page, and stop it as a service manager does."""
    env = environment(PQRUN_DSN=dsn)
    async with running("web", *flags, "--port", "0", env=env, cwd=folder, program=PQRUN) as command:
        port = (await command.wait_line(HEARS))[1]
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=DEADLINE_SECONDS) as client:
            answer = await client.get(path, headers=headers)
        command.send(signal.SIGTERM)
        assert await command.end() in (0, -signal.SIGTERM), command.output
        assert "Traceback" not in command.output
        return answer


async def test_a_database_alone_is_shown_to_this_machine_read_only(dsn: str, tmp_path: Path) -> None:
    answer = await serve(dsn, tmp_path)
    assert answer.status_code == 200
    assert "know a database and no code" in answer.text
    assert "local <small>viewer</small>" in answer.text
    assert "server" not in answer.headers


async def test_an_app_is_shown_with_its_tasks_and_the_role_that_was_given(dsn: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    answer = await serve(dsn, tmp_path, "shop:jobs", "--role", "admin", path="/tasks/greet")
    assert answer.status_code == 200
    assert 'name="field.name"' in answer.text


async def test_a_password_is_asked_for_and_admins_are_named(dsn: str, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("s3cret\n")
    flags = ("--user", "ann", "--password-file", "password", "--admin", "ann")
    header = f"Basic {base64.b64encode(b'ann:s3cret').decode()}"
    answer = await serve(dsn, tmp_path, *flags, headers={"Authorization": header})
    assert "ann <small>admin</small>" in answer.text
    assert (await serve(dsn, tmp_path, *flags)).status_code == 401


async def test_a_proxy_names_the_user_in_a_header(dsn: str, tmp_path: Path) -> None:
    flags = ("--auth-header", "X-Remote-User", "--trusted-proxy", "127.0.0.1", "--operator", "ann")
    answer = await serve(dsn, tmp_path, *flags, headers={"X-Remote-User": "ann"})
    assert "ann <small>operator</small>" in answer.text
    assert (await serve(dsn, tmp_path, *flags)).status_code == 403


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--host", "0.0.0.0"), "--insecure, which lets everybody in"),
        (("--user", "ann"), "--user needs --password-file"),
        (("--user", "ann", "--password-file", "nowhere"), "it cannot be read"),
        (("--auth-header", "X-Remote-User"), "name at least one"),
        (("--auth-header", "X-U", "--trusted-proxy", "1.2.3.4", "--user", "ann"), "--auth-header excludes"),
        (("--trusted-proxy", "1.2.3.4"), "goes with --auth-header"),
        (("--admin", "ann"), "--role is for this machine"),
        (("shop:jobs", "--schema", "other"), "names its own database"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
async def test_what_would_let_in_whoever_was_not_meant_is_refused(
    tmp_path: Path, flags: tuple[str, ...], said: str
) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    env = environment(PQRUN_DSN="postgresql://nobody@127.0.0.1:1/none")
    code, output = await run_command("web", *flags, env=env, cwd=tmp_path)
    assert code == 1
    assert said in output
    assert "Traceback" not in output


@pytest.mark.parametrize("missing", ["uvicorn", "jinja2", "starlette"])
async def test_a_missing_extra_is_told_with_the_pip_line(missing: str) -> None:
    code, output = await run_command("web", "--dsn", "postgresql://x@y/z", program=without(missing))
    assert code == 1
    assert "pip install 'pqrun[web]'" in output
