"""``pqrun worker module:app``: run an app's jobs until SIGTERM or SIGINT.

A signal stops the worker whenever it comes: while the module is imported the process ends at once, while the worker starts the start is
given up, later it stops in order, and a second signal cuts the grace short. Each of these is exit code 0.
"""

import asyncio
import enum
import logging
import os
from collections.abc import Callable
from types import FrameType
from typing import Annotated, Any

import typer

from pqrun.app import App
from pqrun.cli.queues import parse_queues
from pqrun.cli.signals import handled, heard
from pqrun.cli.target import load_app
from pqrun.cli.watching import Watching, watched
from pqrun.config import WorkerOverrides, WorkerSettings, is_concurrency_given, resolve_worker_settings
from pqrun.contrib.jsonlog import JsonFormatter
from pqrun.errors import MissingExtraError
from pqrun.health.server import BLOCKED_AFTER_DEFAULT
from pqrun.job.serving import check_queues
from pqrun.run.events import Event, WorkerStarted, WorkerStopped, WorkerStopping
from pqrun.worker import Worker, WorkerOptions

__all__ = ["LOG_FORMAT", "worker"]

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

_LOGGER = logging.getLogger("pqrun")


class LogLevel(enum.StrEnum):
    """Values of ``--log-level``."""

    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


class LogFormat(enum.StrEnum):
    """Values of ``--log-format``."""

    TEXT = "text"
    JSON = "json"


Target = Annotated[str, typer.Argument(metavar="MODULE:APP", help="The App, such as shop.jobs:jobs.")]
Concurrency = Annotated[
    int | None,
    typer.Option(help="Jobs at once, all together (WORKER_CONCURRENCY; 1, or what the numbers of --queues add up to)."),
]
Queues = Annotated[
    str | None,
    typer.Option(
        metavar="A,B:2",
        help="Queues to serve (default: those of the app's tasks); a number gives a queue so many jobs at once of its own.",
    ),
]
WorkerId = Annotated[str | None, typer.Option(help="A readable name, shown in locked_by (default: host:pid).")]
Enabled = Annotated[bool | None, typer.Option(help="Run at all (WORKER_ENABLED; true).")]
ReaperEnabled = Annotated[bool | None, typer.Option(help="Recover jobs of dead workers (WORKER_REAPER_ENABLED; true).")]
ReapInterval = Annotated[
    float | None, typer.Option(help="Seconds between full sweeps for stale jobs (WORKER_REAP_INTERVAL; 60).")
]
StaleTimeout = Annotated[
    float | None, typer.Option(help="Seconds until an ownerless running job is stale (WORKER_STALE_TIMEOUT; 1200).")
]
ShutdownGrace = Annotated[
    float | None, typer.Option(help="Seconds that running jobs may go on (WORKER_SHUTDOWN_GRACE; 10).")
]
ShutdownTimeout = Annotated[
    float | None, typer.Option(help="Seconds that stopping may take (WORKER_SHUTDOWN_TIMEOUT; 30).")
]
Level = Annotated[LogLevel, typer.Option(case_sensitive=False, help="What goes to stderr, one line each.")]
Format = Annotated[LogFormat, typer.Option(case_sensitive=False, help="Lines of text, or a JSON object per line.")]
Uvloop = Annotated[bool, typer.Option("--uvloop", help="Run on uvloop (pip install 'pqrun[uvloop]').")]


HealthPort = Annotated[
    int | None, typer.Option(min=0, max=65_535, help="Serve /livez, /readyz and /metrics over HTTP (0: any free port).")
]
HealthHost = Annotated[str, typer.Option(help="Where to listen for them; whoever can connect can read.")]
HealthBlockedAfter = Annotated[
    float, typer.Option(min=0.1, help="Seconds that the event loop may stand still before /livez fails.")
]


def worker(
    target: Target,
    concurrency: Concurrency = None,
    queues: Queues = None,
    worker_id: WorkerId = None,
    enabled: Enabled = None,
    reaper_enabled: ReaperEnabled = None,
    reap_interval: ReapInterval = None,
    stale_timeout: StaleTimeout = None,
    shutdown_grace: ShutdownGrace = None,
    shutdown_timeout: ShutdownTimeout = None,
    log_level: Level = LogLevel.INFO,
    log_format: Format = LogFormat.TEXT,
    uvloop: Uvloop = False,
    health_port: HealthPort = None,
    health_host: HealthHost = "127.0.0.1",
    health_blocked_after: HealthBlockedAfter = BLOCKED_AFTER_DEFAULT,
) -> None:
    """Run the jobs of an app until SIGTERM or SIGINT; a second signal cuts the grace of running jobs short."""
    _set_up_log(log_level, log_format)
    flags = WorkerOverrides(
        enabled=enabled,
        enable_reaper=reaper_enabled,
        concurrency=concurrency,
        reap_stale_every_seconds=reap_interval,
        default_stale_after=stale_timeout,
        shutdown_grace=shutdown_grace,
        shutdown_timeout=shutdown_timeout,
    )
    with handled(_leave):
        is_clean = _work(
            target,
            flags,
            Watching(health_port, health_host, health_blocked_after),
            queues=queues,
            worker_id=worker_id,
            loop_factory=_uvloop() if uvloop else None,
        )
    if not is_clean:
        raise typer.Exit(1)


def _set_up_log(level: LogLevel, log_format: LogFormat) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format is LogFormat.JSON else logging.Formatter(LOG_FORMAT))
    logging.basicConfig(level=level.value, handlers=[handler])


def _work(
    target: str,
    flags: WorkerOverrides,
    watching: Watching,
    *,
    queues: str | None,
    worker_id: str | None,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None,
) -> bool:
    # The environment is read here, once, with the flags known: a bad variable is told once, with what is really used.
    named = None if queues is None else parse_queues(queues)
    total = check_queues(named).total
    settings = resolve_worker_settings(environ=os.environ, flags=flags, concurrency_default=total)
    is_given = is_concurrency_given(environ=os.environ, flags=flags)
    app = load_app(target)
    if not settings.enabled:
        _LOGGER.info("the worker is switched off (WORKER_ENABLED or --no-enabled): nothing to do")
        return True
    built = _build(app, _as_overrides(settings, is_given), queues=named, worker_id=worker_id)
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(_run(built, app, watching))


def _leave(_number: int, _frame: FrameType | None) -> None:
    _LOGGER.info("stopped before the worker had started")
    raise SystemExit(0)


def _uvloop() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop  # an extra
    except ImportError:
        raise MissingExtraError("--uvloop", "uvloop") from None
    return uvloop.new_event_loop


def _build(
    app: App[Any], settings: WorkerOverrides, *, queues: dict[str, int | None] | None, worker_id: str | None
) -> Worker:
    if not app.handlers:
        _LOGGER.warning("the app has no tasks: import the modules that declare them where the app is made")
    options: WorkerOptions = {"environ": {}}
    if queues is not None:
        options["queues"] = queues
    if worker_id is not None:
        options["worker_id"] = worker_id
    built = app.worker(**options)
    built.override(settings)
    return built


def _as_overrides(settings: WorkerSettings, is_concurrency_given: bool) -> WorkerOverrides:
    return WorkerOverrides(
        enabled=settings.enabled,
        enable_reaper=settings.enable_reaper,
        concurrency=settings.concurrency if is_concurrency_given else None,
        reap_stale_every_seconds=settings.reap_interval_seconds,
        default_stale_after=settings.stale_timeout_seconds,
        shutdown_grace=settings.shutdown_grace_seconds,
        shutdown_timeout=settings.shutdown_timeout_seconds,
    )


async def _run(worker: Worker, app: App[Any], watching: Watching) -> bool:
    """Run until a signal; return whether everything was written in time."""
    is_up = False
    is_clean = True

    def listen(event: Event) -> None:
        nonlocal is_up, is_clean
        match event:
            case WorkerStarted() | WorkerStopping():
                is_up = True
            case WorkerStopped(clean=clean):
                is_clean = clean
            case _:
                pass

    worker.events.subscribe(listen)
    with heard(asyncio.get_running_loop(), lambda _number: worker.stop()):
        async with watched(worker, app, watching):
            await worker.run()
    if not is_up:
        _LOGGER.info("stopped before the worker had started")
    return is_clean
