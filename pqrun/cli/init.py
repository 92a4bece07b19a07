"""``pqrun init``: an app and its test, which run as they are printed."""

from pathlib import Path
from typing import Annotated, Final

import typer

__all__ = ["init"]

REFUSED = 1

APP: Final = '''\
"""The jobs of this project.

Run them, and again after each change of a file:   pqrun dev app:jobs
Defer one, and see its result:                      pqrun defer app:jobs greet name=Ada --wait --dsn embedded:.pqrun
"""

from pqrun import App, JobContext

jobs = App()  # PQRUN_DSN names the database, then DATABASE_URL; pqrun dev brings one of its own


@jobs.task(max_attempts=3, timeout=60)
async def greet(ctx: JobContext, name: str) -> dict[str, str]:
    """Say hello: what a handler returns is stored with its job."""
    ctx.logger.info("greeting somebody, attempt %d", ctx.job.attempts)
    return {"greeting": f"Hello, {name}!"}
'''

TEST: Final = '''\
"""Tests of the jobs, on a PostgreSQL that the fixtures of pqrun start: just run pytest."""

from pqrun.testing import Bind, drain_sync

from app import greet, jobs


def test_a_greeting_is_stored(pqrun_bind: Bind) -> None:
    pqrun_bind(jobs)  # a database of this test's own
    job = greet.defer_sync(name="Ada")
    drain_sync(jobs)  # run what is due, with a real worker
    assert job.result_sync(timeout=0) == {"greeting": "Hello, Ada!"}
    jobs.close_sync()
'''

Folder = Annotated[
    Path,
    typer.Argument(metavar="DIR", file_okay=False, show_default=False, help="Where to (default: the current folder)."),
]


def init(folder: Folder = Path()) -> None:
    """Write app.py and test_app.py, with one task and its test. Overwrites nothing: exit code 1 if one of them is there."""
    files = {folder / "app.py": APP, folder / "test_app.py": TEST}
    for path in files:
        if path.exists():
            typer.echo(f"pqrun: {path} is there already, nothing was written; name another folder", err=True)
            raise typer.Exit(REFUSED)
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        with path.open("x", encoding="utf-8") as file:  # whoever was faster keeps his
            file.write(text)
        typer.echo(f"wrote {path}")
    where = "" if folder == Path() else f"cd {folder} and "
    typer.echo(f"{where}run: pip install 'pqrun[dev]' pytest; pqrun dev app:jobs; pytest")
