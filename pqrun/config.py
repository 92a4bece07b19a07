"""Settings from outside: the WORKER_* variables and the DSN.

Each setting of a worker can come from four places, and the first that has it counts: the CLI flag, the environment, the
constructor, the default. What is written in code is checked and refused (``OptionError``); what an operator typed into
the environment must not keep a service from starting: it is reported once and the next place counts.
"""

import logging
import re
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Final, NamedTuple, TypeAlias

import msgspec

from pqrun.errors import ConfigurationError, OptionError
from pqrun.job.serving import CONCURRENCY_DEFAULT, CONCURRENCY_MAX
from pqrun.store.connecting import normalised_dsn

__all__ = [
    "CONCURRENCY_DEFAULT",
    "CONCURRENCY_MAX",
    "DURATION_MAX",
    "MISSING_DSN",
    "REAP_INTERVAL_DEFAULT",
    "SHUTDOWN_GRACE_DEFAULT",
    "SHUTDOWN_TIMEOUT_DEFAULT",
    "STALE_TIMEOUT_DEFAULT",
    "WORKER_VARIABLES",
    "WorkerOverrides",
    "WorkerSettings",
    "WorkerVariable",
    "dsn_from",
    "is_concurrency_given",
    "require_dsn",
    "resolve_worker_settings",
]

REAP_INTERVAL_DEFAULT: Final = timedelta(seconds=60)
STALE_TIMEOUT_DEFAULT: Final = timedelta(minutes=20)
SHUTDOWN_GRACE_DEFAULT: Final = timedelta(seconds=10)
SHUTDOWN_TIMEOUT_DEFAULT: Final = timedelta(seconds=30)

DURATION_MAX: Final = timedelta(days=3650)
"""No duration here may be longer: beyond it lie intervals that PostgreSQL cannot add to a timestamp."""

MISSING_DSN: Final = (
    "no database was named: give App(dsn='postgresql://...'), App(pool=an_asyncpg_pool) or App(store=a_PgJobStore), "
    "or set PQRUN_DSN or DATABASE_URL in the environment; the DSN embedded:PATH starts a PostgreSQL of pqrun's own in "
    "that folder (pip install 'pqrun[dev]')"
)
"""The message of the ``ConfigurationError`` when no DSN was found: every way to give one."""

Duration: TypeAlias = timedelta | float
"""A timedelta, or a number of seconds."""

Setting: TypeAlias = bool | int | float
"""A value as it is used; a duration is in seconds."""

_SHOWN_MAX: Final = 80
_SCHEME: Final = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]{0,30})://", re.IGNORECASE)

_log: Final = logging.getLogger("pqrun")


class WorkerOverrides(msgspec.Struct, frozen=True, kw_only=True):
    """What a constructor or a command line says about a worker; None: nothing. Durations are timedeltas or seconds."""

    enabled: bool | None = None
    enable_reaper: bool | None = None
    concurrency: int | None = None
    reap_stale_every_seconds: Duration | None = None
    default_stale_after: Duration | None = None
    shutdown_grace: Duration | None = None
    shutdown_timeout: Duration | None = None


_NOTHING: Final = WorkerOverrides()


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's settings as they apply, each checked; durations in seconds."""

    enabled: bool
    enable_reaper: bool
    """False: nothing that this worker does recovers the jobs of dead workers."""
    concurrency: int
    """Handlers at once, all together, from 1."""
    reap_interval_seconds: float
    """Between two full sweeps for stale jobs; above 0."""
    stale_timeout_seconds: float
    """The age at which a job without a timeout and without a live worker counts as stale; above 0."""
    shutdown_grace_seconds: float
    """How long running handlers may go on after stop; never more than ``shutdown_timeout_seconds``."""
    shutdown_timeout_seconds: float
    """When stopping gives up on what still runs; above 0."""


class _Kind(NamedTuple):
    """How values of one kind are read; both functions raise ``ValueError`` for what is not of the kind."""

    noun: str
    from_text: Callable[[str], Setting]
    from_code: Callable[[object], Setting]


def _switch_from_text(text: str) -> bool:
    word = text.lower()
    if word in _ON or word in _OFF:
        return word in _ON
    raise ValueError


def _switch_from_code(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise ValueError


def _whole_number_from_code(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError


def _seconds_from_code(value: object) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    # The comparison comes before float(), which raises OverflowError for an int beyond the greatest float.
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max:
        return float(value)
    raise ValueError


_ON: Final = frozenset({"true", "1", "yes", "on"})
_OFF: Final = frozenset({"false", "0", "no", "off"})

_SWITCH: Final = _Kind("true or false", _switch_from_text, _switch_from_code)
_WHOLE_NUMBER: Final = _Kind("a whole number", int, _whole_number_from_code)
_SECONDS: Final = _Kind("seconds", float, _seconds_from_code)


class WorkerVariable(NamedTuple):
    """One WORKER_* variable: what it is called in each place, and which values it takes."""

    name: str
    option: str
    """The worker's constructor parameter, and the field of ``WorkerOverrides``."""
    field: str
    """The field of ``WorkerSettings``."""
    kind: _Kind
    default: Setting
    """Seconds, for a duration."""
    least: float = 0.0
    most: float = 1.0
    above_least: bool = False
    """The least value is itself refused."""

    @property
    def flag(self) -> str:
        """The CLI flag of the same meaning: WORKER_SHUTDOWN_GRACE is ``--shutdown-grace``."""
        return "--" + self.name.removeprefix("WORKER_").lower().replace("_", "-")

    @property
    def expectation(self) -> str:
        """What a value must be, for messages."""
        if self.kind is _SWITCH:
            return self.kind.noun
        bound = "more than" if self.above_least else "at least"
        return f"{self.kind.noun}, {bound} {self.least:g} and at most {self.most:.0f}"

    def read_text(self, text: str) -> Setting:
        """Read the variable's text; raises ``ValueError`` for what is of another kind or out of bounds."""
        return self._bounded(self.kind.from_text(text.strip()))

    def read_code(self, value: object, name: str) -> Setting:
        """Check what was given in code or by a flag called ``name``; raises ``OptionError``."""
        try:
            return self._bounded(self.kind.from_code(value))
        except ValueError:
            message = f"{name}: expected {self.expectation}; got {_shown(value)} ({type(value).__name__})"
            raise OptionError(message) from None

    def _bounded(self, value: Setting) -> Setting:
        # Written so that NaN, with which every comparison is false, is refused.
        if self.least <= value <= self.most and not (self.above_least and value == self.least):
            return value
        raise ValueError


_LONGEST: Final = DURATION_MAX.total_seconds()

WORKER_VARIABLES: Final = (
    WorkerVariable("WORKER_ENABLED", "enabled", "enabled", _SWITCH, default=True),
    WorkerVariable("WORKER_REAPER_ENABLED", "enable_reaper", "enable_reaper", _SWITCH, default=True),
    WorkerVariable(
        "WORKER_CONCURRENCY", "concurrency", "concurrency", _WHOLE_NUMBER, CONCURRENCY_DEFAULT, 1, CONCURRENCY_MAX
    ),
    WorkerVariable(
        "WORKER_REAP_INTERVAL",
        "reap_stale_every_seconds",
        "reap_interval_seconds",
        _SECONDS,
        REAP_INTERVAL_DEFAULT.total_seconds(),
        most=_LONGEST,
        above_least=True,
    ),
    WorkerVariable(
        "WORKER_STALE_TIMEOUT",
        "default_stale_after",
        "stale_timeout_seconds",
        _SECONDS,
        STALE_TIMEOUT_DEFAULT.total_seconds(),
        most=_LONGEST,
        above_least=True,
    ),
    WorkerVariable(
        "WORKER_SHUTDOWN_GRACE",
        "shutdown_grace",
        "shutdown_grace_seconds",
        _SECONDS,
        SHUTDOWN_GRACE_DEFAULT.total_seconds(),
        most=_LONGEST,
    ),
    WorkerVariable(
        "WORKER_SHUTDOWN_TIMEOUT",
        "shutdown_timeout",
        "shutdown_timeout_seconds",
        _SECONDS,
        SHUTDOWN_TIMEOUT_DEFAULT.total_seconds(),
        most=_LONGEST,
        above_least=True,
    ),
)
"""Every variable that a worker reads."""


_CONCURRENCY: Final = next(v for v in WORKER_VARIABLES if v.option == "concurrency")


def resolve_worker_settings(
    *,
    environ: Mapping[str, str],
    flags: WorkerOverrides = _NOTHING,
    given: WorkerOverrides = _NOTHING,
    concurrency_default: int = CONCURRENCY_DEFAULT,
) -> WorkerSettings:
    """Settle each setting by its first source: ``flags``, ``environ``, ``given`` (to the constructor), the default.

    ``concurrency_default``: what the numbers of ``queues=`` add up to.

    A variable with a bad value (an empty one included) is logged, one warning each, with what is used instead. A grace
    that is longer than the shutdown timeout is shortened to it.

    Raises:
        OptionError: a value in ``flags`` or ``given`` is impossible; the message names the flag or parameter.
    """
    values = {
        variable.field: _resolve(
            variable,
            getattr(flags, variable.option),
            environ.get(variable.name),
            getattr(given, variable.option),
            concurrency_default if variable is _CONCURRENCY else variable.default,
        )
        for variable in WORKER_VARIABLES
    }
    return _with_bounded_grace(msgspec.convert(values, WorkerSettings))


def is_concurrency_given(
    *, environ: Mapping[str, str], flags: WorkerOverrides = _NOTHING, given: WorkerOverrides = _NOTHING
) -> bool:
    """Whether any source says how many run at once; else that follows from the numbers of ``queues=``."""
    if flags.concurrency is not None or given.concurrency is not None:
        return True
    try:
        _CONCURRENCY.read_text(environ.get(_CONCURRENCY.name, ""))
    except ValueError:
        return False
    return True


def _resolve(variable: WorkerVariable, flag: object, text: str | None, given: object, default: Setting) -> Setting:
    if given is None:
        value, source = default, "the default"
    else:  # checked even where something else overrides it: what is wrong in code is wrong everywhere
        value, source = variable.read_code(given, variable.option), f"from {variable.option}="
    if flag is not None:
        return variable.read_code(flag, variable.flag)
    if text is None:
        return value
    try:
        return variable.read_text(text)
    except ValueError:
        _log.warning(
            "%s=%s: expected %s; using %s instead (%s)",
            variable.name,
            _shown(text),
            variable.expectation,
            str(value).lower() if isinstance(value, bool) else f"{value:g}",
            source,
        )
        return value


def _with_bounded_grace(settings: WorkerSettings) -> WorkerSettings:
    grace, timeout = settings.shutdown_grace_seconds, settings.shutdown_timeout_seconds
    if grace <= timeout:
        return settings
    if grace != SHUTDOWN_GRACE_DEFAULT.total_seconds():  # nobody asked for the default one: nothing to report
        _log.warning("shutdown_grace (%g s) is longer than shutdown_timeout; using %g s instead", grace, timeout)
    return msgspec.structs.replace(settings, shutdown_grace_seconds=timeout)


def dsn_from(dsn: str | None, environ: Mapping[str, str]) -> str | None:
    """Return the DSN to use: ``dsn``, else PQRUN_DSN, else DATABASE_URL; None if all are missing (or empty variables).

    ``postgres://`` and SQLAlchemy's ``postgresql+asyncpg://`` (any driver) become ``postgresql://``; ``embedded:PATH``
    stays as it is.

    Raises:
        ConfigurationError: it is no DSN of PostgreSQL; the message names the source and shows nothing of the rest.
    """
    if dsn is not None:
        return _normalised(dsn, "dsn")
    for name in ("PQRUN_DSN", "DATABASE_URL"):
        text = environ.get(name, "").strip()
        if text:
            return _normalised(text, name)
    return None


def require_dsn(dsn: str | None, environ: Mapping[str, str]) -> str:
    """Return what ``dsn_from`` finds; raises ``ConfigurationError`` with ``MISSING_DSN`` if it finds nothing."""
    found = dsn_from(dsn, environ)
    if found is None:
        raise ConfigurationError(MISSING_DSN)
    return found


def _normalised(dsn: object, source: str) -> str:
    if not isinstance(dsn, str):  # a URL object of a settings library, perhaps; its text is what we take
        came = f"a {type(dsn).__name__} (pass its text)"
    elif (url := normalised_dsn(dsn)) is not None:
        return url
    elif dsn.strip().startswith("embedded:"):
        return dsn.strip()
    elif match := _SCHEME.match(dsn.strip()):
        came = f"one that begins with {match['scheme']}://"
    else:  # shown no further: it may well be a password
        came = "text without a scheme" if dsn.strip() else "empty text"
    raise ConfigurationError(
        f"{source}: expected a DSN such as postgresql://user@host:5432/database (postgres:// and postgresql+asyncpg:// "
        f"are read as that) or embedded:PATH; got {came}"
    )


def _shown(value: object) -> str:
    """Show a setting on one line; ``repr`` escapes what would break it, and long values are cut."""
    if isinstance(value, int) and abs(value) >= 10**20:
        return "a number of more than 20 digits"
    text = str(value) if isinstance(value, timedelta) else repr(value)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"
