"""Programs of users in processes of their own, watched from a test."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

DEADLINE_SECONDS = 60.0

TASK = """
    import os, sys
    from pqrun import App, JobContext
    jobs = App()

    @jobs.task
    async def t(ctx: JobContext, a: int) -> None: ...
"""
"""What most of them begin with."""

UNWANTED = ("-W", "ignore:This process:DeprecationWarning")
"""Python 3.12 and later advise against a fork beside threads: what happens then is what some of them are about."""


@contextmanager
def script(text: str, dsn: str) -> Iterator["subprocess.Popen[str]"]:
    """Start a program with every warning shown; it is killed where it outlives the block."""
    process = subprocess.Popen(
        # Not -X dev: asyncio would tell of every callback that a busy machine makes slow.
        [sys.executable, "-W", "default", *UNWANTED, "-c", textwrap.dedent(TASK) + textwrap.dedent(text)],
        env={**os.environ, "PQRUN_DSN": dsn, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def output(text: str, dsn: str) -> list[str]:
    """Run a program to its end, in which it must neither fail nor complain; return the lines that it prints."""
    with script(text, dsn) as process:
        out, err = process.communicate(timeout=DEADLINE_SECONDS)
    assert (process.returncode, err) == (0, ""), err
    return out.splitlines()
