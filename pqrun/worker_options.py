"""The options of a worker: what they are, and how they are checked and merged with the environment."""

import os
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, cast

from typing_extensions import TypedDict

from pqrun.config import DURATION_MAX, WorkerOverrides, WorkerSettings, is_concurrency_given, resolve_worker_settings
from pqrun.errors import ArgumentsError, OptionError
from pqrun.job.policy import BackoffPolicy, IdlePollPolicy, LoopErrorPolicy
from pqrun.job.serving import QueueChoice, Queues, check_queues
from pqrun.job.storable import unstorable_reason
from pqrun.run.middleware import Middleware, check_middleware
from pqrun.store.ports import Connection

__all__ = [
    "RETENTION_DEFAULT",
    "STATISTICS_DEFAULT",
    "WorkerOptions",
    "check_worker_id",
    "refuse_unknown",
    "settings_of",
]

WORKER_ID_MAX = 200

RETENTION_DEFAULT = timedelta(days=7)
"""Finished jobs are kept for so long."""

STATISTICS_DEFAULT = timedelta(days=7)
"""Rows of statistics are kept for so long."""

STATISTICS_MAX = timedelta(days=400)
"""A row per minute, worker, queue and task: more history than a year belongs elsewhere."""

_POLICIES = {"backoff": BackoffPolicy, "idle_policy": IdlePollPolicy, "loop_error_policy": LoopErrorPolicy}


class WorkerOptions(TypedDict, total=False):
    """The options of a worker, the same for ``Worker(...)`` and ``jobs.worker(...)``; WORKER_* variables override those they name."""

    concurrency: int
    """Handlers that run at once, all together (1; with numbers in ``queues``: as many as these add up to)."""
    enabled: bool
    """False: ``run`` returns, ``lifespan`` only opens the store (True)."""
    enable_reaper: bool
    """False: nothing here recovers jobs of dead workers (True)."""
    backoff: BackoffPolicy
    """Delays between attempts, for tasks without their own (1 min, 5 min, 30 min, 2 h, 6 h)."""
    idle_policy: IdlePollPolicy
    """Sleep between looks at an empty queue (1 s, 2 s, 5 s, 10 s); a notification ends it."""
    loop_error_policy: LoopErrorPolicy
    """Sleep after an error of a loop, never below a floor that grows to 5 s (0)."""
    reap_stale_every_seconds: float | timedelta
    """Between two full sweeps (60 s); dead workers are looked for every second."""
    default_stale_after: float | timedelta
    """Age at which a RUNNING row without timeout that belongs to no registered worker is taken back (20 min)."""
    shutdown_grace: float | timedelta
    """How long running handlers may go on after ``stop`` (10 s)."""
    shutdown_timeout: float | timedelta
    """How long the whole stop may take (30 s)."""
    worker_id: str
    """A readable name, shown in ``locked_by``; need not be unique (host and process id)."""
    queues: Queues
    """Queues to serve, None: all (of an app: "default" and those of its tasks; low-level: all). A dict gives a queue slots of its own."""
    retention: timedelta | None
    """Age at which finished jobs are deleted; None keeps them (7 days)."""
    statistics: timedelta | None
    """Count per minute, and keep that for so long; None counts nothing (7 days)."""
    ack: Literal["batch", "sync"]
    """"sync": a slot starts its next job only when the last one's end is written; a crash then repeats no finished work ("batch")."""
    direct_dsn: str | Callable[[], Awaitable[Connection]]
    """A direct connection beside a handed-in pool or a pooler, for liveness and notifications."""
    middleware: Sequence[Middleware[Any]]
    """Around each execution, the first outermost; of an app's worker: inside the middleware of the app (none)."""
    environ: Mapping[str, str]
    """Where WORKER_* variables are read from (the process environment)."""


def settings_of(options: WorkerOptions, flags: WorkerOverrides | None = None) -> tuple[WorkerSettings, QueueChoice]:
    """Merge defaults, constructor, environment and command line; return also what is to be served. Raises OptionError."""
    given = WorkerOverrides(
        **cast("dict[str, Any]", {name: options.get(name) for name in WorkerOverrides.__struct_fields__})
    )
    environ = options.get("environ")
    environ = os.environ if environ is None else environ
    asked = check_queues(options.get("queues"))
    flags = flags or WorkerOverrides()
    settings = resolve_worker_settings(environ=environ, given=given, flags=flags, concurrency_default=asked.total)
    is_given = is_concurrency_given(environ=environ, given=given, flags=flags)
    choice = QueueChoice(asked.queues, asked.numbers, settings.concurrency if is_given else None)
    choice.serving()  # what cannot be shared out is told here
    return settings, choice


def refuse_unknown(options: WorkerOptions) -> None:
    """Raise ArgumentsError for an option that no worker has, and OptionError for a value that cannot be one."""
    for name, value in options.items():
        if name not in WorkerOptions.__annotations__:
            raise ArgumentsError(
                f"unknown option of a worker: {name}; it takes {', '.join(WorkerOptions.__annotations__)}"
            )
        if name in _POLICIES and not isinstance(value, _POLICIES[name]):
            came = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
            raise OptionError(f"{name} must be an instance of a {_POLICIES[name].__name__}, got {came}")
        if name == "direct_dsn" and not (value is None or isinstance(value, str) or callable(value)):
            raise OptionError(
                f"direct_dsn must be a DSN or an async function that returns a connection, got {type(value).__name__}"
            )
        if name == "middleware":
            _check_all(value)
        if name == "statistics":
            _check_statistics(value)
        if name == "ack" and value not in ("batch", "sync"):
            raise OptionError(f'ack must be "batch" or "sync", got {value!r}')
        if name == "retention" and not (
            value is None or (isinstance(value, timedelta) and timedelta(0) <= value <= DURATION_MAX)
        ):
            raise OptionError(
                f"retention must be a timedelta from 0 to {DURATION_MAX.days} days, or None to keep all, got {value!r}"
            )


def _check_statistics(value: object) -> None:
    if value is None or (isinstance(value, timedelta) and timedelta(0) < value <= STATISTICS_MAX):
        return
    raise OptionError(
        f"statistics must be a timedelta of up to {STATISTICS_MAX.days} days, or None to count nothing, got {value!r:.80}"
    )


def _check_all(middleware: object) -> None:
    if not isinstance(middleware, Sequence) or isinstance(middleware, str):
        raise OptionError(f"middleware must be a list of functions, got {type(middleware).__name__}")
    for function in middleware:
        check_middleware(function)


def check_worker_id(given: object) -> str:
    """Return the name of a worker, by default that of its host and process; raises OptionError."""
    if given is None:
        return f"{socket.gethostname()}:{os.getpid()}"
    if not isinstance(given, str) or not 1 <= len(given) <= WORKER_ID_MAX or unstorable_reason(given) is not None:
        raise OptionError(
            f"worker_id must be a text of 1 to {WORKER_ID_MAX} characters that PostgreSQL can store, got {given!r:.80}"
        )
    return given
