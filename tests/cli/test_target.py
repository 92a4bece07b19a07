"""``module:app``: what is found, and what is said when it is not."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from pqrun import App, ConfigurationError
from pqrun.cli.target import load_app


@pytest.fixture(autouse=True)
def shop_is_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A package ``market`` in the current folder; forgotten afterwards."""
    package = tmp_path / "market"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "stalls.py").write_text(
        "from pqrun import App\nclass Stall:\n    jobs = App()\njobs = Stall.jobs\njob_count = 1\n"
    )
    (package / "empty.py").write_text("stall_count = 1\n")
    (package / "broken.py").write_text("import no_such_library\n")
    (package / "wrong.py").write_text("raise ZeroDivisionError\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "market"]:
        del sys.modules[name]


@pytest.mark.parametrize("target", ["market.stalls:jobs", "market.stalls:Stall.jobs"])
def test_an_app_is_found_from_the_current_folder(target: str) -> None:
    assert isinstance(load_app(target), App)


@pytest.mark.parametrize(
    ("target", "hint"),
    [
        ("market.stalls", "did you mean market.stalls:jobs?"),
        ("market/stalls.py:jobs", "did you mean market.stalls:jobs?"),
        ("market.stalls:", "did you mean market.stalls:jobs?"),
        (":jobs", "got ':jobs'"),
        ("", "got ''"),
        ("market stalls:jobs", "expected module:app"),
    ],
)
def test_another_form_is_wrong_usage(target: str, hint: str) -> None:
    with pytest.raises(typer.BadParameter) as caught:
        load_app(target)
    assert hint in caught.value.message


@pytest.mark.parametrize(
    ("target", "hint"),
    [
        ("markt.stalls:jobs", "there is no module markt; .*did you mean market?"),
        ("market.stals:jobs", r"there is no module market\.stals; .*did you mean market\.stalls?"),
        ("market.stalls.more:jobs", r"there is no module market\.stalls\.more"),
        ("market.stalls:job", "module market.stalls has no 'job'; did you mean market.stalls:jobs?"),
        ("market.stalls:Stall.job", "the class Stall has no 'job'; did you mean market.stalls:jobs?"),
        ("market.stalls:Stall", "expected an App, got the class Stall; did you mean market.stalls:jobs?"),
        ("market.stalls:job_count", "expected an App, got an object of type int; did you mean market.stalls:jobs?"),
        ("market.empty:stall", r"has no 'stall'; did you mean stall_count\?; market.empty holds no App"),
    ],
)
def test_what_is_missing_is_told_with_what_is_there(target: str, hint: str) -> None:
    with pytest.raises(ConfigurationError, match=hint):
        load_app(target)


def test_a_library_that_the_module_misses_is_not_taken_for_the_module() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_library") as caught:
        load_app("market.broken:jobs")
    assert caught.value.__notes__ == ["while importing market.broken"]


def test_what_the_module_raises_comes_through() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        load_app("market.wrong:jobs")
    assert caught.value.__notes__ == ["while importing market.wrong"]
