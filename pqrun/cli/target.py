"""``module:app``: the app that a command works with, imported as Python would from the current folder."""

import difflib
import importlib
import os
import pkgutil
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import typer

from pqrun.app import App
from pqrun.errors import ConfigurationError

__all__ = ["check_target", "load_app"]


def load_app(target: str) -> App[Any]:
    """Import the module and return its App.

    ``target``: ``package.module:name``, where the name may have dots. Raises typer.BadParameter for another form, and
    ConfigurationError, with what is there instead, when there is no such module, no such name, or no App behind it. What the
    module itself raises is not caught.
    """
    module_name, path = check_target(target)
    module = _import(module_name)
    found: object = module
    for name in path.split("."):
        if not hasattr(found, name):
            raise ConfigurationError(f"{target}: {_kind(found)} has no {name!r}{_instead(module, path)}")
        found = getattr(found, name)
    if not isinstance(found, App):
        raise ConfigurationError(f"{target}: expected an App, got {_kind(found)}{_instead(module, path)}")
    return found


def check_target(target: str) -> tuple[str, str]:
    """Return the name of the module and what follows the colon, importing nothing; raises typer.BadParameter for another form."""
    module_name, colon, path = target.partition(":")
    if not (colon and _is_dotted(module_name) and _is_dotted(path)):
        raise typer.BadParameter(f"expected module:app, such as shop.jobs:jobs; got {target!r}{_reading(target)}")
    return module_name, path


def _is_dotted(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def _reading(target: str) -> str:
    """Guess what a path of a file, or a module alone, was meant to say."""
    file, _, name = target.partition(":")
    module = file.removesuffix(".py").replace(os.sep, ".").strip(".")
    return f"; did you mean {module}:{name or 'jobs'}?" if _is_dotted(module) else ""


def _import(name: str) -> ModuleType:
    here = os.getcwd()  # noqa: PTH109  # sys.path holds text
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing != name and not name.startswith(f"{missing}."):  # the module is there, and misses another
            error.add_note(f"while importing {name}")
            raise
    except Exception as error:  # the border to user code: its own traceback says most
        error.add_note(f"while importing {name}")
        raise
    hint = _did_you_mean(missing, _neighbours(missing, here))
    raise ConfigurationError(f"there is no module {missing}; looked in {here} and where Python looks{hint}")


def _neighbours(name: str, here: str) -> list[str]:
    """Modules beside the missing one."""
    parent = name.rpartition(".")[0]
    if not parent:
        return [module.name for module in pkgutil.iter_modules([here])]
    folders = getattr(sys.modules.get(parent), "__path__", [])
    return [module.name for module in pkgutil.iter_modules(folders, f"{parent}.")]


def _instead(module: ModuleType, path: str) -> str:
    apps = [name for name, value in vars(module).items() if isinstance(value, App)]
    if apps:
        return f"; did you mean {' or '.join(f'{module.__name__}:{name}' for name in sorted(apps))}?"
    hint = _did_you_mean(path, (name for name in vars(module) if not name.startswith("_")))
    return f"{hint}; {module.__name__} holds no App (jobs = App(...))"


def _did_you_mean(name: str, candidates: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, candidates, n=3)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def _kind(value: object) -> str:
    if isinstance(value, ModuleType):
        return f"module {value.__name__}"
    return f"the class {value.__name__}" if isinstance(value, type) else f"an object of type {type(value).__name__}"
