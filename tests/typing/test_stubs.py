"""The stubs in ``stubs/asyncpg`` say nothing about asyncpg that the installed package does not do."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run_checker(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a module of mypy's over the stubs, as the project is configured."""
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": "stubs"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_the_asyncpg_stubs_agree_with_the_installed_asyncpg() -> None:
    # What the stubs leave out, pqrun does not use; what they state must hold, so there is no allowlist.
    done = run_checker("mypy.stubtest", "asyncpg", "--ignore-missing-stub", "--mypy-config-file", "pyproject.toml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_asyncpg_stubs_are_what_mypy_reads(tmp_path: Path) -> None:
    code = "import asyncpg\n\n\nasync def one(pool: asyncpg.Pool) -> int:\n    return await pool.execute('SELECT 1')\n"
    module = tmp_path / "reads_the_stubs.py"
    module.write_text(code)
    done = run_checker("mypy", "--config-file", "pyproject.toml", "--cache-dir", str(tmp_path / "cache"), str(module))
    assert 'got "str", expected "int"' in done.stdout, done.stdout + done.stderr
