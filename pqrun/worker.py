"""Worker: wires the duties of ``run`` together, starts them, and stops them in order. It never touches a job.

Stopping: no more claims; what has not started goes back; running handlers have ``shutdown_grace`` to end; the rest are cancelled and given
back; everything is written; the registry is left. All of it is bounded by ``shutdown_timeout``, with the database up or not.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias

import msgspec
from typing_extensions import Unpack

from pqrun.config import WorkerOverrides, WorkerSettings
from pqrun.crew import Crew, leave_seconds
from pqrun.errors import ConfigurationError, DeclarationError, OptionError
from pqrun.job.definition import ScheduleDefinition
from pqrun.job.policy import BackoffPolicy, IdlePollPolicy, LoopErrorPolicy
from pqrun.job.serving import QueueChoice, Queues, Serving, check_concurrency, check_queues
from pqrun.job.storable import one_line
from pqrun.job.wanted import apply_wanted, read_orders
from pqrun.run.events import Events
from pqrun.run.handler import Handler
from pqrun.run.journal import Journal
from pqrun.run.lowlevel import CLEANUP, LowLevelHandler, wrap
from pqrun.run.middleware import Middleware
from pqrun.run.resources import LeftInTime
from pqrun.run.vitals import Vitals, WorkerState
from pqrun.store import PgJobStore
from pqrun.worker_options import (
    RETENTION_DEFAULT,
    STATISTICS_DEFAULT,
    WorkerOptions,
    check_worker_id,
    refuse_unknown,
    settings_of,
)

__all__ = ["Worker", "WorkerOptions"]

_LOGGER = logging.getLogger("pqrun")

RESOURCES_LEAST_SECONDS = 0.25
"""For leaving ``resources=`` where a stop has used up its time: most need no more."""

Resources: TypeAlias = Callable[[], AbstractAsyncContextManager[Any]]
"""What ``resources=`` is: a function that gives what a worker enters when it starts."""


class Worker:
    """Claims jobs, runs their handlers, and records what became of them.

    ``Worker(store=store, handlers={"send_email": handler}, concurrency=10)``, or ``jobs.worker(...)`` for the tasks of an app. A handler
    is ``async def handler(ctx: JobContext) -> dict | None`` (or a plain function, which runs in a thread). Run it by ``await
    worker.run()``, stopped by ``worker.stop()``, or inside a web application by ``lifespan=worker.lifespan``. ``events`` is the stream of
    what happens. Raises OptionError and ConfigurationError for what cannot work.
    """

    def __init__(
        self, *, store: PgJobStore, handlers: Mapping[str, LowLevelHandler], **options: Unpack[WorkerOptions]
    ) -> None:
        if not isinstance(store, PgJobStore):
            raise ConfigurationError(f"store= takes a PgJobStore, got {type(store).__name__}")
        if not isinstance(handlers, Mapping):
            raise DeclarationError(f"handlers= takes a dict of job_type and function, got {type(handlers).__name__}")
        if CLEANUP in handlers:
            raise DeclarationError(f"handlers[{CLEANUP!r}]: the name is reserved, every worker serves it already")
        wrapped = {name: wrap(name, function) for name, function in handlers.items()}
        self._configure(lambda: store, lambda: wrapped, lambda: None, options)

    @classmethod
    def for_tasks(
        cls,
        *,
        store: Callable[[], PgJobStore],
        handlers: Mapping[str, Handler],
        resources: Callable[[], Resources | None] = lambda: None,
        around: Callable[[], Sequence[Middleware[Any]]] = tuple,
        schedules: Callable[[], Sequence[ScheduleDefinition]] = tuple,
        app: str | None = None,
        **options: Unpack[WorkerOptions],
    ) -> "Worker":
        """Make a worker for an app's tasks; ``jobs.worker`` calls it. What it takes is looked at each time the worker starts."""
        worker = cls.__new__(cls)
        worker._configure(store, lambda: dict(handlers), resources, options)
        worker._outer_middleware = around
        worker._queues_of_tasks = "queues" not in options
        worker._schedules, worker._app = schedules, app
        return worker

    def _configure(
        self,
        store: Callable[[], PgJobStore],
        handlers: Callable[[], Mapping[str, Handler]],
        resources: Callable[[], Resources | None],
        options: WorkerOptions,
    ) -> None:
        refuse_unknown(options)
        self._find_store = store
        self._handlers = handlers
        self._resources = resources
        self._queues_of_tasks = False
        self._schedules: Callable[[], Sequence[ScheduleDefinition]] = tuple
        self._app: str | None = None
        self._leaves_schedules = False
        self._options = options
        self._outer_middleware: Callable[[], Sequence[Middleware[Any]]] = tuple  # of the app
        self.worker_id = check_worker_id(options.get("worker_id"))
        self.events = Events()
        journal = Journal()
        self.events.subscribe(journal, wants=journal.wants)
        self._settings, self._choice = settings_of(options)
        self._stops = 0  # calls of stop; the second hastens
        self._stop_changed: asyncio.Event | None = None  # of the running loop
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_running = False
        self._is_fetching = True  # False while an operator has it paused
        self._state: WorkerState = "off"
        self._opening: asyncio.Task[Any] | None = None  # the task that opens store and resources, until it has
        self._crew: Crew | None = None  # while it works
        self._stop_by: float | None = None  # loop time at which a stop under way must be over

    @property
    def store(self) -> PgJobStore:
        """The store it works on; raises ConfigurationError where an app has no DSN to make one of."""
        return self._find_store()

    @property
    def settings(self) -> WorkerSettings:
        """The options in force, after command line, environment and constructor."""
        return self._settings

    @property
    def vitals(self) -> Vitals:
        """What it is doing at this moment, in numbers; for metrics and health checks, in any thread."""
        crew, state = self._crew, self._state
        if crew is None:
            return Vitals(state=state, slots=self._settings.concurrency)
        return crew.vitals(state)

    def override(self, flags: WorkerOverrides) -> None:
        """Let command line flags win over environment and constructor; before ``run``."""
        self._settings, self._choice = settings_of(self._options, flags)

    def set_queues(self, queues: Queues) -> None:
        """Serve other queues from now on, or with other numbers: takes what ``queues=`` takes. From any thread, also while it runs.

        Running jobs go on, beyond a lower number too; claims that have not started in a queue no longer served go back. It holds until
        the next change, for later runs too. Raises OptionError.
        """
        asked = check_queues(queues)
        self._change(QueueChoice(asked.queues, asked.numbers, self._choice.concurrency))

    def set_concurrency(self, concurrency: int) -> None:
        """Run at most so many handlers at once from now on, all together; else as ``set_queues``. Raises OptionError."""
        self._change(msgspec.structs.replace(self._asked(), concurrency=check_concurrency(concurrency)))

    def _heed_wanted(self, text: str) -> None:
        """Follow what an operator has written into the registry; the same may come again, with something new beside it."""
        orders = read_orders(text)
        if orders.drain and not self._stops:  # a second stop would cut the grace short
            _LOGGER.info("worker %s was told to drain", one_line(self.worker_id))
            self.stop()
        asked = self._asked()
        try:
            choice = apply_wanted(text, asked)
        except OptionError as error:
            _LOGGER.warning("worker %s stays as it is: %s", one_line(self.worker_id), error)
            choice = asked
        if orders.fetching is not None and orders.fetching != self._is_fetching:
            self._is_fetching = orders.fetching
            self._serve()
        if choice != asked:
            self._change(choice)

    def _change(self, choice: QueueChoice) -> None:
        self._settings = msgspec.structs.replace(self._settings, concurrency=choice.serving().concurrency)
        self._choice, self._queues_of_tasks = choice, False
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the next run has it
                loop.call_soon_threadsafe(self._serve)

    def _serve(self) -> None:
        if self._crew is not None:
            self._crew.serve(self._serving())

    def _serving(self) -> Serving:
        return msgspec.structs.replace(self._asked().serving(), fetching=self._is_fetching)

    def _asked(self) -> QueueChoice:
        """What is to be served: where nobody named queues, those of the tasks that there are now."""
        if not self._queues_of_tasks:
            return self._choice
        of_tasks = {handler.queue for handler in self._handlers().values() if handler.queue is not None}
        return msgspec.structs.replace(self._choice, queues=tuple(sorted({"default"} | of_tasks)))

    async def run(self) -> None:
        """Work until ``stop`` is called; opens the store if nobody has. Returns at once with ``enabled=False``.

        Raises DatabaseUnavailableError and SchemaError at the start; later a database that is away is waited for.
        """
        await self._run(asyncio.Event())

    def stop(self) -> None:
        """Stop working, from any thread or a signal handler; ``run`` returns when all is written. A second call cuts the grace short."""
        self._stops += 1
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: it has stopped
                loop.call_soon_threadsafe(self._heed_stop)

    async def hold_beats(self) -> int:
        """Give no sign of life from now on, as a process that hangs, and return this worker's row of the registry.

        For tests of what follows, see ``pqrun.testing.lose_worker``; ``resume_beats`` ends it. Raises ConfigurationError unless it runs.
        """
        row = None if self._crew is None else await self._crew.hold_beats()
        if row is None:
            self.resume_beats()
            raise ConfigurationError("this worker does not run: start it first, 'async with worker.lifespan():'")
        return row

    def leave_schedules(self) -> None:
        """Declare and fire no schedules from the next start on: for tests, whose jobs are only those that they defer, see ``drain``."""
        self._leaves_schedules = True

    def resume_beats(self) -> None:
        """Give signs of life again; a worker that was taken for dead meanwhile registers anew."""
        if self._crew is not None:
            self._crew.resume_beats()

    def _heed_stop(self) -> None:
        if self._crew is not None:
            self._crew.stop_soon()  # at once: a job that started while the stop makes its way would be waited for
        if self._stop_changed is not None:
            self._stop_changed.set()
        if self._opening is not None:  # nothing is in hand yet, and a database that does not answer may take long
            self._opening.cancel()

    def lifespan(self, asgi_app: object = None) -> AbstractAsyncContextManager[None]:  # noqa: ARG002  # the frameworks' protocol
        """Work while a web application runs: ``FastAPI(lifespan=worker.lifespan)``, Starlette the same, ``Litestar(lifespan=[…])``."""
        return self._lifespan()

    @asynccontextmanager
    async def _lifespan(self) -> AsyncIterator[None]:
        async with self._opened_store():
            if not self._settings.enabled:
                yield
                return
            started = asyncio.Event()
            task = asyncio.create_task(self._run(started), name="pqrun worker")
            waiting = asyncio.create_task(started.wait())
            try:
                await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
                if task.done():
                    await task  # it failed at its start: say why
                yield
            finally:
                waiting.cancel()
                if not task.done():  # else the call would count for the next run
                    self.stop()
                await task

    async def _run(self, started: asyncio.Event) -> None:
        if not self._settings.enabled:
            return
        if self._is_running:
            raise ConfigurationError("this worker runs already; make a second one for a second run at the same time")
        self._is_running = self._is_fetching = True
        self._state = "starting"
        self._loop = asyncio.get_running_loop()
        self._stop_changed = asyncio.Event()
        self._opening = opening = asyncio.current_task()
        try:
            if not self._stops:
                async with self._opened_store(), self._opened_resources() as state:
                    await self.store.check_schema()
                    self._opening = None
                    await self._work(state, started)
        except asyncio.CancelledError:
            # By ``stop``, while opening: then it is no cancellation of whoever awaits us.
            if self._opening is None or not self._stops or opening is None or opening.uncancel() > 0:
                raise
        finally:
            self._is_running = False
            self._state = "off"
            self._loop = self._stop_changed = self._opening = self._crew = self._stop_by = None
            self._stops = 0

    async def _work(self, state: object, started: asyncio.Event) -> None:
        middleware = (*self._outer_middleware(), *self._options.get("middleware", ()))
        handlers = {name: handler.surrounded(middleware) for name, handler in self._handlers().items()}
        crew = Crew(
            self.store,
            handlers=handlers,
            serving=self._serving(),
            on_wanted=self._heed_wanted,
            worker_id=self.worker_id,
            state=state,
            settings=self._settings,
            backoff=self._options.get("backoff") or BackoffPolicy(),
            idle_policy=self._options.get("idle_policy") or IdlePollPolicy(),
            policy=self._options.get("loop_error_policy") or LoopErrorPolicy(),
            retention=self._options.get("retention", RETENTION_DEFAULT),
            is_ack_sync=self._options.get("ack") == "sync",
            direct=self._options.get("direct_dsn"),
            events=self.events,
            schedules=None if self._leaves_schedules else self._schedules(),
            app=self._app,
            statistics=self._options.get("statistics", STATISTICS_DEFAULT),
        )
        self._crew = crew
        try:
            await self._until(1, crew.start())
            self._state = "working"
            started.set()
            await self._until(1, None)
        except asyncio.CancelledError:
            self._stops += 2  # whoever cancels us does not want to wait for the grace
            await self._stop_crew(crew)
            raise
        await self._stop_crew(crew)

    async def _stop_crew(self, crew: Crew) -> None:
        self._state = "stopping"
        self._stop_by = asyncio.get_running_loop().time() + self._settings.shutdown_timeout_seconds
        await crew.stop(self._hastened())

    async def _until(self, stops: int, other: "Awaitable[None] | None") -> None:
        """Wait for ``other``, or until ``stop`` was called so often."""
        task = None if other is None else asyncio.ensure_future(other)
        try:
            while self._stops < stops and not (task is not None and task.done()):
                assert self._stop_changed is not None  # noqa: S101  # set for as long as this runs
                self._stop_changed.clear()
                changed = asyncio.ensure_future(self._stop_changed.wait())
                try:
                    waited = {changed} if task is None else {changed, task}
                    await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    changed.cancel()
        finally:
            if task is not None and not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        if task is not None and task.done() and not task.cancelled():
            task.result()

    def _hastened(self) -> "Callable[[], Awaitable[None]]":
        return lambda: self._until(2, None)

    @asynccontextmanager
    async def _opened_store(self) -> AsyncIterator[None]:
        if self.store.is_open:
            yield
            return
        await self.store.start()
        try:
            yield
        finally:
            # The worker has ended: this is the last of the shutdown's time, and a database that hangs must not prolong it.
            await self.store.close(max(leave_seconds(self._settings.shutdown_timeout_seconds) / 4, 0.25))

    @asynccontextmanager
    async def _opened_resources(self) -> AsyncIterator[object]:
        resources = self._resources()
        if resources is None:
            yield None
            return
        async with LeftInTime(resources(), self._seconds_left) as state:
            yield state

    def _seconds_left(self) -> float:
        """Return what is left of the shutdown's time for resources, less what the store takes to close: all of it after a failed start."""
        seconds = self._settings.shutdown_timeout_seconds
        now = asyncio.get_running_loop().time()
        until = now + seconds if self._stop_by is None else self._stop_by
        return max(until - now - leave_seconds(seconds) / 4, RESOURCES_LEAST_SECONDS)
