"""What is kept of a start that did not succeed: its kind, and of an exception the type, the message and where in the user's code it arose.

Errors are grouped by task, type and the function of that place, never by lines or paths: a deploy moves the first, a machine the second.
"""

import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from types import FrameType, TracebackType
from typing import Final, NamedTuple

import msgspec

from pqrun.job.storable import one_line, replace_unstorable

__all__ = ["ATTEMPTS_KEPT", "MESSAGE_MAX", "NAME_MAX", "Failure", "FailureKind", "bounded_message", "failure_of"]

ATTEMPTS_KEPT: Final = 20
"""So many of the last starts that did not succeed are kept with each job."""

MESSAGE_MAX: Final = 1_000
"""Characters that are kept of a message; the traceback has more of it."""

NAME_MAX: Final = 200
"""Characters that are kept of the name of an exception's type, and of a place."""

_STANDARD_LIBRARY: Final = f"{Path(os.__file__).parent}{os.sep}"
_INSTALLED: Final = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


class FailureKind(StrEnum):
    """Why a start did not succeed."""

    ERROR = "error"
    """The handler raised, or its payload or result was refused."""
    TIMEOUT = "timeout"
    """It ran longer than its timeout."""
    LOST = "lost"
    """Its worker died, or was taken for dead."""
    CANCELLED = "cancelled"
    """A cancel was asked for, whatever the handler then did."""
    RELEASED = "released"
    """It was interrupted by a shutdown of its worker."""


class Failure(msgspec.Struct, frozen=True):
    """What is known of a failure beside the text of its error; see ``failure_of``."""

    kind: FailureKind = FailureKind.ERROR
    exception_type: str | None = None
    """Module and qualified name, as a traceback shows them; None: no exception has part in it."""
    message: str | None = None
    """None: the text of the error is all there is."""
    frame: str | None = None
    """``module:function:line`` of the innermost frame of the user's own code."""


class _Spot(NamedTuple):
    """One frame of a traceback."""

    module: str
    function: str
    line: int
    origin: str
    """The file of the module; of generated code what it calls itself."""

    @property
    def package(self) -> str:
        return self.module.partition(".")[0]

    @property
    def is_generated(self) -> bool:
        """Frozen, or compiled from text: ``exec``, the methods of a dataclass."""
        return self.origin.startswith("<")

    @property
    def is_installed(self) -> bool:
        """Of a package among those of this Python."""
        return any(folder in self.origin for folder in _INSTALLED)

    @property
    def is_standard(self) -> bool:
        """Of the standard library."""
        return self.origin.startswith(_STANDARD_LIBRARY) and not self.is_installed

    @property
    def is_own(self) -> bool:
        """Of the user's code, as far as its file tells."""
        return not (self.is_generated or self.is_standard or self.is_installed)


def failure_of(error: BaseException, kind: FailureKind = FailureKind.ERROR) -> Failure:
    """Describe an exception: the outermost of a chain, a group as itself. Never raises, whatever the exception does.

    A timeout has no place: it strikes wherever the code happens to be, and one problem must not become many groups.
    """
    try:
        message: str | None = bounded_message(str(error))
    except Exception:  # noqa: BLE001  # hostile, or broken: the rest must still be recorded
        message = "<its text could not be read>"
    frame = None if kind is FailureKind.TIMEOUT else _frame_of(error)
    return Failure(kind, _type_name(type(error)), message, frame)


def bounded_message(text: str) -> str:
    """Return the text as it is kept: storable, and MESSAGE_MAX characters at most."""
    return _cut(replace_unstorable(text[: MESSAGE_MAX + 1]), MESSAGE_MAX)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _type_name(kind: type[BaseException]) -> str:
    module: object = kind.__module__  # anything, where a class sets it
    name = kind.__qualname__
    if isinstance(module, str) and module != "builtins":
        name = f"{_imported_name(module)}.{name}"
    return _cut(one_line(name), NAME_MAX)


def _frame_of(error: BaseException) -> str | None:
    # What pqrun makes and never raises has no traceback; what it was made from has.
    raised = error if error.__traceback__ is not None or error.__cause__ is None else error.__cause__
    # Nor may a place in pqrun be what errors are grouped by: it is called otherwise in another version.
    spots = [spot for spot in _spots(raised.__traceback__) if spot.package != "pqrun"]
    if not spots:
        return None
    spot = _chosen(spots, is_endless=isinstance(raised, RecursionError))
    module, function, line = _cut(one_line(spot.module), NAME_MAX), _cut(one_line(spot.function), NAME_MAX), spot.line
    return f"{module}:{function}:{line}"


def _chosen(spots: Sequence[_Spot], *, is_endless: bool) -> _Spot:
    """The innermost frame of the user's own code; where all of that is installed as a package, of the package that was called first."""
    own = [spot for spot in spots if spot.is_own]
    if not own:
        entry = next((spot.package for spot in spots if not (spot.is_standard or spot.is_generated)), None)
        own = [spot for spot in spots if spot.package == entry and not spot.is_generated]
    if not own:
        return spots[-1]
    if is_endless:
        # In which of several functions that call each other the stack ended says nothing: the first that came back.
        times = Counter((spot.module, spot.function) for spot in own)
        return next((spot for spot in own if times[spot.module, spot.function] > 1), own[-1])
    return own[-1]


def _spots(traceback: TracebackType | None) -> Iterator[_Spot]:
    while traceback is not None:
        yield _spot(traceback.tb_frame, traceback.tb_lineno)
        traceback = traceback.tb_next


def _spot(frame: FrameType, line: int | None) -> _Spot:
    code = frame.f_code
    module, file = frame.f_globals.get("__name__"), frame.f_globals.get("__file__")
    # Frames of compiled extensions name a source file that is nowhere; the file of their module tells where they belong.
    origin = file if isinstance(file, str) and not code.co_filename.startswith("<") else code.co_filename
    name = _imported_name(module) if isinstance(module, str) else _stem(code.co_filename)
    return _Spot(name, code.co_qualname, line or 0, origin)


def _imported_name(module: str) -> str:
    """The name by which others import it, where a program was started from it."""
    if module != "__main__":
        return module
    main = sys.modules.get("__main__")
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        return str(spec.name).removesuffix(".__main__")
    return _stem(file) if isinstance(file, str) else module


def _stem(file: str) -> str:
    return file if file.startswith("<") else Path(file).stem
