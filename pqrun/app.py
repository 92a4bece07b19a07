"""``App``: where tasks are declared, and what opens the store that they write to."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from types import MappingProxyType, TracebackType
from typing import Any, Concatenate, Generic, Never, ParamSpec, Self, TypeVar, overload

from typing_extensions import TypeVar as TypeVarWithDefault
from typing_extensions import Unpack

from pqrun.config import dsn_from, require_dsn
from pqrun.declaration import DeclaredOptions, ResultValue, check_declared, declare
from pqrun.errors import ArgumentsError, ConfigurationError, DeclarationError, NotOpenError
from pqrun.handle import Call, JobHandle
from pqrun.job.definition import ScheduleDefinition
from pqrun.job.options import check_name
from pqrun.job.schedule import CatchUp, Overlap
from pqrun.job.storable import dump_object
from pqrun.run.context import JobContext
from pqrun.run.handler import Handler
from pqrun.schedules import Schedules, define, define_for_task
from pqrun.store import PgJobStore
from pqrun.store.ports import Connection, Pool
from pqrun.task import DeclarePayload, DeclareTask, Task
from pqrun.worker import Worker, WorkerOptions

__all__ = ["App"]

P = ParamSpec("P")
M = TypeVar("M")
R = TypeVar("R", bound=ResultValue)
V = TypeVar("V")
S = TypeVarWithDefault("S", default=Any)

SCHEMA_DEFAULT = "pqrun"
NAME_DEFAULT = "app"

NOT_OPEN = (
    "the app is not open. In a script: 'async with jobs: ...'; in a web application: FastAPI(lifespan=jobs.lifespan) "
    "(Starlette the same, Litestar(lifespan=[jobs.lifespan])); a running worker opens its own"
)


class App(Generic[S]):
    """The tasks of an application and the database they live in.

    ``dsn``: a PostgreSQL URL, or ``embedded:PATH`` for a database of pqrun's own; or ``pool``: an asyncpg pool that stays yours to
    close; or ``store``: a ``PgJobStore``. With none of them PQRUN_DSN counts, then DATABASE_URL, read when the app is opened.
    ``schema``: where the tables are, ``"pqrun"`` by default. ``resources``: an async context manager function that each worker
    enters once; handlers get what it yields as ``ctx.state``. ``name``: tells apps that share a schema apart, by whose code a schedule
    is declared; ``"app"`` by default. Raises ConfigurationError for options that exclude each other.
    ::

        jobs = App(dsn="postgresql://localhost/shop")

        @jobs.task(payload=Welcome, max_attempts=5)
        async def send_email(ctx: JobContext, payload: Welcome) -> Sent: ...

        async with jobs:
            job = await send_email.defer(user_id=123)
    """

    @overload
    def __init__(
        self: "App[None]",
        *,
        dsn: str | None = None,
        pool: Pool | None = None,
        store: PgJobStore | None = None,
        schema: str = SCHEMA_DEFAULT,
        name: str = NAME_DEFAULT,
    ) -> None: ...
    @overload
    def __init__(
        self,
        *,
        dsn: str | None = None,
        pool: Pool | None = None,
        store: PgJobStore | None = None,
        schema: str = SCHEMA_DEFAULT,
        name: str = NAME_DEFAULT,
        resources: Callable[[], AbstractAsyncContextManager[S]],
    ) -> None: ...
    def __init__(
        self,
        *,
        dsn: str | None = None,
        pool: Pool | None = None,
        store: PgJobStore | None = None,
        schema: str = SCHEMA_DEFAULT,
        name: str = NAME_DEFAULT,
        resources: Callable[[], AbstractAsyncContextManager[S]] | None = None,
    ) -> None:
        _refuse_several(dsn=dsn, pool=pool, store=store)
        if store is not None and schema != SCHEMA_DEFAULT:
            raise ConfigurationError("App(store=) has its schema already; give schema= to the PgJobStore")
        _check_resources(resources)
        # Checked here, so that a malformed DSN is told where it is written; the environment is read when the app is opened.
        self._dsn = None if dsn is None else dsn_from(dsn, {})
        self._pool = pool
        self._store = store
        self._schema = schema
        self.name = check_name(name)
        """Whose code a schedule is declared by, among apps that share a schema."""
        self._resources = resources
        self._tasks: dict[str, Task[..., Any, Any, S]] = {}
        self._handlers: dict[str, Handler] = {}
        self._schedules: dict[str, ScheduleDefinition] = {}
        # Written by __aenter__ and __aexit__ under the lock: a web process may open the app and a worker of its own too.
        self._openings = 0
        self._opened_by_us = False
        self._lock: asyncio.Lock | None = None

    @property
    def store(self) -> PgJobStore:
        """The store, made when it is first asked for, opened by ``async with jobs``; raises ConfigurationError without a DSN."""
        if self._store is None:
            if self._pool is not None:
                self._store = PgJobStore(pool=self._pool, schema=self._schema)
            else:
                self._store = PgJobStore(require_dsn(self._dsn, os.environ), schema=self._schema)
        return self._store

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """For each declared job_type, what a worker needs to run it; a view, which shows tasks declared later too."""
        return MappingProxyType(self._handlers)

    @overload
    def task(self, function: Callable[Concatenate[JobContext[S], P], Awaitable[R]], /) -> Task[P, Never, R, S]: ...
    @overload
    def task(self, function: Callable[Concatenate[JobContext[S], P], R], /) -> Task[P, Never, R, S]: ...
    @overload
    def task(
        self,
        /,
        *,
        payload: Callable[P, M],
        dedupe_key: str | Callable[[M], str] | None = None,
        **options: Unpack[DeclaredOptions],
    ) -> DeclarePayload[P, M, S]: ...
    @overload  # a TypedDict is no constructor for every checker: its instances only
    def task(
        self,
        /,
        *,
        payload: type[M],
        dedupe_key: str | Callable[[M], str] | None = None,
        **options: Unpack[DeclaredOptions],
    ) -> DeclarePayload[[M], M, S]: ...
    @overload  # no function as dedupe_key here: it would make checkers solve P before they see the task
    def task(self, /, *, dedupe_key: str | None = None, **options: Unpack[DeclaredOptions]) -> DeclareTask[S]: ...
    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        payload: Any = None,
        dedupe_key: str | Callable[[Any], str] | None = None,
        **options: Unpack[DeclaredOptions],
    ) -> Any:
        """Declare a task: ``@jobs.task(payload=Model, ...)``, ``@jobs.task(...)`` or a bare ``@jobs.task``.

        ``payload``: the model of the payload, as the function's parameter after ``ctx``; without it the parameters after ``ctx``
        are the payload (one key each; a single parameter annotated with a model is stored as that model). ``dedupe_key``: a
        template over payload fields such as ``"welcome:{user_id}"``, or, with ``payload=``, a function of the payload. ``name``:
        the job_type, by default the function's name. ``queue``, ``priority``, ``max_attempts``, ``timeout``, ``backoff``: see
        ``TaskOptions``. ``cron`` (or ``every``), ``tz``, ``catch_up``, ``overlap``, ``jitter``: a schedule of the task's name, for tasks
        without required payload; see ``schedule``. Raises DeclarationError (a TypeError), naming function, file and line, and OptionError.
        """
        check_declared(options, payload=payload, dedupe_key=dedupe_key)

        def register(function: Callable[..., Any]) -> Task[..., Any, Any, S]:
            declared = declare(function, payload=payload, dedupe_key=dedupe_key, **options)
            other = self._tasks.get(declared.name)
            if other is not None:
                raise DeclarationError(
                    f"the name {declared.name!r} is taken by {other.where}; give name= [{declared.where}]"
                )
            task: Task[..., Any, Any, S] = Task(declared, self._opened_store)
            definition = define_for_task(declared, options)
            if definition is not None:
                self._declare_schedule(definition)
            self._tasks[declared.name] = task
            self._handlers[declared.name] = task.handler
            return task

        return register if function is None else register(function)

    @overload
    def schedule(
        self,
        name: str,
        call: Call[object],
        *,
        cron: str,
        tz: str = "UTC",
        catch_up: CatchUp = "one",
        overlap: Overlap = "allow",
        jitter: timedelta = timedelta(0),
        paused: bool = False,
    ) -> ScheduleDefinition: ...
    @overload
    def schedule(
        self,
        name: str,
        call: Call[object],
        *,
        every: timedelta,
        catch_up: CatchUp = "one",
        overlap: Overlap = "allow",
        jitter: timedelta = timedelta(0),
        paused: bool = False,
    ) -> ScheduleDefinition: ...
    def schedule(self, name: str, call: Call[object], *, paused: bool = False, **options: Any) -> ScheduleDefinition:
        """Declare a schedule: ``jobs.schedule("nightly", report.call(day="yesterday"), cron="30 2 * * *", tz="Europe/Berlin")``.

        ``name``: unique in the schema. ``call``: what each firing inserts, with its options. ``cron``: five fields, or six with seconds
        first, on the wall clock of ``tz``; or ``every``: real time. ``catch_up``: what becomes of firings that no worker was there for,
        ``"skip"``, ``"one"`` for all of them, or ``"all"``. ``overlap``: ``"skip"`` makes no job while the last one is active. ``jitter``:
        puts each job off by up to so much. ``paused``: it begins paused. Workers of this app store it when they start, if it differs from
        the last code seen. Raises OptionError, ArgumentsError and DeclarationError.
        """
        definition = define(name, call, options, is_paused=paused)
        if definition.job.job_type not in self._tasks:
            raise DeclarationError(f"schedule {name!r}: {definition.job.job_type!r} is no task of this app")
        self._declare_schedule(definition)
        return definition

    def _declare_schedule(self, definition: ScheduleDefinition) -> None:
        if definition.name in self._schedules:
            raise DeclarationError(
                f"the name {definition.name!r} is taken by another schedule of this app; give another"
            )
        self._schedules[definition.name] = definition

    @property
    def schedules(self) -> Schedules:
        """The stored schedules, to list, add, edit, pause, resume, run and remove; the app must be open."""
        return Schedules(self._opened_store)

    def call_by_name(self, job_type: str, payload: Mapping[str, object]) -> Call[object]:
        """Return a call of the task of this name with a payload as it is stored (a JSON object), checked against its model.

        Raises ArgumentsError for a task that the app does not have, and PayloadError.
        """
        task = self._tasks.get(job_type)
        if task is None:
            known = ", ".join(sorted(self._tasks)) or "none"
            raise ArgumentsError(f"the app has no task {job_type!r:.80}; it has {known}")
        return task.call_stored(dump_object(payload, "payload"))

    async def defer_many(self, calls: Iterable[Call[V]], *, connection: Connection | None = None) -> list[JobHandle[V]]:
        """Write many jobs, of any mix of tasks, in one transaction with few round trips; return their handles in order.

        ``calls``: what ``task.call(...)`` gave. ``connection``: write in its open transaction instead of one of our own. Calls with
        equal dedupe keys share one job. Raises ArgumentsError, naming the index, for what is no call or carries a connection of
        its own, and otherwise what ``defer`` raises; then nothing was written.
        """
        checked = _checked_calls(calls)
        store = self._opened_store()
        if not checked:
            return []
        enqueued = await store.enqueue_jobs([call.job for call in checked], connection=connection)
        return [
            JobHandle(one.id, one.created, call.decode, self._opened_store)
            for call, one in zip(checked, enqueued, strict=True)
        ]

    def worker(self, **options: Unpack[WorkerOptions]) -> Worker:
        """Return a worker that runs this app's tasks; takes the options of ``Worker``.

        It serves "default" and the queues of the tasks, unless ``queues=`` says else. Import the modules that declare them
        before it starts.
        """
        return Worker.for_tasks(
            store=lambda: self.store,
            handlers=self.handlers,
            resources=self._resources,
            schedules=lambda: tuple(self._schedules.values()),
            app=self.name,
            **options,
        )

    def lifespan(self, asgi_app: object = None) -> AbstractAsyncContextManager[None]:  # noqa: ARG002  # the frameworks' protocol
        """Open the app for as long as a web application runs; no jobs run in it.

        For ``FastAPI(lifespan=jobs.lifespan)``, Starlette the same, ``Litestar(lifespan=[jobs.lifespan])``.
        """
        return self._lifespan()

    @asynccontextmanager
    async def _lifespan(self) -> AsyncIterator[None]:
        async with self:
            yield

    async def __aenter__(self) -> Self:
        async with self._exclusive():
            if self._openings == 0:
                # A store that its owner opened is its owner's to close.
                self._opened_by_us = not self.store.is_open
                if self._opened_by_us:
                    await self.store.start()
            self._openings += 1
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        async with self._exclusive():
            self._openings -= 1
            if self._openings == 0 and self._opened_by_us:
                await self.store.close()

    def _exclusive(self) -> asyncio.Lock:
        # A lock belongs to the loop it was waited for in, and a module-level app outlives ``asyncio.run``.
        if self._lock is None or (self._openings == 0 and not self._lock.locked()):
            self._lock = asyncio.Lock()
        return self._lock

    def _opened_store(self) -> PgJobStore:
        if not self.store.is_open:
            raise NotOpenError(NOT_OPEN)
        return self.store

    def __repr__(self) -> str:
        return f"<App with {len(self._tasks)} tasks>"


def _refuse_several(**given: object) -> None:
    names = [f"{name}=" for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise ConfigurationError(f"App() takes one of dsn=, pool= and store=; got {' and '.join(names)}")


def _check_resources(resources: object) -> None:
    # What an @asynccontextmanager function returns can be called too, as a decorator.
    if isinstance(resources, AbstractAsyncContextManager) or not (resources is None or callable(resources)):
        raise ConfigurationError(
            "resources= takes an async context manager function (@asynccontextmanager), not the result of calling it; "
            f"got {type(resources).__name__}"
        )


def _checked_calls(calls: Iterable[Call[V]]) -> list[Call[V]]:
    checked = []
    for index, call in enumerate(calls):
        if not isinstance(call, Call):
            raise ArgumentsError(f"defer_many: item {index} must be task.call(...), got {type(call).__name__}")
        if call.connection is not None:
            raise ArgumentsError(
                f"defer_many: item {index} carries a connection; all jobs go in one transaction: "
                "give connection= to defer_many instead"
            )
        checked.append(call)
    return checked
